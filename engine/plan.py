"""What goes from the scheduler to a runner and back: arrays and integers only.

So a runner can be this process, another one, or several ranks.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.matcher import TokenBitmask
from engine.request import SamplingParams, TokenLogprobs

Int32Array = npt.NDArray[np.int32]

# In StepPlan.input_ids: the token that this row's slot sampled in the step before, whose value only
# the runner knows yet (depth 1).
LAST_SAMPLED = -1


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How the next token of one row is drawn.

    position: number of output tokens before it, the counter of the RNG.
    banned_ids: ids that must not be drawn (stop tokens before min_tokens); they yield to the mask
    when nothing else is legal.
    prompt_ids, output_ids: the tokens so far, only when `params.has_penalties`.
    """

    params: SamplingParams
    position: int
    banned_ids: tuple[int, ...] = ()
    prompt_ids: Int32Array | None = None
    output_ids: Int32Array | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step for R rows and T tokens in all.

    input_ids, positions: [T], row after row. query_start: [R + 1], the rows' borders in them.
    seq_lens: [R], KV length of each row after this step. slots: [R], each row's fixed place while
    it runs, below max_num_seqs. block_tables: one [R, max blocks of a row] array per KV group,
    padded with 0. sample_rows: [S], rows whose last token's logits are sampled; sampling: [S].
    copy_blocks: (source, target) block pairs to copy before anything is written.
    """

    step: int
    input_ids: Int32Array
    positions: Int32Array
    query_start: Int32Array
    seq_lens: Int32Array
    slots: Int32Array
    block_tables: tuple[Int32Array, ...]
    sample_rows: Int32Array
    sampling: tuple[RowSampling, ...]
    copy_blocks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SampleMask:
    """Allowed tokens of the constrained rows among S sampling rows.

    bitmask: [S, words]; constrained: [S] bool, False rows are left alone.
    """

    bitmask: TokenBitmask
    constrained: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepResult:
    """token_ids: [S]; logprobs: S entries, None for rows that did not ask for them."""

    token_ids: Int32Array
    logprobs: tuple[TokenLogprobs | None, ...]


class PendingResult(Protocol):
    """A step that was launched."""

    def wait(self) -> StepResult:
        """Blocks until the tokens are on the host."""


class Runner(Protocol):
    """Owns the device, the weights and the KV cache."""

    @property
    def num_blocks(self) -> int:
        """KV blocks that fit; ids 0 .. num_blocks - 1."""

    @property
    def vocab_size(self) -> int:
        """Ids that have a logit."""

    def forward(self, plan: StepPlan) -> None:
        """Launches the forward pass of a plan."""

    def sample(self, plan: StepPlan, mask: SampleMask | None) -> PendingResult:
        """Launches sampling from the logits of the last forward pass."""
