"""What each step computes: chunks, prefix hits, admission, preemption, order."""

import pytest

from engine.plan import LAST_SAMPLED
from engine.request import FinishReason, Priority
from tests.support.engines import expected_tokens, make_engine, make_spec, run


def lengths(runner, step: int) -> list[int]:
    """Tokens per row of a plan."""
    start = runner.plans[step].query_start
    return (start[1:] - start[:-1]).tolist()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_long_prompt_is_computed_in_chunks_beside_decoding(depth: int) -> None:
    engine, runner = make_engine(depth=depth, max_num_batched_tokens=8, max_num_seqs=2)
    engine.add(make_spec("short", [1, 2], 12))
    engine.step()
    long = make_spec("long", range(20), 2)
    transcript = run(engine, [long])
    assert [lengths(runner, step) for step in range(1, 4)] == [[1, 7], [1, 7], [1, 6]]
    assert transcript.tokens("long") == expected_tokens(long)


def test_a_step_with_one_in_flight_names_the_token_that_only_the_runner_knows() -> None:
    engine, runner = make_engine(depth=1)
    run(engine, [make_spec("a", [1, 2, 3], 3)])
    assert [plan.input_ids.tolist() for plan in runner.plans] == [
        [1, 2, 3],
        [LAST_SAMPLED],
        [LAST_SAMPLED],
    ]


def test_a_request_that_will_reach_its_limit_is_not_scheduled_again() -> None:
    engine, runner = make_engine(depth=1)
    run(engine, [make_spec("a", [1, 2, 3], 1)])
    assert len(runner.plans) == 1


def test_a_finish_found_one_step_late_drops_the_extra_token() -> None:
    free = expected_tokens(make_spec("free", [1, 2, 3], 8))
    spec = make_spec("a", [1, 2, 3], 8, stop_token_ids=(free[2],))
    engine, runner = make_engine(depth=1)
    transcript = run(engine, [spec])
    assert transcript.tokens("a") == free[:3]
    assert len(runner.plans) == 4
    assert engine.load().kv_blocks_used == 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8)]
)
def test_a_prefix_hit_leaves_at_least_one_token_to_compute(
    depth: int, length: int, cached: int
) -> None:
    engine, _ = make_engine(depth=depth)
    run(engine, [make_spec("first", range(30), 1)])
    second = make_spec("second", range(length), 4)
    transcript = run(engine, [second])
    reported = [o.cached_tokens for o in transcript.outputs["second"]]
    assert [value for value in reported if value is not None] == [cached]
    assert transcript.tokens("second") == expected_tokens(second)
    assert engine.load().cached_tokens == cached


@pytest.mark.parametrize(
    "fields", [{"salt": b"other"}, {"bypass_prefix_cache": True}], ids=["salt", "bypass"]
)
def test_another_salt_or_a_bypass_hits_nothing(fields: dict[str, object]) -> None:
    engine, _ = make_engine()
    run(engine, [make_spec("first", range(30), 1)])
    run(engine, [make_spec("second", range(30), 1, **fields)])
    assert engine.load().cached_tokens == 0


def test_a_bypassing_request_leaves_nothing_behind() -> None:
    engine, _ = make_engine()
    run(engine, [make_spec("first", range(30), 1, bypass_prefix_cache=True)])
    assert engine.reset_prefix_cache() == 0


def test_the_answer_is_cached_for_the_next_turn() -> None:
    engine, _ = make_engine()
    first = make_spec("first", range(10), 10)
    answer = run(engine, [first]).tokens("first")
    run(engine, [make_spec("second", [*range(10), *answer, 5], 1)])
    # 19 of the 20 tokens were computed, which are 4 full blocks of 4.
    assert engine.load().cached_tokens == 16


@pytest.mark.parametrize("depth", [0, 1])
def test_preemption_takes_the_last_request_and_changes_no_token(depth: int) -> None:
    engine, _ = make_engine(blocks=12, depth=depth, enable_prefix_caching=False)
    specs = [make_spec(f"r{i}", range(i, i + 12), 24) for i in range(3)]
    transcript = run(engine, specs)
    for spec in specs:
        assert transcript.tokens(spec.request_id) == expected_tokens(spec)
    assert engine.load().preemptions > 0
    assert transcript.last("r0").stats.preemptions == 0
    assert transcript.last("r2").stats.preemptions > 0
    assert transcript.last("r2").stats.recomputed_tokens > 0
    assert sum(o.started for o in transcript.outputs["r2"]) == 1


@pytest.mark.parametrize("depth", [0, 1])
def test_a_lone_request_that_cannot_grow_ends_with_length(depth: int) -> None:
    engine, _ = make_engine(blocks=4, depth=depth)
    spec = make_spec("a", range(6), 100)
    transcript = run(engine, [spec])
    assert transcript.reason("a") is FinishReason.LENGTH
    # 16 tokens have room, and the last one drawn needs none.
    assert transcript.tokens("a") == expected_tokens(spec, 11)


@pytest.mark.parametrize(("num_prompt", "starts"), [(20, True), (21, False)])
def test_admission_leaves_a_watermark_beside_the_whole_prompt(
    num_prompt: int, starts: bool
) -> None:
    engine, _ = make_engine(blocks=11)
    engine.add(make_spec("a", range(16), 9))
    engine.step()
    # The running request has taken its fifth block: 6 are free, of which one is kept for it.
    engine.add(make_spec("b", range(50, 50 + num_prompt), 1))
    engine.step()
    assert engine.load().prompt_tokens == 16 + starts * num_prompt
    run(engine)


def test_waiting_requests_start_by_class_and_then_by_arrival() -> None:
    engine, _ = make_engine(max_num_seqs=1)
    order = [
        ("batch", Priority.BATCH),
        ("first", Priority.STANDARD),
        ("second", Priority.STANDARD),
        ("urgent", Priority.INTERACTIVE),
    ]
    for name, priority in order:
        engine.add(make_spec(name, [1, 2], 2, priority=priority))
    finished = []
    while engine.has_work:
        finished += [o.request_id for o in engine.step() if o.finish_reason]
    assert finished == ["urgent", "first", "second", "batch"]


def test_blocks_of_a_step_in_flight_are_kept_until_its_result() -> None:
    engine, _ = make_engine(depth=1, enable_prefix_caching=False)
    engine.add(make_spec("a", range(8), 50))
    engine.step()
    engine.step()
    engine.abort(["a"])
    assert engine.has_work
    assert engine.step() == []
    assert engine.load().kv_blocks_used == 0
    assert not engine.has_work
