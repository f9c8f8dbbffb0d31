"""Collects what happens to requests until the step hands it out, one output per request."""

from dataclasses import dataclass, field

from engine.request import FinishReason, RequestError, RequestOutput, RequestStats, TokenLogprobs
from engine.sequence import Sequence


@dataclass(slots=True)
class _Draft:
    """An output that is still being written."""

    queue_position: int | None = None
    estimated_wait: float | None = None
    started: bool = False
    cached_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    stats: RequestStats | None = None
    error: RequestError | None = None


class OutputCollector:
    """Outputs since the last `collect`, in the order in which requests first appeared."""

    def __init__(self) -> None:
        self._drafts: dict[str, _Draft] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._drafts)

    def report_queue(self, request_id: str, position: int, wait: float | None) -> None:
        draft = self._draft(request_id)
        draft.queue_position, draft.estimated_wait = position, wait

    def report_start(self, request_id: str) -> None:
        self._draft(request_id).started = True

    def report_prompt(self, sequence: Sequence) -> None:
        """The prompt is computed; said once per request, before its first token."""
        if not sequence.is_prompt_reported:
            sequence.is_prompt_reported = True
            self._draft(sequence.request_id).cached_tokens = sequence.counts.cached

    def emit_settled(self, sequence: Sequence) -> None:
        """Hands out the tokens that settled since the last time."""
        start, end = sequence.emitted, sequence.settled
        if start >= end:
            return
        draft = self._draft(sequence.request_id)
        offset = sequence.num_prompt
        draft.token_ids += sequence.tokens[offset + start : offset + end]
        draft.segments += sequence.segments[start:end]
        draft.logprobs += sequence.logprobs[start:end]
        sequence.emitted = end
        self.num_tokens += end - start

    def finish(
        self,
        request_id: str,
        reason: FinishReason,
        *,
        stats: RequestStats,
        stop_token_id: int | None = None,
        error: RequestError | None = None,
    ) -> None:
        draft = self._draft(request_id)
        draft.finish_reason, draft.stats = reason, stats
        draft.stop_token_id, draft.error = stop_token_id, error

    def drop(self, request_id: str) -> None:
        """Nothing more is delivered to this request."""
        self._drafts.pop(request_id, None)

    def collect(self) -> list[RequestOutput]:
        """The outputs so far; starts afresh."""
        drafts, self._drafts = self._drafts, {}
        return [_freeze(request_id, draft) for request_id, draft in drafts.items()]

    def _draft(self, request_id: str) -> _Draft:
        return self._drafts.setdefault(request_id, _Draft())


def _freeze(request_id: str, draft: _Draft) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        queue_position=draft.queue_position,
        estimated_wait=draft.estimated_wait,
        started=draft.started,
        cached_tokens=draft.cached_tokens,
        token_ids=tuple(draft.token_ids),
        logprobs=tuple(draft.logprobs),
        segments=tuple(draft.segments),
        finish_reason=draft.finish_reason,
        stop_token_id=draft.stop_token_id,
        stats=draft.stats,
        error=draft.error,
    )
