"""Random adds, aborts, ends and steps over tiny caches: tokens never depend on the company."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.engine import Engine
from engine.request import FinishReason, RequestSpec, SamplingParams
from tests.support.engines import VOCAB_SIZE, Transcript, expected_tokens, make_engine, make_spec
from tests.support.fake_matcher import ChoiceMatcher
from tests.support.fake_runner import FakeRunner, rank_tokens

BUDGET = 12
MAX_MODEL_LEN = 40
CHOICES = ((1, 2, 3, 4, 5, 6), (1, 2, 9), (7, 8))


@dataclass
class Added:
    """A request as it was added."""

    spec: RequestSpec
    is_constrained: bool
    override_at: int | None = None
    is_ended: bool = False


def expected_choice(added: Added) -> tuple[int, ...]:
    """The choice that the fake model takes when nothing cuts it short."""
    output: tuple[int, ...] = ()
    while output not in CHOICES:
        following = {c[len(output)] for c in CHOICES if c[: len(output)] == output}
        ranked = rank_tokens([*added.spec.prompt_ids, *output], VOCAB_SIZE)
        if len(output) == added.override_at:
            output += (ranked[0] if ranked[0] in following else min(following),)
        else:
            output += (next(token for token in ranked if token in following),)
    return output


class EngineMachine(RuleBasedStateMachine):
    depth = 0

    @initialize(blocks=st.integers(10, 16), caching=st.booleans(), rows=st.integers(2, 5))
    def build(self, blocks: int, caching: bool, rows: int) -> None:
        # 10 blocks of 4 hold one request of MAX_MODEL_LEN tokens, and little besides.
        self.engine: Engine
        self.runner: FakeRunner
        self.engine, self.runner = make_engine(
            blocks=blocks,
            depth=self.depth,
            max_num_seqs=rows,
            max_num_batched_tokens=BUDGET,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=caching,
        )
        self.added: dict[str, Added] = {}
        self.aborted: set[str] = set()
        self.transcript = Transcript()

    @rule(
        length=st.integers(1, 34),
        family=st.integers(0, 1),
        max_tokens=st.integers(1, 24),
        salt=st.sampled_from((b"", b"a")),
        stops=st.sampled_from(((), tuple(range(0, VOCAB_SIZE, 9)))),
        min_tokens=st.integers(0, 4),
        penalty=st.sampled_from((0.0, 1.0)),
    )
    def add(self, length, family, max_tokens, salt, stops, min_tokens, penalty) -> None:
        # Prompts of one family are prefixes of each other.
        spec = make_spec(
            f"r{len(self.added)}",
            [(family + 3 * index) % VOCAB_SIZE for index in range(length)],
            max_tokens,
            salt=salt,
            stop_token_ids=stops,
            min_tokens=min_tokens,
            sampling=SamplingParams(temperature=0.0, presence_penalty=penalty),
        )
        self.added[spec.request_id] = Added(spec, is_constrained=False)
        self.engine.add(spec)

    @rule(
        length=st.integers(1, 30),
        forces=st.booleans(),
        hold=st.integers(0, 2),
        override_at=st.none() | st.integers(0, 4),
    )
    def add_constrained(self, length, forces, hold, override_at) -> None:
        prompt = [(5 + 3 * index) % VOCAB_SIZE for index in range(length)]
        spec = make_spec(f"r{len(self.added)}", prompt, 10)
        self.added[spec.request_id] = Added(
            spec, is_constrained=True, override_at=None if forces else override_at
        )
        matcher = ChoiceMatcher(
            CHOICES, forces=forces, hold=hold, override_at=None if forces else override_at
        )
        self.engine.add(spec, matcher)

    @precondition(lambda self: self.added)
    @rule(pick=st.randoms(use_true_random=False))
    def abort(self, pick) -> None:
        request_id = pick.choice(sorted(self.added))
        if self.transcript.reason(request_id) is None:
            self.aborted.add(request_id)
        self.engine.abort([request_id, request_id, "unknown"])

    @precondition(lambda self: self.added)
    @rule(pick=st.randoms(use_true_random=False))
    def end(self, pick) -> None:
        request_id = pick.choice(sorted(self.added))
        self.added[request_id].is_ended = True
        self.engine.end([request_id])

    @rule()
    def reset_cache(self) -> None:
        self.engine.reset_prefix_cache()

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        num_plans = len(self.runner.plans)
        outputs = self.engine.step()
        assert not self.aborted & {output.request_id for output in outputs}
        self.transcript.add(outputs)
        self.engine.check()
        for plan in self.runner.plans[num_plans:]:
            assert len(plan.input_ids) <= BUDGET
        self.check_cache()
        for output in outputs:
            if output.finish_reason is not None:
                self.check_answer(output.request_id, output.finish_reason)

    def check_cache(self) -> None:
        """Looks behind the engine: what is cached is there, what is free may be overwritten."""
        pool = self.engine._scheduler.pool
        for block_id in range(pool.num_total):
            cached = pool.cached_tokens(block_id)
            assert cached is None or cached == self.runner.read(block_id)
        free = pool.free_ids()
        for step in self.engine._in_flight:
            plan = step.step.plan
            for length, table in zip(plan.seq_lens, plan.block_tables[0], strict=True):
                assert not set(table[: pool.blocks_for(int(length))].tolist()) & set(free)
        self.runner.poison(b for b in free if pool.cached_tokens(b) is None)

    def check_answer(self, request_id: str, reason: FinishReason) -> None:
        added = self.added[request_id]
        spec, tokens = added.spec, self.transcript.tokens(request_id)
        if added.is_constrained:
            expected = expected_choice(added)
        else:
            expected = expected_tokens(spec, MAX_MODEL_LEN - len(spec.prompt_ids))
        if reason is FinishReason.ENDED:
            assert added.is_ended
            assert tokens == expected[: len(tokens)]
            return
        is_stop = added.is_constrained or tokens[-1] in spec.stop_token_ids
        assert reason is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
        assert tokens == expected

    @invariant()
    def blocks_add_up(self) -> None:
        load = self.engine.load()
        assert 0 <= load.kv_blocks_used <= load.kv_blocks_total

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        num_tokens = sum(len(a.spec.prompt_ids) + a.spec.max_tokens for a in self.added.values())
        for _ in range(50 + 4 * num_tokens):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "requests starve"
        assert self.engine.load().kv_blocks_used == 0
        for request_id in self.added:
            is_told = self.transcript.reason(request_id) is not None
            assert is_told != (request_id in self.aborted)


class OverlappedEngineMachine(EngineMachine):
    depth = 1


@pytest.mark.parametrize("machine", [EngineMachine, OverlappedEngineMachine])
def test_tokens_do_not_depend_on_company(machine: type[EngineMachine]) -> None:
    case = machine.TestCase()
    case.settings = settings(
        max_examples=120,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    case.runTest()
