"""The far side of an EngineClient: the loop that owns an engine and, later, compiles constraints.

It runs in a thread or in a process of its own and does not know which: commands come in through
`post`, events go out through `emit`.
"""

import importlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, assert_never

from engine.request import EngineLoad, FinishReason, RequestError, RequestOutput
from grammar.spec import ConstraintSpec
from service import frames
from service.engine_client import EngineFactory, EngineRequest

if TYPE_CHECKING:
    from engine.engine import Engine

logger = logging.getLogger(__name__)

# A device that is broken for good fails every step: then a fresh engine must be built.
MAX_FAILED_STEPS = 3


class _ClosedWhileLoading(BaseException):
    """Leaves the engine's build; no `except Exception` in it can swallow this."""


class EngineHost:
    """Loads an engine and steps it until Close. `run` belongs to one thread, `post` to any.

    emit: called on the host's thread, once per step; must not block.
    """

    def __init__(self, factory: EngineFactory, emit: Callable[[frames.Event], None]) -> None:
        self._factory = factory
        self._emit = emit
        # One queue for everything: it is drained before each step, so an abort acts before the
        # next schedule, and never overtakes the submit that it belongs to.
        self._inbox: SimpleQueue[frames.Command] = SimpleQueue()
        self._is_closing = False
        self._num_applied = 0
        self._num_failed_steps = 0
        self._refused: list[RequestOutput] = []
        self._load = EngineLoad()

    def post(self, command: frames.Command) -> None:
        """Hands a command over."""
        if isinstance(command, frames.Close):
            self._is_closing = True
        self._inbox.put(command)

    def run(self) -> None:
        """Loads, then serves until Close. Raises what makes the engine unusable.

        An engine that cannot be built is an event, not an exception.
        """
        engine = self._build()
        if engine is None:
            return
        self._emit(frames.Loaded(engine.info))
        while True:
            dropped: set[str] = set()
            for command in self._take(wait=not engine.has_work):
                match command:
                    case frames.Close():
                        return
                    case frames.Abort(request_ids):
                        dropped.update(request_ids)
                    case frames.Submit(requests) if dropped & _request_ids(requests):
                        # The engine knows the old request of this id until its next step.
                        self._step(engine)
                        dropped.clear()
                self._apply(engine, command)
                self._num_applied += 1
            self._step(engine)

    def _build(self) -> "Engine | None":
        try:
            module, _, function = self._factory.target.partition(":")
            build = getattr(importlib.import_module(module), function)
            engine: Engine = build(self._factory.config, self._report_progress)
        except _ClosedWhileLoading:
            return None
        except Exception as error:
            # A bad path or file is the user's to read in one line, without our stack.
            is_ours = not isinstance(error, ValueError | OSError)
            logger.log(logging.ERROR if is_ours else logging.DEBUG, "loading failed", exc_info=True)
            kinds = tuple(kind.__name__ for kind in type(error).__mro__)
            self._emit(frames.LoadFailed(kinds, str(error) or type(error).__name__))
            return None
        return engine

    def _report_progress(self, stage: str, progress: float) -> None:
        if self._is_closing:
            raise _ClosedWhileLoading
        self._emit(frames.Loading(stage, progress))

    def _take(self, wait: bool) -> list[frames.Command]:
        """All commands so far; `wait` blocks for the first."""
        commands = [self._inbox.get()] if wait else []
        try:
            while True:
                commands.append(self._inbox.get_nowait())
        except Empty:
            return commands

    def _apply(self, engine: "Engine", command: frames.Command) -> None:
        match command:
            case frames.Submit(requests):
                self._submit(engine, requests)
            case frames.Abort(request_ids):
                engine.abort(request_ids)
            case frames.End(request_ids):
                engine.end(request_ids)
            case frames.Prepare(call_id, constraint):
                self._emit(frames.Prepared(call_id, self._prepare(constraint)))
            case frames.ResetPrefixCache(call_id):
                self._emit(frames.PrefixCacheReset(call_id, engine.reset_prefix_cache()))
            case frames.Close():
                raise AssertionError("the loop handles Close")
            case _:
                assert_never(command)

    def _submit(self, engine: "Engine", requests: Sequence[EngineRequest]) -> None:
        for request in requests:
            error = None if request.constraint is None else self._prepare(request.constraint)
            if error is None:
                engine.add(request.spec)
            else:
                request_id = request.spec.request_id
                self._refused.append(
                    RequestOutput(request_id, finish_reason=FinishReason.ERROR, error=error)
                )

    def _prepare(self, constraint: ConstraintSpec) -> RequestError | None:
        """Compiles a constraint. No kind has a compiler yet, so each is refused by name."""
        field = f"constraint.{constraint.kind}"
        message = f"{field} is not supported yet"
        return RequestError("UNSUPPORTED_FIELD", message, (("field", field),))

    def _step(self, engine: "Engine") -> None:
        """One step if there is work; emits one frame if anything changed."""
        has_worked = engine.has_work
        outputs, self._refused = self._refused, []
        if has_worked:
            outputs += self._run_step(engine)
        load = engine.load()
        if has_worked or outputs or load != self._load:
            self._load = load
            self._emit(frames.StepFrame(self._num_applied, tuple(outputs), load))

    def _run_step(self, engine: "Engine") -> Sequence[RequestOutput]:
        # Late, because it loads torch, which a client of a process never needs.
        from engine.engine import EngineStepError

        try:
            outputs = engine.step()
        except EngineStepError as failure:
            self._num_failed_steps += 1
            if self._num_failed_steps >= MAX_FAILED_STEPS:
                raise
            incident_id = secrets.token_hex(8)
            logger.exception("a step failed; incident %s", incident_id)
            return [_with_incident(output, incident_id) for output in failure.outputs]
        self._num_failed_steps = 0
        return outputs


def _request_ids(requests: Sequence[EngineRequest]) -> set[str]:
    return {request.spec.request_id for request in requests}


def _with_incident(output: RequestOutput, incident_id: str) -> RequestOutput:
    """Replaces the error of a request that a failed step ended: exception text stays here."""
    if output.finish_reason is not FinishReason.ERROR:
        return output
    message = f"the engine failed in a step; incident {incident_id}"
    return replace(output, error=RequestError("INTERNAL", message, (("incident_id", incident_id),)))
