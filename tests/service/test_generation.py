"""A generation by itself, with a clock and an engine that the test moves."""

from collections.abc import Sequence

import pytest

from engine.request import (
    FinishReason,
    RequestOutput,
    RequestSpec,
    SamplingParams,
)
from service import events
from service.engine_client import EngineRequest, OutputListener
from service.errors import ServiceError
from service.generation import Generation, Launch
from service.metrics import ServiceMetrics
from service.options import OutputChoice, StopChoice
from service.output_stream import OutputStream
from tests.support.byte_tokenizer import byte_tokenizer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ListeningEngine:
    """Keeps the listener, so that the test can say what the engine did."""

    def __init__(self) -> None:
        self.listener: OutputListener | None = None
        self.aborted: list[str] = []

    def submit(self, requests: Sequence[EngineRequest], listener: OutputListener) -> None:
        self.listener = listener

    def abort(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids

    def tell(self, **fields: object) -> None:
        assert self.listener is not None
        self.listener([RequestOutput("e", **fields)])


class Scene:
    """One launched generation of one output."""

    def __init__(self, stop: StopChoice | None = None) -> None:
        self.clock = Clock()
        self.engine = ListeningEngine()
        self.metrics = ServiceMetrics()
        self.generation = Generation("g", self.metrics, self.clock, stall_seconds=60)
        sampling = SamplingParams()
        started = events.started(
            request_id="g",
            model="m",
            fingerprint="f",
            resolved=events.resolved_sampling(sampling, 1),
            max_tokens=10,
            prompt_ids=(3,),
            with_prompt_ids=False,
        )
        stream = OutputStream(0, byte_tokenizer(), stop or StopChoice(), OutputChoice())
        request = EngineRequest(RequestSpec("e", (3,), sampling, 10))
        self.generation.launch(Launch(self.engine, [request], [stream], started, 1))

    async def kinds(self) -> list[str]:
        batch = await self.generation.next_events()
        assert batch is not None
        return [str(event.WhichOneof("event")) for event in batch]


TOKEN = byte_tokenizer().encode("a", add_special_tokens=False, parse_special=False)[0]


async def test_all_that_has_come_is_taken_at_once() -> None:
    scene = Scene()
    scene.engine.tell(started=True)
    scene.engine.tell(cached_tokens=0, token_ids=(TOKEN,))
    scene.engine.tell(token_ids=(TOKEN, TOKEN))
    scene.engine.tell(finish_reason=FinishReason.LENGTH)
    assert await scene.kinds() == [
        "started",
        "prompt_processed",
        "text",
        "output_finished",
        "finished",
    ]
    assert await scene.generation.next_events() is None


async def test_a_waiting_request_is_told_its_place_after_a_second_and_once_a_second() -> None:
    scene = Scene()
    scene.engine.tell(queue_position=3, estimated_wait=2.0)
    scene.clock.now += 1.0
    assert await scene.kinds() == ["queued"]
    scene.engine.tell(queue_position=2)
    scene.engine.tell(queue_position=1)
    scene.clock.now += 1.0
    (event,) = await scene.generation.next_events() or ()
    assert event.queued.position == 0
    assert not event.queued.HasField("estimated_start")


async def test_a_place_that_was_known_too_early_is_told_when_its_time_has_come() -> None:
    scene = Scene()
    scene.engine.tell(queue_position=3)
    scene.clock.now += 0.999  # the reader must wake by itself for the rest of the second
    waiting = scene.kinds()
    original, scene.clock.now = scene.clock.now, scene.clock.now

    def moving() -> float:
        scene.clock.now += 0.01
        return scene.clock.now

    scene.generation._clock = moving
    assert await waiting == ["queued"]
    assert scene.clock.now > original


async def test_a_request_that_starts_within_a_second_is_never_told_its_place() -> None:
    scene = Scene()
    scene.engine.tell(queue_position=3)
    scene.engine.tell(started=True)
    scene.clock.now += 5
    assert await scene.kinds() == ["started"]


async def test_an_unread_stream_is_dropped_after_a_minute() -> None:
    scene = Scene()
    scene.engine.tell(started=True, cached_tokens=0, token_ids=(TOKEN,))
    await scene.kinds()
    scene.engine.tell(token_ids=(TOKEN,))
    scene.clock.now += 60
    scene.engine.tell(token_ids=(TOKEN,))
    assert scene.engine.aborted == []
    scene.clock.now += 0.1
    scene.engine.tell(token_ids=(TOKEN,))
    assert scene.engine.aborted == ["e"]
    with pytest.raises(ServiceError) as caught:
        await scene.generation.next_events()
    assert caught.value.reason == "SLOW_READER"
    assert caught.value.failure is not None
    assert caught.value.failure.usage.output_tokens == 1


async def test_a_read_stream_may_last_for_hours() -> None:
    scene = Scene()
    scene.engine.tell(started=True, cached_tokens=0, token_ids=(TOKEN,))
    for _ in range(100):
        await scene.generation.next_events()
        scene.clock.now += 59
        scene.engine.tell(token_ids=(TOKEN,))
    assert scene.engine.aborted == []


async def test_a_failure_before_the_first_message_has_no_progress() -> None:
    scene = Scene()
    scene.engine.tell(started=True, cached_tokens=0, token_ids=(TOKEN,))
    scene.generation.fail(ServiceError("DRAINING", "drain"))
    with pytest.raises(ServiceError) as caught:
        await scene.generation.next_events()
    assert caught.value.failure is None


async def test_the_tokens_before_an_error_are_delivered_once_the_stream_has_begun() -> None:
    scene = Scene()
    scene.engine.tell(started=True)
    await scene.kinds()
    scene.engine.tell(cached_tokens=0, token_ids=(TOKEN,))
    scene.engine.tell(finish_reason=FinishReason.ABORTED)
    assert await scene.kinds() == ["prompt_processed", "text"]
    with pytest.raises(ServiceError) as caught:
        await scene.generation.next_events()
    assert caught.value.reason == "ABORTED_BY_OPERATOR"
    assert caught.value.failure is not None
    assert not caught.value.failure.resumable


async def test_closing_is_idempotent_and_aborts_once() -> None:
    scene = Scene()
    scene.generation.close()
    scene.generation.close()
    scene.engine.tell(token_ids=(TOKEN,))
    assert scene.engine.aborted == ["e"]


async def test_an_output_after_the_stop_string_is_dropped() -> None:
    scene = Scene(StopChoice(stop_strings=("a",)))
    scene.engine.tell(started=True, cached_tokens=0, token_ids=(TOKEN, TOKEN))
    scene.engine.tell(token_ids=(TOKEN,), finish_reason=FinishReason.LENGTH)
    assert (await scene.kinds())[-2:] == ["output_finished", "finished"]
    assert scene.engine.aborted == ["e"]
    assert scene.generation.output_tokens == 1


async def test_times_of_tokens_are_observed() -> None:
    scene = Scene()
    scene.clock.now += 2
    scene.engine.tell(started=True, cached_tokens=0, token_ids=(TOKEN,))
    await scene.kinds()
    scene.clock.now += 1
    scene.engine.tell(token_ids=(TOKEN, TOKEN))
    await scene.kinds()
    value = scene.metrics.registry.get_sample_value
    assert value("tenon_time_to_first_token_seconds_sum") == 2
    assert value("tenon_inter_token_latency_seconds_sum") == 0.5
    assert scene.generation.first_token_seconds == 2
