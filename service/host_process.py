"""The main module of an engine process: an EngineHost between a reader and a writer thread.

The engine's thread is the main thread and touches no socket, so it never waits for the service.
"""

import logging
import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue

from service import frames
from service.host import EngineHost

logger = logging.getLogger("service.host_process")

READ_BYTES = 1 << 18
Decoder = frames.FrameDecoder[frames.Begin | frames.Command]


def main() -> None:
    """Serves the socket whose descriptor is the first argument until Close or its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # a compiler that the engine starts must not hold it open
    logging.basicConfig(level=logging.INFO, format="engine: %(levelname)s %(name)s: %(message)s")
    decoder: Decoder = frames.FrameDecoder(frames.Begin | frames.Command)
    begin, early = _read_begin(connection, decoder)
    outbox: SimpleQueue[frames.Event | None] = SimpleQueue()
    host = EngineHost(begin.factory, outbox.put)
    for command in early:
        host.post(command)
    reader = threading.Thread(target=_read, args=(connection, decoder, host), daemon=True)
    writer = threading.Thread(
        target=_write, args=(connection, decoder.generation, outbox), daemon=True
    )
    reader.start()
    writer.start()
    code = _run(host)
    outbox.put(None)
    writer.join()
    logging.shutdown()
    os._exit(code)  # the teardown of a device's libraries takes seconds and may hang


def _run(host: EngineHost) -> int:
    try:
        host.run()
    except BaseException:
        logger.exception("the engine host failed")
        return 1
    return 0


def _read_begin(
    connection: socket.socket, decoder: Decoder
) -> tuple[frames.Begin, list[frames.Command]]:
    messages: list[frames.Begin | frames.Command] = []
    while not messages:
        messages = decoder.feed(_receive(connection))
    begin, *rest = messages
    assert isinstance(begin, frames.Begin), "the first frame says what to build"
    return begin, [message for message in rest if not isinstance(message, frames.Begin)]


def _read(connection: socket.socket, decoder: Decoder, host: EngineHost) -> None:
    while True:
        for message in decoder.feed(_receive(connection)):
            assert not isinstance(message, frames.Begin), "a host builds one engine"
            host.post(message)


def _receive(connection: socket.socket) -> bytes:
    """The next bytes. Ends the process at the end of the stream: then the service is gone."""
    try:
        data = connection.recv(READ_BYTES)
    except OSError:
        data = b""
    if not data:
        os._exit(0)  # nobody is left to work for, and the engine may be deep in a step
    return data


def _write(
    connection: socket.socket, generation: int | None, outbox: SimpleQueue[frames.Event | None]
) -> None:
    assert generation is not None, "Begin was read"
    encoder = frames.FrameEncoder(generation)
    while (event := outbox.get()) is not None:
        try:
            connection.sendall(encoder.encode(event))
        except OSError:
            os._exit(0)


if __name__ == "__main__":
    main()
