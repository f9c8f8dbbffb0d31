"""Turns the rows of a step into the arrays that a runner gets."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace

import numpy as np

from engine.plan import LAST_SAMPLED, Int32Array, RowSampling, StepPlan
from engine.sequence import ScheduledRow, Sequence


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A plan and the requests behind its rows, in the same order."""

    plan: StepPlan
    rows: tuple[ScheduledRow, ...]

    def with_known_outputs(self) -> "ScheduledStep":
        """The step as it is sampled: penalties see tokens in flight when it was planned."""
        sampled = [row for row in self.rows if row.sample_index is not None]
        if not any(row.sequence.spec.sampling.has_penalties for row in sampled):
            return self
        fresh = tuple(
            _sampling(row) if row.is_draw_wanted else old
            for row, old in zip(sampled, self.plan.sampling, strict=True)
        )
        return replace(self, plan=replace(self.plan, sampling=fresh))


def build_step(number: int, rows: Rows[ScheduledRow]) -> ScheduledStep:
    """Builds step `number`. Rows have their slot and all blocks up to `end`."""
    lengths = [row.end - row.start for row in rows]
    query_start = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start[1:])
    sampled = [index for index, row in enumerate(rows) if row.sample_index is not None]
    plan = StepPlan(
        step=number,
        input_ids=np.concatenate([_input_ids(row) for row in rows]),
        positions=np.concatenate([np.arange(r.start, r.end, dtype=np.int32) for r in rows]),
        query_start=query_start,
        seq_lens=np.array([row.end for row in rows], dtype=np.int32),
        slots=np.array([row.sequence.slot for row in rows], dtype=np.int32),
        block_tables=(_block_table(rows),),
        sample_rows=np.array(sampled, dtype=np.int32),
        sampling=tuple(_sampling(rows[index]) for index in sampled),
    )
    return ScheduledStep(plan, tuple(rows))


def _input_ids(row: ScheduledRow) -> Int32Array:
    """[end - start]; the token of the step in flight, if it is among them, is the last one."""
    known = row.sequence.tokens[row.start : row.end]
    unknown = row.end - row.start - len(known)
    assert unknown <= 1, "only one step may be in flight"
    return np.array(known + [LAST_SAMPLED] * unknown, dtype=np.int32)


def _block_table(rows: Rows[ScheduledRow]) -> Int32Array:
    """[rows, most blocks of a row], padded with 0."""
    table = np.zeros((len(rows), max(len(row.sequence.table) for row in rows)), dtype=np.int32)
    for index, row in enumerate(rows):
        ids = row.sequence.table.ids
        table[index, : len(ids)] = ids
    return table


def _sampling(row: ScheduledRow) -> RowSampling:
    sequence = row.sequence
    spec = sequence.spec
    position = row.end - sequence.num_prompt
    banned = spec.stop_token_ids if position < spec.min_tokens else ()
    if not spec.sampling.has_penalties:
        return RowSampling(spec.sampling, position, banned)
    return RowSampling(
        spec.sampling,
        position,
        banned,
        prompt_ids=np.array(spec.prompt_ids, dtype=np.int32),
        output_ids=_output_ids(sequence),
    )


def _output_ids(sequence: Sequence) -> Int32Array:
    return np.array(sequence.tokens[sequence.num_prompt :], dtype=np.int32)
