"""An engine on a thread of this process: nothing is copied, nothing is shared but two queues."""

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable

from service import frames
from service.engine_client import EngineFactory
from service.host import EngineHost
from service.supervision import RestartPolicy, SupervisedClient

logger = logging.getLogger(__name__)

# The engine holds the GIL in short stretches between torch calls, and the loop waits up to one
# switch interval for each; at the default 5 ms gRPC answers several times slower.
SWITCH_INTERVAL = 0.0005
# A step or a load may take long; what does not end by then is left behind as a daemon thread.
STOP_TIMEOUT = 30.0


class ThreadClient(SupervisedClient):
    """EngineClient over a daemon thread."""

    def __init__(self, factory: EngineFactory, policy: RestartPolicy | None = None) -> None:
        super().__init__(factory, _launch_thread, policy)


async def _launch_thread(
    factory: EngineFactory,
    generation: int,
    on_event: Callable[[frames.Event], None],
    on_end: Callable[[], None],
) -> "_ThreadLink":
    return _ThreadLink(factory, generation, on_event, on_end)


class _ThreadLink:
    def __init__(
        self,
        factory: EngineFactory,
        generation: int,
        on_event: Callable[[frames.Event], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._ended = asyncio.Event()
        self._how = "closed"
        self._host = EngineHost(factory, lambda event: self._tell(on_event, event))
        self._previous_interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        name = f"engine-host-{generation}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, command: frames.Command) -> None:
        self._host.post(command)

    async def stop(self) -> str:
        self._host.post(frames.Close())
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_TIMEOUT)
        except TimeoutError:
            return f"still in a step after {STOP_TIMEOUT:g} s; its thread is left behind"
        self._thread.join()
        return self._how

    def _run(self) -> None:
        try:
            self._host.run()
        except BaseException as error:
            logger.exception("the engine host failed")
            self._how = f"failed with {type(error).__name__}"
        finally:
            self._tell(self._end)

    def _end(self) -> None:
        sys.setswitchinterval(self._previous_interval)
        self._ended.set()
        self._on_end()

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(callback, *arguments)
