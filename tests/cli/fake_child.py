"""A stand-in for a server under the supervisor. Run as: fake_child.py NAME RECORD [arguments].

NAME says how it behaves; what happens to it is appended to the file RECORD.
"""

import json
import os
import signal
import sys
from pathlib import Path


def main(name: str, record: Path, arguments: list[str]) -> None:
    """Behaves as `name` says."""

    def note(text: str) -> None:
        with record.open("a") as file:
            file.write(f"{name}: {text}\n")

    def event(kind: str, **facts: object) -> None:
        line = json.dumps({"event": kind, **facts}) + "\n"
        os.write(int(os.environ["TENON_READY_FD"]), line.encode())

    def stop(number: int, _frame: object) -> None:
        note(signal.Signals(number).name)
        if "stubborn" not in name:
            sys.exit(0)
        os.kill(os.getppid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    note(" ".join(arguments))
    inherited = [key for key in ("TENON_CONFIG", "TENON_HTTP_PORT") if key in os.environ]
    note(f"inherited {inherited}")
    if "misconfigured" in name:
        event("failed", message="that cannot work")
        sys.exit(2)
    if "service" in name:
        event("listening", grpc_port=1234, admin_port=1235, metrics_port=None)
        event("progress", stage="loading weights", progress=0.5)
        event(
            "ready",
            family="llama",
            num_parameters=134515008,
            dtype="bfloat16",
            quantization="Q4_1",
            max_model_len=8192,
            kv_cache_tokens=65536,
        )
    else:
        event("listening", http_port=4321)
    if "crashing" in name:
        sys.exit(7)
    if "interrupting" in name:  # as Ctrl-C of the terminal does
        os.kill(os.getppid(), signal.SIGINT)
    while True:
        signal.pause()


main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
