"""What requests are told: refusals, ends, deadlines, queue positions, failures."""

import pytest

from engine.engine import EngineStepError
from engine.request import FinishReason, RequestSpec, SamplingParams, TokenLogprobs
from tests.support.engines import ManualClock, expected_tokens, make_engine, make_spec, run

pytestmark = pytest.mark.parametrize("depth", [0, 1])


@pytest.mark.parametrize(
    ("spec", "reason", "metadata"),
    [
        (make_spec("a", [], 1), "INVALID_FIELD", {"field": "prompt_ids"}),
        (make_spec("a", [97], 1), "INVALID_FIELD", {"field": "prompt_ids"}),
        (make_spec("a", [-1], 1), "INVALID_FIELD", {"field": "prompt_ids"}),
        (make_spec("a", [1], 0), "INVALID_FIELD", {"field": "max_tokens"}),
        (
            make_spec("a", [1] * 40, 5),
            "CONTEXT_LENGTH_EXCEEDED",
            {"max_model_len": "40", "prompt_tokens": "40", "requested_tokens": "45"},
        ),
        (
            make_spec("a", [1] * 33, 5),
            "KV_CACHE_TOO_SMALL",
            {
                "needed_blocks": "9",
                "total_blocks": "8",
                "block_size": "4",
                "prompt_tokens": "33",
            },
        ),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_the_numbers(
    depth: int, spec: RequestSpec, reason: str, metadata: dict[str, str]
) -> None:
    engine, runner = make_engine(blocks=8, max_model_len=40, depth=depth)
    transcript = run(engine, [spec])
    error = transcript.last("a").error
    assert error is not None
    assert (error.reason, dict(error.metadata)) == (reason, metadata)
    assert runner.plans == []


@pytest.mark.parametrize("bounds", [{"max_waiting_requests": 1}, {"max_waiting_tokens": 9}])
def test_a_full_queue_refuses_and_says_when_to_retry(depth: int, bounds: dict[str, int]) -> None:
    engine, _ = make_engine(max_num_seqs=1, depth=depth, **bounds)
    engine.add(make_spec("running", [1] * 5, 9))
    engine.step()
    engine.add(make_spec("waiting", [1] * 5, 1))
    transcript = run(engine, [make_spec("refused", [1] * 5, 1)])
    error = transcript.last("refused").error
    assert error is not None
    assert error.reason == "QUEUE_FULL"
    assert float(dict(error.metadata)["retry_after_seconds"]) >= 1.0
    assert transcript.reason("waiting") is FinishReason.LENGTH


def test_a_stop_token_is_delivered_and_wins_over_the_limit(depth: int) -> None:
    free = expected_tokens(make_spec("free", [1, 2], 5))
    engine, _ = make_engine(depth=depth)
    transcript = run(engine, [make_spec("a", [1, 2], 5, stop_token_ids=(free[-1],))])
    assert transcript.tokens("a") == free
    assert transcript.last("a").finish_reason is FinishReason.STOP
    assert transcript.last("a").stop_token_id == free[-1]


def test_no_stop_token_is_drawn_before_min_tokens(depth: int) -> None:
    free = expected_tokens(make_spec("free", [1, 2], 5))
    spec = make_spec("a", [1, 2], 8, stop_token_ids=(free[1],), min_tokens=4)
    engine, _ = make_engine(depth=depth)
    tokens = run(engine, [spec]).tokens("a")
    assert free[1] not in tokens[:4]
    assert tokens == expected_tokens(spec)


def test_the_context_bounds_the_answer(depth: int) -> None:
    engine, _ = make_engine(max_model_len=10, depth=depth)
    spec = make_spec("a", range(6), 100)
    transcript = run(engine, [spec])
    assert transcript.reason("a") is FinishReason.LENGTH
    assert transcript.tokens("a") == expected_tokens(spec, 4)


def test_penalties_see_every_token_so_far(depth: int) -> None:
    # The fake draws from what the plan says was seen.
    params = SamplingParams(temperature=0.0, presence_penalty=0.5)
    spec = make_spec("a", range(6), 9, sampling=params)
    engine, _ = make_engine(depth=depth)
    assert run(engine, [spec]).tokens("a") == expected_tokens(spec)


def test_logprobs_come_with_their_tokens_when_asked_for(depth: int) -> None:
    params = SamplingParams(temperature=0.0, logprobs=0)
    engine, _ = make_engine(depth=depth)
    transcript = run(
        engine, [make_spec("a", [1, 2], 4, sampling=params), make_spec("b", [1, 2], 4)]
    )
    logprobs = [entry for o in transcript.outputs["a"] for entry in o.logprobs]
    assert logprobs == [TokenLogprobs(-1.0 - t / 1000) for t in transcript.tokens("a")]
    assert all(o.logprobs == () for o in transcript.outputs["b"])


def test_an_abort_frees_the_blocks_and_says_nothing(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    engine.add(make_spec("a", range(9), 50))
    engine.step()
    assert engine.load().kv_blocks_used > 0
    engine.abort(["a", "unknown"])
    engine.abort(["a"])
    assert engine.step() == []
    assert (engine.load().kv_blocks_used, engine.has_work) == (0, False)


def test_an_abort_during_the_forward_pass_counts_in_that_step(depth: int) -> None:
    engine, runner = make_engine(depth=depth)
    forward = runner.forward

    def aborting(plan) -> None:
        forward(plan)
        engine.abort(["a"])

    runner.forward = aborting
    engine.add(make_spec("a", range(9), 50))
    assert engine.step() == []
    engine.step()
    assert (engine.load().kv_blocks_used, engine.has_work) == (0, False)


def test_an_aborted_id_can_be_used_again_at_once(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    engine.add(make_spec("a", [1, 2], 50))
    engine.step()
    with pytest.raises(ValueError, match="already in the engine"):
        engine.add(make_spec("a", [3, 4], 2))
    engine.abort(["a"])
    again = make_spec("a", [3, 4], 2)
    assert run(engine, [again]).tokens("a") == expected_tokens(again)


def test_an_ended_request_delivers_what_it_has(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    spec = make_spec("a", [1, 2], 50)
    engine.add(spec)
    tokens = [t for _ in range(4) for o in engine.step() for t in o.token_ids]
    engine.end(["a", "unknown"])
    engine.end(["a"])
    transcript = run(engine)
    assert transcript.reason("a") is FinishReason.ENDED
    assert (*tokens, *transcript.tokens("a")) == expected_tokens(spec)[:4][: len(tokens)]


@pytest.mark.parametrize(
    ("field", "reason", "error"),
    [
        ("deadline", FinishReason.ERROR, "DEADLINE_EXCEEDED"),
        ("start_by", FinishReason.ERROR, "QUEUE_TIMEOUT"),
        ("close_at", FinishReason.TIME_LIMIT, None),
    ],
)
def test_a_waiting_request_ends_at_its_time(
    depth: int, field: str, reason: FinishReason, error: str | None
) -> None:
    clock = ManualClock()
    engine, _ = make_engine(max_num_seqs=1, depth=depth, clock=clock)
    engine.add(make_spec("running", [1, 2], 20))
    engine.add(make_spec("a", [3, 4], 5, **{field: 105.0}))
    assert all(o.request_id != "a" for _ in range(3) for o in engine.step())
    clock.now = 105.0
    (output,) = [o for o in engine.step() if o.request_id == "a"]
    assert output.finish_reason is reason
    assert (output.error and output.error.reason) == error
    run(engine)


@pytest.mark.parametrize(
    ("field", "reason"),
    [("deadline", FinishReason.ERROR), ("close_at", FinishReason.TIME_LIMIT)],
)
def test_a_running_request_ends_at_its_time_and_start_by_is_past(
    depth: int, field: str, reason: FinishReason
) -> None:
    clock = ManualClock()
    engine, _ = make_engine(depth=depth, clock=clock)
    spec = make_spec("a", [3, 4], 50, start_by=101.0, **{field: 105.0})
    engine.add(spec)
    first = [o for _ in range(2) for o in engine.step()]
    clock.now = 104.0
    first += engine.step()
    clock.now = 105.0
    transcript = run(engine)
    assert transcript.reason("a") is reason
    tokens = [t for o in first for t in o.token_ids]
    assert len(tokens) == 3 - depth
    assert tuple(tokens) == expected_tokens(spec)[: len(tokens)]


def test_a_waiting_request_hears_its_place_once_a_second(depth: int) -> None:
    clock = ManualClock()
    engine, _ = make_engine(max_num_seqs=1, depth=depth, clock=clock)
    for name in ("a", "b", "c"):
        engine.add(make_spec(name, [1, 2], 8))
    told = []
    for _ in range(6):
        told += [(clock.now, o.request_id, o.queue_position) for o in engine.step()]
        clock.now += 0.5
    assert [entry for entry in told if entry[2] is not None] == [
        (101.0, "b", 1),
        (101.0, "c", 2),
        (102.0, "b", 1),
        (102.0, "c", 2),
    ]
    run(engine)


def test_times_are_measured_from_arrival(depth: int) -> None:
    clock = ManualClock()
    engine, _ = make_engine(depth=depth, clock=clock)
    engine.add(make_spec("a", [1, 2], 3, arrival=97.0))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
        clock.now += 1.0
    stats = outputs[-1].stats
    assert stats is not None
    assert (stats.queue, stats.prefill, stats.decode) == (3.0, depth, 2.0)
    assert stats.first_token == 3.0 + depth
    assert outputs[0].started


def test_a_failing_runner_ends_every_request_and_the_engine_goes_on(depth: int) -> None:
    engine, runner = make_engine(depth=depth, fail_at=3)
    engine.add(make_spec("a", range(9), 50))
    engine.step()
    engine.add(make_spec("b", range(9), 50))
    with pytest.raises(EngineStepError) as failure:
        run(engine)
    ended = {o.request_id: o for o in failure.value.outputs}
    assert set(ended) == {"a", "b"}
    for output in ended.values():
        assert output.finish_reason is FinishReason.ERROR
        assert output.error is not None
        assert output.error.reason == "INTERNAL"
    assert isinstance(failure.value.__cause__, RuntimeError)
    assert (engine.load().kv_blocks_used, engine.has_work) == (0, False)
    engine.check()
    runner._fail_at = None
    spec = make_spec("c", range(9), 5)
    assert run(engine, [spec]).tokens("c") == expected_tokens(spec)
