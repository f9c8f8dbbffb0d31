"""The one way into the engine: validate, claim the id, tokenize, check the constraint, submit."""

import itertools
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from engine.request import RequestSpec
from service import events
from service.engine_client import EngineNotReady, EngineRequest
from service.errors import ServiceError, from_engine
from service.generation import STALL_SECONDS, Generation, Launch
from service.metrics import ServiceMetrics
from service.options import GenerationOptions
from service.output_stream import OutputStream
from service.prompting import fit_context, tokenize_prompt
from service.registry import GenerationRegistry
from service.runtime import ModelRuntime, ServedModels
from service.sampling import resolve_sampling, sampling_of_output
from service.translate import translate_spec
from service.validation import check_request_id
from tenon.v1 import generation_pb2

# The tenant of every request until callers have identities.
NO_TENANT = ""
# A constrained answer is closed this long before the call's deadline, so that it still arrives.
CLOSE_MARGIN_SECONDS = 0.2


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
        # Engine ids are never used twice: a caller may reuse an id while its abort is under way.
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
        max_model_len = runtime.info.max_model_len
        max_tokens = options.stop.max_tokens
        ids = fit_context(
            ids, max_tokens, max_model_len, truncate=options.truncate, path="spec.prompt"
        )
        max_tokens = max_tokens or max_model_len - len(ids)
        if options.stop.min_tokens > max_tokens:
            raise ServiceError(
                "INVALID_FIELD",
                f"spec.stop.min_tokens is {options.stop.min_tokens}, but only {max_tokens} tokens "
                "fit the context",
                field="spec.stop.min_tokens",
            )
        base = self._base_spec(generation, runtime, options, ids, max_tokens, time_remaining)
        try:
            generation.launch(_plan_launch(generation, runtime, options, base))
        except EngineNotReady:
            raise runtime.not_ready() from None

    def _base_spec(
        self,
        generation: Generation,
        runtime: ModelRuntime,
        options: GenerationOptions,
        ids: tuple[int, ...],
        max_tokens: int,
        time_remaining: float | None,
    ) -> RequestSpec:
        arrival, stop = generation.arrival, options.stop
        ends = () if stop.ignore_eos else runtime.assets.end_token_ids
        deadline = None if time_remaining is None else arrival + time_remaining
        return RequestSpec(
            request_id=f"{generation.request_id}#{next(self._serial)}",
            prompt_ids=ids,
            sampling=resolve_sampling(
                options.sampling, options.output, runtime.assets.sampling_defaults
            ),
            max_tokens=max_tokens,
            min_tokens=stop.min_tokens,
            stop_token_ids=tuple(dict.fromkeys((*ends, *stop.stop_token_ids))),
            priority=options.priority,
            tenant=NO_TENANT,
            salt=runtime.cache_salt(NO_TENANT, options.cache_narrow),
            bypass_prefix_cache=options.bypass_cache,
            arrival=arrival,
            deadline=deadline,
            close_at=_close_at(options, arrival, deadline),
            start_by=None if options.max_queue_time is None else arrival + options.max_queue_time,
        )


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


def _close_at(options: GenerationOptions, arrival: float, deadline: float | None) -> float | None:
    limits = []
    if options.stop.max_duration is not None:
        limits.append(arrival + options.stop.max_duration)
    if options.constraint is not None and deadline is not None:
        limits.append(deadline - CLOSE_MARGIN_SECONDS)
    return min(limits, default=None)


def _plan_launch(
    generation: Generation, runtime: ModelRuntime, options: GenerationOptions, base: RequestSpec
) -> Launch:
    indices = range(options.sampling.num_outputs)
    streams = [
        OutputStream(index, runtime.assets.tokenizer, options.stop, options.output)
        for index in indices
    ]
    started = events.started(
        request_id=generation.request_id,
        model=runtime.name,
        fingerprint=runtime.info.fingerprint,
        resolved=events.resolved_sampling(base.sampling, options.sampling.num_outputs),
        max_tokens=base.max_tokens,
        prompt_ids=base.prompt_ids,
        with_prompt_ids=options.output.prompt_token_ids,
    )
    return Launch(
        engine=runtime.engine,
        requests=[_request_of_output(base, options, index) for index in indices],
        streams=streams,
        started=started,
        prompt_tokens=len(base.prompt_ids),
    )


def _request_of_output(base: RequestSpec, options: GenerationOptions, index: int) -> EngineRequest:
    spec = replace(
        base,
        request_id=f"{base.request_id}.{index}",
        sampling=sampling_of_output(base.sampling, index),
    )
    return EngineRequest(spec, options.constraint)
