"""Runs a prompt and a decode step once, so that the first request does not pay for first calls."""

import numpy as np

from engine.plan import RowSampling, Runner, StepPlan
from engine.request import SamplingParams

_PROMPT_TOKENS = 32


def warm_up(runner: Runner, max_model_len: int) -> None:
    """Writes into the first KV blocks, so it comes before any request."""
    length = min(_PROMPT_TOKENS, max_model_len)
    num_blocks = min(length, runner.num_blocks)
    for start, stop in ((0, length - 1), (length - 1, length)):
        if start < stop:
            plan = _one_row(start, stop, num_blocks)
            runner.forward(plan)
            runner.sample(plan, None).wait()


def _one_row(start: int, stop: int, num_blocks: int) -> StepPlan:
    def integers(values: range) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.array(values, dtype=np.int32)

    return StepPlan(
        step=0,
        input_ids=np.zeros(stop - start, dtype=np.int32),
        positions=integers(range(start, stop)),
        query_start=np.array([0, stop - start], dtype=np.int32),
        seq_lens=np.array([stop], dtype=np.int32),
        slots=np.zeros(1, dtype=np.int32),
        block_tables=(integers(range(num_blocks))[None],),
        sample_rows=np.zeros(1, dtype=np.int32),
        sampling=(RowSampling(SamplingParams(temperature=0.0), position=0),),
    )
