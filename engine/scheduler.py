"""Decides what each step computes, and owns slots, queue and KV blocks.

One rule: a request has computed tokens and a total, and each step computes some of the missing
ones, running requests first. Chunked prefill, prefix hits, forced tokens and resuming after
preemption are all this rule. Knows nothing of matchers, outputs or why a request ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.batch import ScheduledStep, build_step
from engine.blocks import BlockPool
from engine.sequence import ScheduledRow, Sequence
from engine.waiting import WaitingQueue


class Scheduling(NamedTuple):
    """What `schedule` decided.

    step: None if there is nothing to compute. started: requests that got a slot. exhausted:
    requests that no cache of this size can continue; the caller ends them.
    """

    step: ScheduledStep | None
    started: list[Sequence]
    exhausted: list[Sequence]


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the engine was built."""

    steps: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class _Round:
    """One call of `schedule` while it runs. budget: tokens that the step may still take."""

    budget: int
    rows: list[ScheduledRow] = field(default_factory=list)
    num_samples: int = 0
    has_preempted: bool = False
    started: list[Sequence] = field(default_factory=list)
    exhausted: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        end = sequence.computed + num_tokens
        is_drawing = end == sequence.total
        sample_index = self.num_samples if is_drawing else None
        row = ScheduledRow(sequence, sequence.computed, end, sample_index, is_drawing)
        self.num_samples += is_drawing
        sequence.in_flight.append(row)
        sequence.computed = end
        self.budget -= num_tokens
        self.rows.append(row)


