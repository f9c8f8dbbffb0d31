"""The one way into the engine: validate, claim the id, tokenize, check the constraint, submit."""

import itertools
import time
import uuid
from collections.abc import Callable

from service.engine_client import EngineNotReady
from service.errors import ServiceError, from_engine
from service.generation import STALL_SECONDS, Generation
from service.metrics import ServiceMetrics
from service.options import GenerationOptions
from service.prompting import tokenize_prompt
from service.registry import GenerationRegistry
from service.request_plan import CallTimes, base_request, fit_prompt, plan_launch
from service.runtime import ModelRuntime, ServedModels
from service.translate import translate_spec
from service.validation import check_request_id
from tenon.v1 import generation_pb2


class Admission:
    """Admits generations to the served models. Belongs to one event loop."""

    def __init__(
        self,
        models: ServedModels,
        registry: GenerationRegistry,
        metrics: ServiceMetrics,
        clock: Callable[[], float] = time.monotonic,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._models = models
        self._registry = registry
        self._metrics = metrics
        self._clock = clock
        self._stall_seconds = stall_seconds
        self._serial = itertools.count()

    async def admit(
        self, request_id: str, spec: generation_pb2.GenerationSpec, time_remaining: float | None
    ) -> Generation:
        """Starts a generation, which the caller must hand to `release`.

        time_remaining: seconds until the call's deadline. Raises ServiceError.
        """
        self._registry.refuse_when_draining()
        check_request_id("request_id", request_id)
        runtime = self._models.find(spec.model)
        options = translate_spec(spec, runtime.info.vocab_size)
        if time_remaining is not None and time_remaining <= 0:
            raise ServiceError("DEADLINE_EXCEEDED", "the deadline has passed")
        generation = Generation(
            request_id or new_request_id(), self._metrics, self._clock, self._stall_seconds
        )
        self._registry.add(generation)
        try:
            await self._launch(generation, runtime, options, time_remaining)
        except BaseException:
            self.release(generation)
            raise
        return generation

    def release(self, generation: Generation) -> None:
        """Ends a generation in any state: what runs is dropped, its id is free again."""
        generation.close()
        self._registry.release(generation)

    async def _launch(
        self,
        generation: Generation,
        runtime: ModelRuntime,
        options: GenerationOptions,
        time_remaining: float | None,
    ) -> None:
        await _check_constraint(runtime, options)
        ids = await tokenize_prompt(runtime.assets, options.prompt, "spec.prompt")
        ids, max_tokens = fit_prompt(ids, options, runtime.info.max_model_len)
        deadline = None if time_remaining is None else generation.arrival + time_remaining
        times = CallTimes(generation.arrival, deadline)
        # Engine ids are never used twice: a caller may reuse an id while its abort is under way.
        engine_id = f"{generation.request_id}#{next(self._serial)}"
        base = base_request(engine_id, runtime, options, ids, max_tokens, times)
        try:
            generation.launch(plan_launch(generation.request_id, runtime, options, base))
        except EngineNotReady:
            raise runtime.not_ready() from None


def new_request_id() -> str:
    """An id for a request that came without one."""
    return f"req-{uuid.uuid4().hex}"


async def _check_constraint(runtime: ModelRuntime, options: GenerationOptions) -> None:
    if options.constraint is None:
        return
    refusal = await runtime.engine.prepare(options.constraint)
    if refusal is not None:
        error = from_engine(refusal)
        error.field = f"spec.constraint.{options.constraint.kind}"
        raise error
