"""How the engine drives matchers, with a fake one that allows a few token sequences."""

import pytest

from engine.request import FinishReason, SamplingParams
from tests.support.engines import Transcript, expected_tokens, make_engine, make_spec, run
from tests.support.fake_matcher import ChoiceMatcher

pytestmark = pytest.mark.parametrize("depth", [0, 1])


def segments(transcript: Transcript, request_id: str) -> list[int]:
    return [s for output in transcript.outputs[request_id] for s in output.segments]


def test_a_constrained_answer_is_a_choice_and_its_company_is_free(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    free = make_spec("free", [1, 2], 6)
    constrained = make_spec("a", [1, 2], 20)
    transcript = run(engine, [(constrained, ChoiceMatcher([(5, 6, 7), (5, 8)])), free])
    assert transcript.tokens("a") in [(5, 6, 7), (5, 8)]
    assert transcript.reason("a") is FinishReason.STOP
    assert segments(transcript, "a") == list(range(len(transcript.tokens("a"))))
    assert transcript.tokens("free") == expected_tokens(free)
    assert segments(transcript, "free") == []


def test_forced_tokens_are_computed_together_and_without_a_draw(depth: int) -> None:
    engine, runner = make_engine(depth=depth)
    choices = [(5, 6, 7, 8, 9, 10, 1), (5, 6, 7, 8, 9, 10, 2)]
    transcript = run(engine, [(make_spec("a", [1, 2], 20), ChoiceMatcher(choices, forces=True))])
    assert transcript.tokens("a") in choices
    assert transcript.last("a").stats.forced_tokens == 6
    # The prompt, then the six forced tokens at once (at depth 1 nothing runs ahead of them).
    assert [len(plan.input_ids) for plan in runner.plans][:2] == [2, 6]


def test_forced_tokens_count_against_max_tokens(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    matcher = ChoiceMatcher([(5, 6, 7, 8, 9)], forces=True)
    transcript = run(engine, [(make_spec("a", [1, 2], 3), matcher)])
    assert transcript.tokens("a") == (5, 6, 7)
    assert transcript.reason("a") is FinishReason.LENGTH


def test_an_answer_that_is_forced_as_a_whole_still_reports_its_prompt_first(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    matcher = ChoiceMatcher([(5, 6)], forces=True)
    transcript = run(engine, [(make_spec("a", [1, 2], 9), matcher)])
    outputs = transcript.outputs["a"]
    first_tokens = next(i for i, o in enumerate(outputs) if o.token_ids)
    assert any(o.cached_tokens is not None for o in outputs[: first_tokens + 1])
    assert transcript.tokens("a") == (5, 6)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_override_replaces_the_drawn_token_and_what_ran_ahead_of_it(
    depth: int, position: int
) -> None:
    engine, _ = make_engine(depth=depth)
    matcher = ChoiceMatcher([(90, 91, 92, 93, 94)], override_at=position)
    transcript = run(engine, [(make_spec("a", [1, 2, 3], 20), matcher)])
    assert transcript.tokens("a") == (90, 91, 92, 93, 94)
    free = make_spec("b", [1, 2, 3, 90, 91, 92, 93], 3)
    # The cache was filled by the request with the override.
    assert run(engine, [free]).tokens("b") == expected_tokens(free)


def test_only_settled_tokens_are_delivered(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    matcher = ChoiceMatcher([(5, 6, 7, 8)], hold=2)
    engine.add(make_spec("a", [1, 2], 20), matcher)
    delivered = 0
    reasons = []
    while engine.has_work:
        outputs = engine.step()
        delivered += sum(len(o.token_ids) for o in outputs)
        reasons += [o.finish_reason for o in outputs if o.finish_reason]
        if not matcher.terminated:
            assert delivered == max(0, len(matcher.output) - 2)
    assert delivered == 4
    assert reasons == [FinishReason.STOP]


def test_an_answer_is_closed_before_the_budget_runs_out(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    matcher = ChoiceMatcher([(5, *range(10, 40)), (5, 6, 7)], closes=True)
    transcript = run(engine, [(make_spec("a", [1, 2], 4), matcher)])
    assert transcript.tokens("a") == (5, 6, 7)
    assert transcript.reason("a") is FinishReason.LENGTH
    assert transcript.last("a").stats.closing_tokens > 0


def test_an_ended_answer_is_completed(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    choice = tuple(range(10, 30))
    engine.add(make_spec("a", [1, 2], 50), ChoiceMatcher([choice], closes=True))
    tokens = [t for _ in range(5) for o in engine.step() for t in o.token_ids]
    engine.end(["a"])
    transcript = run(engine)
    assert transcript.reason("a") is FinishReason.ENDED
    assert (*tokens, *transcript.tokens("a")) == choice
    assert engine.load().kv_blocks_used == 0


def test_a_failing_matcher_ends_its_own_request_only(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    free = make_spec("free", [1, 2], 9)
    failing = ChoiceMatcher([(5, 6, 7, 8)], fails_at=2)
    transcript = run(engine, [(make_spec("a", [1, 2], 9), failing), free])
    assert transcript.reason("a") is FinishReason.ERROR
    assert transcript.last("a").error.reason == "INTERNAL"
    assert transcript.tokens("a") == (5, 6)
    assert transcript.tokens("free") == expected_tokens(free)


def test_an_empty_mask_ends_its_own_request_only(depth: int) -> None:
    class Stuck(ChoiceMatcher):
        def fill(self, mask, row) -> bool:
            mask[row] = 0
            # A bit beyond the vocabulary of 97 is no token.
            mask[row, -1] = 1 << 5
            return True

    engine, _ = make_engine(depth=depth)
    free = make_spec("free", [1, 2], 4)
    transcript = run(engine, [(make_spec("a", [1, 2], 9), Stuck([(5, 6)])), free])
    assert transcript.last("a").error.reason == "INTERNAL"
    assert transcript.tokens("free") == expected_tokens(free)


def test_known_tokens_keep_their_place_among_the_logprobs(depth: int) -> None:
    engine, _ = make_engine(depth=depth)
    spec = make_spec("a", [1, 2], 20, sampling=SamplingParams(temperature=0.0, logprobs=0))
    matcher = ChoiceMatcher([(5, 6, 7), (5, 6, 8)], forces=True)
    transcript = run(engine, [(spec, matcher)])
    logprobs = [entry.logprob for o in transcript.outputs["a"] for entry in o.logprobs]
    assert logprobs[:2] == [0.0, 0.0]
    assert logprobs[2] == pytest.approx(-1.0 - transcript.tokens("a")[2] / 1000)