class Scheduler:
    """Plans steps over the running and the waiting requests."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.pool = pool
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.counts = SchedulerCounts()
        self._max_num_batched_tokens = max_num_batched_tokens
        self._enable_prefix_caching = enable_prefix_caching
        self._free_slots = list(reversed(range(max_num_seqs)))
        # Free blocks that admission leaves to the running requests, so that they can grow.
        self._watermark = max(1, pool.num_total // 100)
        # (last step that uses them, blocks) of requests that left while a step was in flight.
        self._retiring: list[tuple[int, list[int]]] = []

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def sequences(self) -> list[Sequence]:
        """All requests, running ones first."""
        return [*self.running, *self.waiting]

    def add(self, sequence: Sequence) -> None:
        """Puts a request into the queue."""
        self.waiting.push(sequence)

    def schedule(self) -> Scheduling:
        """Plans the next step and counts its tokens as computed; `complete` confirms them."""
        round_ = _Round(self._max_num_batched_tokens)
        self._schedule_running(round_)
        if not round_.has_preempted:
            self._admit_waiting(round_)
        step = None
        if round_.rows:
            self.counts.steps += 1
            step = build_step(self.counts.steps, round_.rows)
        return Scheduling(step, round_.started, round_.exhausted)

    def confirm(self, row: ScheduledRow) -> None:
        """Takes note that a row of a finished step has its keys and values in the cache."""
        sequence = row.sequence
        if row.is_kv_kept:
            sequence.confirmed = row.end
            self.publish(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Makes the full blocks that are computed and settled findable for other requests."""
        if not self._uses_prefix_cache(sequence):
            return
        settled = min(sequence.confirmed, sequence.num_prompt + sequence.settled)
        keys = sequence.keys(settled, self.pool.block_size)
        for index in range(sequence.published, len(keys)):
            self.pool.publish(int(sequence.table.ids[index]), keys[index])
        sequence.published = max(sequence.published, len(keys))

    def complete(self, step: ScheduledStep) -> None:
        """Frees blocks that only this step still used. Called when its result is applied."""
        finished = [blocks for last, blocks in self._retiring if last <= step.plan.step]
        self._retiring = [entry for entry in self._retiring if entry[0] > step.plan.step]
        for blocks in finished:
            self.pool.release(blocks)

    def remove(self, sequence: Sequence) -> None:
        """Takes a request out; its blocks are free once no step in flight uses them."""
        sequence.is_finished = True
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self._stop_running(sequence)
        sequence.rewind(0)

    def discard_in_flight(self) -> None:
        """Forgets steps whose result will never come. All requests must have been removed."""
        assert not self.running
        for _, blocks in self._retiring:
            self.pool.release(blocks)
        self._retiring = []

    def check(self) -> None:
        """Asserts the invariants of blocks, tables and slots. For tests, after each step."""
        tables = [sequence.table.ids.tolist() for sequence in self.running]
        self.pool.check(tables + [blocks for _, blocks in self._retiring])
        slots = [sequence.slot for sequence in self.running] + self._free_slots
        assert len(set(slots)) == len(slots), "two requests share a slot"
        assert all(len(sequence.table) == 0 for sequence in self.waiting)
        for sequence in self.running:
            assert sequence.confirmed <= sequence.computed <= sequence.total
            assert len(sequence.table) * self.pool.block_size >= sequence.computed

    def _schedule_running(self, round_: _Round) -> None:
        index = 0
        # Preemption takes from the back, so the requests before `index` stay where they are.
        while index < len(self.running):
            sequence = self.running[index]
            index += 1
            # Each request behind this one is sure of a token: max_num_seqs fits the budget.
            num_tokens = min(sequence.num_missing, round_.budget - (len(self.running) - index))
            if num_tokens > 0 and self._grow(sequence, sequence.computed + num_tokens, round_):
                round_.add(sequence, num_tokens)

    def _grow(self, sequence: Sequence, num_tokens: int, round_: _Round) -> bool:
        """Gives a running request blocks for `num_tokens` tokens, at the cost of later ones."""
        needed = self.pool.blocks_for(num_tokens) - len(sequence.table)
        while needed > self.pool.num_free:
            if self._retiring:
                return False  # Blocks come back when the step in flight is applied.
            if len(self.running) == 1:
                if not sequence.in_flight:
                    round_.exhausted.append(sequence)
                return False
            victim = self.running[-1]
            self._preempt(victim)
            round_.has_preempted = True
            if victim is sequence:
                return False
        sequence.table.extend(self.pool.take(max(needed, 0)))
        self._check_writable(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Sends a request back to the queue. What it draws in a step in flight stays wanted."""
        sequence.num_lost = sequence.confirmed
        sequence.counts.preemptions += 1
        self.counts.preemptions += 1
        self._stop_running(sequence)
        for row in sequence.in_flight:
            row.is_kv_kept = False
        sequence.computed = sequence.confirmed = sequence.published = 0
        self.waiting.push(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = None
        blocks = sequence.table.clear()
        if sequence.in_flight:
            # counts.steps is the number of the newest step, which may still write into them.
            self._retiring.append((self.counts.steps, blocks))
        else:
            self.pool.release(blocks)

    def _admit_waiting(self, round_: _Round) -> None:
        while round_.budget > 0 and self._free_slots and len(self.waiting) > 0:
            sequence = self.waiting.head
            if self.pool.blocks_for(sequence.total) > self.pool.num_total:
                round_.exhausted.append(sequence)
                return
            if not self._take_prompt_blocks(sequence):
                return
            self.waiting.remove(sequence)
            sequence.slot = self._free_slots.pop()
            self.running.append(sequence)
            self._count_admission(sequence)
            round_.started.append(sequence)
            round_.add(sequence, min(sequence.num_missing, round_.budget))

    def _take_prompt_blocks(self, sequence: Sequence) -> bool:
        """Takes blocks for all known tokens, cached ones first; False if they do not fit now."""
        hits = self._lookup(sequence)
        needed = self.pool.blocks_for(sequence.total) - len(hits)
        available = self.pool.num_free - self.pool.num_free_among(hits)
        watermark = self._watermark if self.running else 0
        if needed + watermark > available:
            return False
        # Shared first: taking might otherwise reuse a block that was just found.
        self.pool.share(hits)
        sequence.table.extend(hits + self.pool.take(needed))
        sequence.computed = sequence.confirmed = len(hits) * self.pool.block_size
        sequence.published = len(hits)
        self._check_writable(sequence)
        return True

    def _lookup(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the settled prefix, less the last token: its logits are needed."""
        if not self._uses_prefix_cache(sequence):
            return []
        settled = min(sequence.total - 1, sequence.num_prompt + sequence.settled)
        return self.pool.lookup(sequence.keys(settled, self.pool.block_size))

    def _uses_prefix_cache(self, sequence: Sequence) -> bool:
        return self._enable_prefix_caching and not sequence.spec.bypass_prefix_cache

    def _count_admission(self, sequence: Sequence) -> None:
        if sequence.times.started is None:
            sequence.counts.cached = sequence.computed
            self.counts.prompt_tokens += sequence.num_prompt
            self.counts.cached_tokens += sequence.computed
            return
        recomputed = max(0, sequence.num_lost - sequence.computed)
        sequence.counts.recomputed += recomputed
        self.counts.recomputed_tokens += recomputed

    def _check_writable(self, sequence: Sequence) -> None:
        """What is about to be written must be neither shared nor cached."""
        first = sequence.computed // self.pool.block_size
        ids: Iterator[int] = iter(sequence.table.ids[first : first + 1].tolist())
        assert all(self.pool.is_writable(block_id) for block_id in ids)
