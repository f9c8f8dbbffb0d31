"""The state of one request in the engine: its tokens, how far they are computed, what it holds."""

from dataclasses import dataclass, field

import numpy as np

from engine.blocks import BlockKey, chain_key
from engine.matcher import Matcher
from engine.plan import Int32Array
from engine.request import RequestSpec, RequestStats, TokenLogprobs


class BlockTable:
    """The KV blocks of one request in token order, ready to be copied into a plan."""

    def __init__(self) -> None:
        self._ids: Int32Array = np.zeros(8, dtype=np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> Int32Array:
        """[blocks], a view."""
        return self._ids[: self._length]

    def extend(self, block_ids: list[int]) -> None:
        end = self._length + len(block_ids)
        if end > len(self._ids):
            grown = np.zeros(max(end, 2 * len(self._ids)), dtype=np.int32)
            grown[: self._length] = self.ids
            self._ids = grown
        self._ids[self._length : end] = block_ids
        self._length = end

    def clear(self) -> list[int]:
        """Empties the table; the caller owns the blocks that it held."""
        block_ids: list[int] = self.ids.tolist()
        self._length = 0
        return block_ids


@dataclass(slots=True, eq=False)
class ScheduledRow:
    """One request's part of a step: tokens [start, end) are computed.

    sample_index: its place among the step's samples, None if it samples nothing.
    is_draw_wanted, is_kv_kept: turned off while the step is in flight, when the sampled token or
    the computed keys and values have become worthless.
    """

    sequence: "Sequence"
    start: int
    end: int
    sample_index: int | None
    is_draw_wanted: bool
    is_kv_kept: bool = True


@dataclass(slots=True)
class SequenceTimes:
    """When things happened, in seconds of the engine's clock."""

    arrival: float
    next_queue_report: float
    started: float | None = None
    first_token: float | None = None


@dataclass(slots=True)
class SequenceCounts:
    """Work that is reported when the request finishes."""

    cached: int = 0
    preemptions: int = 0
    recomputed: int = 0
    forced: int = 0
    closing: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One request.

        tokens:  | prompt ........ | output ............ | tokens still in flight
                 0          num_prompt          len(tokens)                 total
        KV:      | confirmed ........... | computed by steps in flight |
                 0                 confirmed                    computed

    Tokens are only ever appended. `settled` of the output tokens can no longer be taken back, of
    which `emitted` have been handed out. `limit` bounds the output. `number` orders arrivals.
    """

    spec: RequestSpec
    matcher: Matcher | None
    limit: int
    number: int
    times: SequenceTimes
    tokens: list[int]
    segments: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    computed: int = 0
    confirmed: int = 0
    published: int = 0
    settled: int = 0
    emitted: int = 0
    slot: int | None = None
    num_lost: int = 0
    is_finished: bool = False
    is_prompt_reported: bool = False
    table: BlockTable = field(default_factory=BlockTable)
    in_flight: list[ScheduledRow] = field(default_factory=list)
    counts: SequenceCounts = field(default_factory=SequenceCounts)
    _keys: list[BlockKey] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.spec.request_id

    @property
    def num_prompt(self) -> int:
        return len(self.spec.prompt_ids)

    @property
    def num_output(self) -> int:
        """Output tokens whose values are known."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Output tokens that steps in flight draw."""
        return sum(row.is_draw_wanted for row in self.in_flight)

    @property
    def total(self) -> int:
        return len(self.tokens) + self.num_pending

    @property
    def remaining(self) -> int:
        """Output tokens that may still be appended."""
        return self.limit - self.num_output

    @property
    def num_missing(self) -> int:
        """Tokens to compute before the next one can be drawn; 0 when none will be drawn."""
        if self.num_output + self.num_pending >= self.limit:
            return 0
        return self.total - self.computed

    def append(self, token: int, segment: int, logprobs: TokenLogprobs | None) -> None:
        self.tokens.append(token)
        if self.matcher is not None:
            self.segments.append(segment)
        if self.spec.sampling.logprobs is not None:
            # A token that nobody drew has no logits; it was certain.
            self.logprobs.append(logprobs or TokenLogprobs(logprob=0.0))

    def drop_draws(self) -> None:
        """The tokens that steps in flight draw are not wanted: their places are known now."""
        for row in self.in_flight:
            row.is_draw_wanted = False

    def rewind(self, num_tokens: int) -> None:
        """What steps in flight compute from token `num_tokens` on is a rejected draft."""
        self.drop_draws()
        for row in self.in_flight:
            row.is_kv_kept = False
        self.computed = min(self.computed, num_tokens)

    def keys(self, num_tokens: int, block_size: int) -> list[BlockKey]:
        """Keys of the full blocks within the first `num_tokens` tokens, each hashed only once."""
        count = num_tokens // block_size
        for index in range(len(self._keys), count):
            start = index * block_size
            parent = self._keys[-1] if self._keys else None
            tokens = self.tokens[start : start + block_size]
            self._keys.append(chain_key(parent, tokens, self.spec.salt))
        return self._keys[:count]

    def stats(self, now: float) -> RequestStats:
        """Where the time went. A stage that was not reached took no time."""
        arrival = self.times.arrival
        started = now if self.times.started is None else self.times.started
        first = now if self.times.first_token is None else self.times.first_token
        return RequestStats(
            queue=started - arrival,
            prefill=first - started,
            decode=now - first,
            first_token=first - arrival,
            preemptions=self.counts.preemptions,
            recomputed_tokens=self.counts.recomputed,
            forced_tokens=self.counts.forced,
            closing_tokens=self.counts.closing,
        )
