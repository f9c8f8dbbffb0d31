"""Step plans made by hand, for tests that drive a backend or a runner without a scheduler."""

from collections.abc import Sequence

import numpy as np

from engine.plan import RowSampling, StepPlan
from engine.request import SamplingParams

GREEDY = RowSampling(SamplingParams(temperature=0.0), position=0)


def int32(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def make_plan(
    rows: Sequence[tuple[Sequence[int], int]],
    tables: Sequence[Sequence[int]],
    *,
    slots: Sequence[int] | None = None,
    sample: Sequence[int] | None = None,
    sampling: Sequence[RowSampling] | None = None,
    copy_blocks: tuple[tuple[int, int], ...] = (),
) -> StepPlan:
    """rows: (the step's token ids, number of tokens computed before) per row; all sample greedily
    unless told otherwise. tables: blocks of each row, of any length; padded with block 0.
    """
    width = max(len(table) for table in tables)
    sample_rows = list(range(len(rows))) if sample is None else list(sample)
    return StepPlan(
        step=0,
        input_ids=int32([token for tokens, _ in rows for token in tokens]),
        positions=int32([start + i for tokens, start in rows for i in range(len(tokens))]),
        query_start=int32(np.cumsum([0, *(len(tokens) for tokens, _ in rows)])),
        seq_lens=int32([start + len(tokens) for tokens, start in rows]),
        slots=int32(list(range(len(rows))) if slots is None else slots),
        block_tables=(int32([[*table, *[0] * (width - len(table))] for table in tables]),),
        sample_rows=int32(sample_rows),
        sampling=tuple(sampling or [GREEDY] * len(sample_rows)),
        copy_blocks=copy_blocks,
    )
