"""From validated options and token ids to the requests that the engine gets."""

from dataclasses import dataclass, replace

from engine.request import RequestSpec
from service import events
from service.engine_client import EngineRequest
from service.errors import invalid
from service.generation import Launch
from service.options import GenerationOptions
from service.output_stream import OutputStream
from service.runtime import ModelRuntime
from service.sampling import resolve_sampling, sampling_of_output
from service.validation import check_context_length

# The tenant of every request until callers have identities.
NO_TENANT = ""
# A constrained answer is closed this long before the call's deadline, so that it still arrives.
CLOSE_MARGIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class CallTimes:
    """When a call came and when its caller gives up, in seconds of time.monotonic()."""

    arrival: float
    deadline: float | None


def fit_prompt(
    ids: tuple[int, ...], options: GenerationOptions, max_model_len: int
) -> tuple[tuple[int, ...], int]:
    """The prompt that leaves room for the output, and the output limit. Raises ServiceError.

    Room is max_tokens, or one token if the output may go on to the context limit.
    """
    stop = options.stop
    requested = 1 if stop.max_tokens is None else stop.max_tokens
    if options.truncate and requested < max_model_len:
        ids = ids[-(max_model_len - requested) :]
    check_context_length(len(ids), requested, max_model_len, "spec.prompt")
    max_tokens = max_model_len - len(ids) if stop.max_tokens is None else stop.max_tokens
    if stop.min_tokens > max_tokens:
        problem = f"is {stop.min_tokens}, but only {max_tokens} tokens fit the context"
        raise invalid("spec.stop.min_tokens", problem)
    return ids, max_tokens


def base_request(
    engine_id: str,
    runtime: ModelRuntime,
    options: GenerationOptions,
    ids: tuple[int, ...],
    max_tokens: int,
    times: CallTimes,
) -> RequestSpec:
    """What the requests of all outputs have in common."""
    stop, assets = options.stop, runtime.assets
    return RequestSpec(
        request_id=engine_id,
        prompt_ids=ids,
        sampling=resolve_sampling(options.sampling, options.output, assets.sampling_defaults),
        max_tokens=max_tokens,
        min_tokens=stop.min_tokens,
        stop_token_ids=_stop_token_ids(options, assets.end_token_ids),
        priority=options.priority,
        tenant=NO_TENANT,
        salt=runtime.cache_salt(NO_TENANT, options.cache_narrow),
        bypass_prefix_cache=options.bypass_cache,
        arrival=times.arrival,
        deadline=times.deadline,
        close_at=_close_at(options, times),
        start_by=_after(times.arrival, options.max_queue_time),
    )


def plan_launch(
    request_id: str, runtime: ModelRuntime, options: GenerationOptions, base: RequestSpec
) -> Launch:
    """One engine request and one stream for each output."""
    num_outputs = options.sampling.num_outputs
    tokenizer = runtime.assets.tokenizer
    started = events.started(
        request_id=request_id,
        model=runtime.name,
        fingerprint=runtime.info.fingerprint,
        resolved=events.resolved_sampling(base.sampling, num_outputs),
        max_tokens=base.max_tokens,
        prompt_ids=base.prompt_ids,
        with_prompt_ids=options.output.prompt_token_ids,
    )
    return Launch(
        engine=runtime.engine,
        requests=[_request_of_output(base, options, index) for index in range(num_outputs)],
        streams=[
            OutputStream(index, tokenizer, options.stop, options.output)
            for index in range(num_outputs)
        ],
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


def _stop_token_ids(options: GenerationOptions, end_ids: tuple[int, ...]) -> tuple[int, ...]:
    ends = () if options.stop.ignore_eos else end_ids
    return tuple(dict.fromkeys((*ends, *options.stop.stop_token_ids)))


def _close_at(options: GenerationOptions, times: CallTimes) -> float | None:
    limits = [_after(times.arrival, options.stop.max_duration)]
    if options.constraint is not None:
        limits.append(_after(times.deadline, -CLOSE_MARGIN_SECONDS))
    return min((limit for limit in limits if limit is not None), default=None)


def _after(start: float | None, seconds: float | None) -> float | None:
    return None if start is None or seconds is None else start + seconds
