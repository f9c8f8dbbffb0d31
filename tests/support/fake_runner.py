"""A runner without a model: the next token is a hash of the whole context.

The context is read back from a simulated KV cache through the block tables, so that any mistake in
scheduling, block tables or reuse of blocks changes tokens. Work is queued and runs in order when a
result is waited for, as on a device.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from hashlib import blake2b

import numpy as np

from engine.build import Progress
from engine.config import EngineConfig, EngineInfo
from engine.engine import Engine
from engine.plan import LAST_SAMPLED, RowSampling, SampleMask, StepPlan, StepResult
from engine.request import TokenLogprobs

POISON = -7


def next_token(context: Iterable[int], vocab_size: int) -> int:
    """The token that the fake model puts after a context."""
    data = ",".join(map(str, context)).encode()
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") % vocab_size


def rank_tokens(context: Iterable[int], vocab_size: int) -> list[int]:
    """All tokens, best first: the next token and those after it, round the vocabulary."""
    best = next_token(context, vocab_size)
    return [(best + step) % vocab_size for step in range(vocab_size)]


class FakePending:
    """A queued sample; waiting runs the queue up to it."""

    def __init__(self, runner: "FakeRunner") -> None:
        self._runner = runner
        self.result: StepResult | None = None

    def wait(self) -> StepResult:
        self._runner.run_until(self)
        assert self.result is not None
        return self.result


class FakeRunner:
    """Implements engine.plan.Runner over `num_blocks` blocks of token ids.

    step_seconds: delay of each forward pass. fail_at: number of the step that raises.
    """

    def __init__(
        self,
        num_blocks: int,
        vocab_size: int,
        block_size: int,
        *,
        step_seconds: float = 0.0,
        fail_at: int | None = None,
    ) -> None:
        self._cache = np.full((num_blocks, block_size), POISON, dtype=np.int64)
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._step_seconds = step_seconds
        self._fail_at = fail_at
        self._queue: deque[Callable[[], object]] = deque()
        self._last_sampled: dict[int, int] = {}
        self._contexts: list[list[int]] = []
        self.plans: list[StepPlan] = []

    @property
    def num_blocks(self) -> int:
        return len(self._cache)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def forward(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        if self._fail_at is not None and plan.step >= self._fail_at:
            raise RuntimeError("the fake runner was told to fail")
        self._check_writes(plan)
        self._queue.append(lambda: self._forward(plan))
        if not plan.sampling:
            # Nobody will wait for this step.
            while self._queue:
                self._queue.popleft()()
        if self._step_seconds:
            time.sleep(self._step_seconds)

    def sample(self, plan: StepPlan, mask: SampleMask | None) -> FakePending:
        assert len(plan.sample_rows) == len(plan.sampling) > 0
        pending = FakePending(self)

        def work() -> FakePending:
            pending.result = self._sample(plan, mask)
            return pending

        self._queue.append(work)
        return pending

    def run_until(self, pending: FakePending) -> None:
        while pending.result is None:
            self._queue.popleft()()

    def poison(self, block_ids: Iterable[int]) -> None:
        """Overwrites blocks that hold nothing of use."""
        self._cache[list(block_ids)] = POISON

    def read(self, block_id: int) -> tuple[int, ...]:
        """What a block holds after the work that has run so far."""
        return tuple(self._cache[block_id].tolist())

    def _forward(self, plan: StepPlan) -> None:
        assert not plan.copy_blocks
        self._contexts = []
        for row in range(len(plan.slots)):
            start, end = plan.query_start[row], plan.query_start[row + 1]
            table = plan.block_tables[0][row]
            for token, position in zip(
                plan.input_ids[start:end], plan.positions[start:end], strict=True
            ):
                if token == LAST_SAMPLED:
                    token = self._last_sampled[int(plan.slots[row])]
                block = table[position // self._block_size]
                self._cache[block, position % self._block_size] = token
            length = int(plan.seq_lens[row])
            positions = np.arange(length)
            context = self._cache[
                table[positions // self._block_size], positions % self._block_size
            ].tolist()
            self._contexts.append(context)

    def _sample(self, plan: StepPlan, mask: SampleMask | None) -> StepResult:
        tokens, logprobs = [], []
        for index, (row, sampling) in enumerate(zip(plan.sample_rows, plan.sampling, strict=True)):
            token = self._draw(self._contexts[row], sampling, _allowed(mask, index))
            self._last_sampled[int(plan.slots[row])] = token
            tokens.append(token)
            wanted = sampling.params.logprobs
            logprobs.append(None if wanted is None else TokenLogprobs(-1.0 - token / 1000))
        return StepResult(np.array(tokens, dtype=np.int32), tuple(logprobs))

    def _draw(
        self, context: list[int], sampling: RowSampling, allowed: Callable[[int], bool]
    ) -> int:
        if sampling.params.has_penalties:
            # Drawn from what the plan says was seen, so that stale penalties change tokens.
            assert sampling.prompt_ids is not None
            assert sampling.output_ids is not None
            context = [*sampling.prompt_ids.tolist(), *sampling.output_ids.tolist()]
        ranked = rank_tokens(context, self._vocab_size)
        legal = [token for token in ranked if allowed(token)]
        assert legal, "an empty mask reached the runner"
        unbanned = [token for token in legal if token not in sampling.banned_ids]
        return (unbanned or legal)[0]

    def _check_writes(self, plan: StepPlan) -> None:
        """No two rows write into one block."""
        writers: dict[int, int] = {}
        for row in range(len(plan.slots)):
            start, end = plan.query_start[row], plan.query_start[row + 1]
            assert start < end, "a row without tokens"
            assert plan.positions[end - 1] + 1 == plan.seq_lens[row]
            for index in np.unique(plan.positions[start:end] // self._block_size):
                block = int(plan.block_tables[0][row, index])
                assert writers.setdefault(block, row) == row, "two rows write into one block"


def _allowed(mask: SampleMask | None, index: int) -> Callable[[int], bool]:
    if mask is None or not mask.constrained[index]:
        return lambda token: True
    row = mask.bitmask[index]
    return lambda token: bool((int(row[token // 32]) >> (token % 32)) & 1)


def build_fake_engine(config: EngineConfig, progress: Progress) -> Engine:
    """Builds an engine over a fake runner, as an engine factory's target.

    Options follow "fake:" in config.model_path, for example "fake:steps=0.01,blocks=64":
    steps (seconds per step), blocks, vocab, depth, fail_at (number of the step that raises),
    load_error (1: loading raises).
    """
    options = _options(config.model_path)
    progress("loading weights", 0.5)
    if options.get("load_error"):
        raise ValueError("the fake model cannot be loaded")
    vocab_size = int(options.get("vocab", 256))
    runner = FakeRunner(
        int(options.get("blocks", 256)),
        vocab_size,
        config.block_size,
        step_seconds=float(options.get("steps", 0.0)),
        fail_at=int(options["fail_at"]) if "fail_at" in options else None,
    )
    progress("ready", 1.0)
    info = fake_info(runner, config)
    return Engine(runner, config, info, depth=int(options.get("depth", 0)))


def fake_info(runner: FakeRunner, config: EngineConfig) -> EngineInfo:
    """Facts of the fake model."""
    return EngineInfo(
        family="fake",
        num_parameters=1,
        device="cpu",
        dtype="float32",
        quantization="none",
        max_model_len=config.max_model_len or 2048,
        vocab_size=runner.vocab_size,
        num_blocks=runner.num_blocks,
        block_size=config.block_size,
        fingerprint="fake",
    )


def _options(model_path: str) -> dict[str, str]:
    text = model_path.removeprefix("fake:")
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)
