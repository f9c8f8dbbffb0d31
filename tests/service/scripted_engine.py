"""An engine without a scheduler whose faults a test can order, for the tests of host and clients.

The model path orders what loading does, the first prompt id what a request does.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from engine.build import Progress
from engine.config import EngineConfig, EngineInfo
from engine.engine import EngineStepError
from engine.request import (
    EngineLoad,
    FinishReason,
    RequestError,
    RequestOutput,
    RequestSpec,
)

TARGET = "tests.service.scripted_engine:build_scripted_engine"

REFUSE, FAIL_STEP, CRASH = 9001, 9002, 9003


class ScriptedEngine:
    """Gives each request the tokens 0, 1, 2, ... one a step, until max_tokens."""

    def __init__(self) -> None:
        self.info = EngineInfo("scripted", 1, "cpu", "float32", "F32", 128, 64, 8, 16, "f")
        self._open: dict[str, tuple[RequestSpec, int]] = {}
        self._due: list[RequestOutput] = []
        # Applied by the next step, as the real engine does.
        self._dropped: set[str] = set()
        self._steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self._open or self._due or self._dropped)

    def add(self, spec: RequestSpec, matcher: object = None) -> None:
        if spec.request_id in self._open:
            raise ValueError(f"request {spec.request_id} is already in the engine")
        if spec.prompt_ids[0] == REFUSE:
            error = RequestError("QUEUE_FULL", "the queue is full")
            self._finish(spec.request_id, FinishReason.ERROR, error)
        else:
            self._open[spec.request_id] = (spec, 0)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._dropped.update(request_ids)

    def end(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if self._open.pop(request_id, None):
                self._finish(request_id, FinishReason.ENDED)

    def step(self) -> list[RequestOutput]:
        self._steps += 1
        self._drop()
        orders = {spec.prompt_ids[0] for spec, _ in self._open.values()}
        if CRASH in orders:
            raise RuntimeError("secret text of an exception")
        if FAIL_STEP in orders:
            raise EngineStepError(self._fail_all())
        outputs, self._due = self._due, []
        return outputs + [self._advance(request_id) for request_id in list(self._open)]

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._open), steps=self._steps, kv_blocks_total=8)

    def reset_prefix_cache(self) -> int:
        return 3

    def _drop(self) -> None:
        dropped, self._dropped = self._dropped, set()
        for request_id in dropped:
            self._open.pop(request_id, None)
        self._due = [output for output in self._due if output.request_id not in dropped]

    def _advance(self, request_id: str) -> RequestOutput:
        spec, token = self._open[request_id]
        self._open[request_id] = (spec, token + 1)
        reason = None
        if token + 1 == spec.max_tokens:
            del self._open[request_id]
            reason = FinishReason.LENGTH
        return RequestOutput(
            request_id, started=token == 0, token_ids=(token,), finish_reason=reason
        )

    def _finish(
        self, request_id: str, reason: FinishReason, error: RequestError | None = None
    ) -> None:
        self._due.append(RequestOutput(request_id, finish_reason=reason, error=error))

    def _fail_all(self) -> list[RequestOutput]:
        error = RequestError("INTERNAL", "secret text of an exception")
        outputs = [
            RequestOutput(request_id, finish_reason=FinishReason.ERROR, error=error)
            for request_id in self._open
        ]
        self._open.clear()
        return outputs


def build_scripted_engine(config: EngineConfig, progress: Progress) -> ScriptedEngine:
    """Paths: "damaged:" raises, "exit:" kills, "endless:" loads until closed, "once:FILE" loads
    while FILE exists and removes it."""
    kind, _, argument = config.model_path.partition(":")
    progress("loading weights", 0.5)
    if kind == "damaged":
        from engine.loading.source import CheckpointError  # late: it loads torch

        raise CheckpointError("model.gguf: tensor_count is 0")
    if kind == "odd":
        raise LookupError("no such backend")
    if kind == "exit":
        raise SystemExit(3)
    while kind == "endless":
        time.sleep(0.005)
        progress("loading weights", 0.5)
    if kind == "once":
        try:
            Path(argument).unlink()
        except FileNotFoundError:
            raise ValueError("model.gguf: it is gone") from None
    return ScriptedEngine()
