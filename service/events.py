"""Builds the events of a generation: the only place that writes them."""

import time
from collections.abc import Callable, Sequence

from google.protobuf.duration_pb2 import Duration

from engine.request import FinishReason, RequestStats, SamplingParams, TokenLogprobs
from tenon.v1 import generation_pb2, prompt_pb2

Event = generation_pb2.GenerationEvent

FINISH_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    FinishReason.TIME_LIMIT: generation_pb2.FINISH_REASON_TIME_LIMIT,
    FinishReason.ENDED: generation_pb2.FINISH_REASON_ENDED_BY_CALLER,
}


def queued(position: int, estimated_wait: float | None) -> Event:
    """Waiting. estimated_wait: seconds from now."""
    event = Event(queued=generation_pb2.Queued(position=position))
    if estimated_wait is not None:
        event.queued.estimated_start.FromNanoseconds(round((time.time() + estimated_wait) * 1e9))
    return event


def started(
    *,
    request_id: str,
    model: str,
    fingerprint: str,
    resolved: generation_pb2.SamplingParams,
    max_tokens: int,
    prompt_ids: Sequence[int],
    with_prompt_ids: bool,
) -> Event:
    """The request has its slot."""
    return Event(
        started=generation_pb2.Started(
            request_id=request_id,
            model=model,
            fingerprint=fingerprint,
            resolved=resolved,
            max_tokens=max_tokens,
            prompt_tokens=len(prompt_ids),
            prompt_token_ids=prompt_pb2.TokenIds(ids=prompt_ids) if with_prompt_ids else None,
        )
    )


def resolved_sampling(params: SamplingParams, num_outputs: int) -> generation_pb2.SamplingParams:
    """Effective parameters, every field set."""
    return generation_pb2.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=params.seed,
        num_outputs=num_outputs,
        logit_bias=dict(params.logit_bias),
        deterministic=False,
    )


def prompt_processed(cached_tokens: int) -> Event:
    """The whole prompt was computed."""
    return Event(prompt_processed=generation_pb2.PromptProcessed(cached_tokens=cached_tokens))


def text(output_index: int, piece: str) -> Event:
    """Answer text."""
    return Event(
        text=generation_pb2.TextDelta(
            output_index=output_index, channel=generation_pb2.CHANNEL_CONTENT, text=piece
        )
    )


def tokens(
    output_index: int, token_ids: Sequence[int], logprobs: generation_pb2.Logprobs | None
) -> Event:
    """Tokens, or log probabilities, or both."""
    return Event(
        tokens=generation_pb2.TokensDelta(
            output_index=output_index, token_ids=token_ids, logprobs=logprobs
        )
    )


def logprob_columns(
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    num_top: int,
    token_bytes: Callable[[int], bytes],
) -> generation_pb2.Logprobs:
    """Log probabilities of consecutive tokens, column-wise."""
    columns = generation_pb2.Logprobs(
        token_ids=token_ids,
        values=[item.logprob for item in logprobs],
        token_bytes=[token_bytes(id_) for id_ in token_ids],
    )
    if num_top:
        columns.top.extend(
            generation_pb2.TopLogprobs(
                token_ids=item.top_ids,
                values=item.top_logprobs,
                token_bytes=[token_bytes(id_) for id_ in item.top_ids],
            )
            for item in logprobs
        )
    return columns


def output_finished(
    output_index: int,
    reason: FinishReason,
    output_tokens: int,
    *,
    stop_string: str | None = None,
    stop_token_id: int | None = None,
) -> Event:
    """One output is finished; a stop string goes before a stop token."""
    finished = generation_pb2.OutputFinished(
        output_index=output_index,
        reason=FINISH_REASONS.get(reason, generation_pb2.FINISH_REASON_OTHER),
        output_tokens=output_tokens,
    )
    if stop_string is not None:
        finished.stop_string = stop_string
    elif stop_token_id is not None:
        finished.stop_token_id = stop_token_id
    return Event(output_finished=finished)


def finished(
    usage: generation_pb2.Usage, stats: Sequence[RequestStats], total_seconds: float
) -> Event:
    """The last event. stats: one of each output."""
    timings = generation_pb2.Timings(
        queue=_duration(max(item.queue for item in stats)),
        prefill=_duration(max(item.prefill for item in stats)),
        decode=_duration(max(item.decode for item in stats)),
        first_token=_duration(max(item.first_token for item in stats)),
        constraint_wait=_duration(max(item.constraint_wait for item in stats)),
        total=_duration(total_seconds),
    )
    return Event(
        finished=generation_pb2.Finished(
            usage=usage,
            timings=timings,
            preemptions=sum(item.preemptions for item in stats),
            recomputed_tokens=sum(item.recomputed_tokens for item in stats),
        )
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(max(0, round(seconds * 1e9)))
    return duration
