"""Builds engines over the fake runner and runs them to the end."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from engine.config import EngineConfig
from engine.engine import Engine
from engine.matcher import Matcher
from engine.request import FinishReason, RequestOutput, RequestSpec, SamplingParams
from tests.support.fake_runner import FakeRunner, fake_info, rank_tokens

VOCAB_SIZE = 97


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_engine(
    *,
    blocks: int = 64,
    depth: int = 0,
    clock: ManualClock | None = None,
    fail_at: int | None = None,
    **settings: Any,
) -> tuple[Engine, FakeRunner]:
    """An engine and its runner; `settings` go to EngineConfig."""
    defaults: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 32}
    config = EngineConfig("fake:", **{**defaults, "block_size": 4, **settings})
    runner = FakeRunner(blocks, VOCAB_SIZE, config.block_size, fail_at=fail_at)
    info = fake_info(runner, config)
    return Engine(runner, config, info, depth=depth, clock=clock or ManualClock()), runner


def make_spec(
    request_id: str, prompt: Iterable[int], max_tokens: int, **fields: Any
) -> RequestSpec:
    """A greedy request."""
    fields.setdefault("sampling", SamplingParams(temperature=0.0))
    return RequestSpec(request_id, tuple(prompt), max_tokens=max_tokens, **fields)


def expected_tokens(spec: RequestSpec, limit: int | None = None) -> tuple[int, ...]:
    """The output of an unconstrained request alone, by the definition of the fake model."""
    output: list[int] = []
    for position in range(spec.max_tokens if limit is None else min(limit, spec.max_tokens)):
        banned = spec.stop_token_ids if position < spec.min_tokens else ()
        ranked = rank_tokens([*spec.prompt_ids, *output], VOCAB_SIZE)
        output.append(next(token for token in ranked if token not in banned))
        if output[-1] in spec.stop_token_ids:
            break
    return tuple(output)


class Transcript:
    """Everything that requests were told, by request."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[RequestOutput]] = defaultdict(list)

    def add(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            assert self.reason(output.request_id) is None, "an output after the last one"
            self.outputs[output.request_id].append(output)

    def tokens(self, request_id: str) -> tuple[int, ...]:
        return tuple(t for output in self.outputs[request_id] for t in output.token_ids)

    def last(self, request_id: str) -> RequestOutput:
        return self.outputs[request_id][-1]

    def reason(self, request_id: str) -> FinishReason | None:
        outputs = self.outputs[request_id]
        return outputs[-1].finish_reason if outputs else None


def run(
    engine: Engine, requests: Iterable[RequestSpec | tuple[RequestSpec, Matcher]] = ()
) -> Transcript:
    """Adds requests and steps until nothing is left, checking the invariants after each step."""
    for request in requests:
        engine.add(*request) if isinstance(request, tuple) else engine.add(request)
    transcript = Transcript()
    for _ in range(2000):
        if not engine.has_work:
            return transcript
        transcript.add(engine.step())
        engine.check()
    raise AssertionError("the engine does not come to an end")
