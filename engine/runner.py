"""Runs plans in this process: owns the weights, the KV cache and the last sampled tokens."""

from typing import Any

import numpy as np
import torch

from engine.attention.backend import AttentionBackend
from engine.models.decoder import Decoder
from engine.plan import Int32Array, SampleMask, StepPlan, StepResult
from engine.sampling.sampler import Sampler


class FinishedResult:
    """A result that is already on the host."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def wait(self) -> StepResult:
        return self._result


class CpuRunner:
    """A Runner without overlap: forward and sample return when they are done.

    It runs on any torch device; `max_num_seqs` bounds the slots of a plan.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend[Any],
        sampler: Sampler,
        num_blocks: int,
        max_num_seqs: int,
        device: torch.device,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._sampler = sampler
        self._device = device
        self._num_blocks = num_blocks
        self._last_sampled: Int32Array = np.zeros(max_num_seqs, dtype=np.int32)
        self._logits: torch.Tensor | None = None
        attention.allocate(num_blocks)

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def vocab_size(self) -> int:
        return self._sampler.vocab_size

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        """Computes the logits [S, vocab_size] of the plan's sampling rows and keeps them."""
        ids = self._resolve(plan)
        metadata = self._attention.prepare(plan)
        wanted = plan.query_start[plan.sample_rows + 1] - 1
        self._logits = self._decoder.forward(
            self._to_device(ids), self._to_device(plan.positions), metadata, self._to_device(wanted)
        )

    @torch.inference_mode()
    def sample(self, plan: StepPlan, mask: SampleMask | None) -> FinishedResult:
        assert self._logits is not None, "sample needs a forward pass"
        logits, self._logits = self._logits, None
        if len(plan.sample_rows) == 0:
            return FinishedResult(StepResult(np.zeros(0, dtype=np.int32), ()))
        token_ids, logprobs = self._sampler.sample(logits, plan.sampling, mask)
        self._last_sampled[plan.slots[plan.sample_rows]] = token_ids
        return FinishedResult(StepResult(token_ids, logprobs))

    def _resolve(self, plan: StepPlan) -> Int32Array:
        """The plan's ids with LAST_SAMPLED replaced."""
        unknown = plan.input_ids < 0
        if not unknown.any():
            return plan.input_ids
        slot_of_token = np.repeat(plan.slots, np.diff(plan.query_start))
        return np.where(unknown, self._last_sampled[slot_of_token], plan.input_ids)

    def _to_device(self, array: Int32Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
