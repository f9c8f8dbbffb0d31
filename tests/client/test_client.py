"""The asynchronous and the synchronous client against a server that replays scripts."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

import tenon
import tenon.fold
from tenon import AsyncClient, Client, errors
from tenon.testing import FakeServer, text_events
from tenon.v1 import generation_pb2, generation_service_pb2


async def paris(request: Any, context: Any) -> AsyncIterator[Any]:
    for event in text_events("Par", "is", output_tokens=2):
        yield [event]


async def endless(request: Any, context: Any) -> AsyncIterator[Any]:
    yield text_events("x")[:2]
    while True:
        yield [text_events("x")[2]]
        await asyncio.sleep(0.005)


def failing_after(
    num_events: int, code: grpc.StatusCode, details: list[Any]
) -> Callable[..., AsyncIterator[Any]]:
    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        if num_events:
            yield text_events("x")[:num_events]
        status = status_pb2.Status(code=code.value[0], message="no")
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        metadata = ((errors.STATUS_DETAILS_KEY, status.SerializeToString()),)
        await context.abort(code, "no", trailing_metadata=metadata)

    return script


async def raise_while_reading(client: AsyncClient) -> None:
    async for _ in client.generate(tenon.chat("x")):
        raise KeyError


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds; the test's own time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.005)


async def test_a_stream_yields_its_events_and_folds_into_the_answer() -> None:
    spec = tenon.chat("capital of France?", temperature=0)
    async with (
        FakeServer(paris) as server,
        AsyncClient(server.address) as client,
        client.generate(spec) as stream,
    ):
        answer = await stream.collect()
    assert answer.outputs[0].text == "Paris"
    assert answer.finished.usage.output_tokens == 2
    sent = server.requests[0].spec
    assert sent.prompt.conversation.messages[0].parts[0].text == "capital of France?"
    assert sent.sampling.HasField("temperature")
    assert not sent.sampling.HasField("top_p")


@pytest.mark.parametrize("leave", ["break", "exception", "context"])
async def test_leaving_a_stream_in_any_way_cancels_the_call(leave: str) -> None:
    async with FakeServer(endless) as server, AsyncClient(server.address) as client:
        if leave == "break":
            async for _ in client.generate(tenon.chat("x")):
                break
        elif leave == "exception":
            with pytest.raises(KeyError):
                await raise_while_reading(client)
        else:
            async with client.generate(tenon.chat("x")) as stream:
                await anext(aiter(stream))
        await eventually(lambda: server.cancelled == 1)


async def test_cancelling_the_reading_task_cancels_the_call() -> None:
    async with FakeServer(endless) as server, AsyncClient(server.address) as client:
        task = asyncio.create_task(client.generate(tenon.chat("x")).collect())
        await eventually(lambda: len(server.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: server.cancelled == 1)


async def test_details_of_a_status_become_a_typed_exception() -> None:
    details = [
        error_details_pb2.ErrorInfo(reason="QUEUE_FULL", metadata={"waiting": "7"}),
        error_details_pb2.RetryInfo(retry_delay={"seconds": 2, "nanos": 500_000_000}),
    ]
    script = failing_after(0, grpc.StatusCode.RESOURCE_EXHAUSTED, details)
    async with FakeServer(script) as server, AsyncClient(server.address) as client:
        with pytest.raises(errors.Overloaded) as caught:
            await client.generate(tenon.chat("x")).collect()
    assert caught.value.retry_after == 2.5
    assert caught.value.metadata == {"waiting": "7"}
    assert caught.value.reason == "QUEUE_FULL"


async def test_the_offending_field_is_named() -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="spec.sampling.top_p")
    details = [
        error_details_pb2.ErrorInfo(reason="INVALID_FIELD"),
        error_details_pb2.BadRequest(field_violations=[violation]),
    ]
    script = failing_after(0, grpc.StatusCode.INVALID_ARGUMENT, details)
    async with FakeServer(script) as server, AsyncClient(server.address) as client:
        with pytest.raises(errors.InvalidRequest) as caught:
            await client.generate(tenon.chat("x")).collect()
    assert caught.value.field == "spec.sampling.top_p"


async def test_unavailable_before_the_first_message_is_retried_and_after_it_is_not() -> None:
    unavailable = grpc.StatusCode.UNAVAILABLE
    async with FakeServer(failing_after(0, unavailable, [])) as server:
        async with AsyncClient(server.address) as client:
            with pytest.raises(errors.Unavailable):
                await client.generate(tenon.chat("x")).collect()
        assert len(server.requests) == 3
    async with FakeServer(failing_after(1, unavailable, [])) as server:
        async with AsyncClient(server.address) as client:
            with pytest.raises(errors.Unavailable):
                await client.generate(tenon.chat("x")).collect()
        assert len(server.requests) == 1


async def test_a_stream_without_its_finished_event_is_an_error() -> None:
    async def cut(request: Any, context: Any) -> AsyncIterator[Any]:
        yield text_events("x")[:3]

    async with FakeServer(cut) as server, AsyncClient(server.address) as client:
        with pytest.raises(errors.InternalError, match="before its Finished"):
            await client.generate(tenon.chat("x")).collect()


async def test_an_unknown_event_is_ignored() -> None:
    async def newer(request: Any, context: Any) -> AsyncIterator[Any]:
        events = text_events("Paris")
        unknown = generation_pb2.GenerationEvent.FromString(b"\xfa\x07\x02\x08\x01")  # field 127
        yield [*events[:3], unknown, *events[3:]]

    async with FakeServer(newer) as server, AsyncClient(server.address) as client:
        answer = await client.generate(tenon.chat("x")).collect()
    assert answer.outputs[0].text == "Paris"


async def test_a_deadline_ends_the_call() -> None:
    async with FakeServer(endless) as server, AsyncClient(server.address) as client:
        with pytest.raises(errors.DeadlineExceeded):
            await client.generate(tenon.chat("x"), timeout=0.3).collect()
        await eventually(lambda: server.cancelled == 1)


async def test_an_unreachable_server_is_unavailable() -> None:
    async with AsyncClient("127.0.0.1:1", timeout=5) as client:
        with pytest.raises(errors.Unavailable):
            await client.generate_unary(tenon.chat("x"))


async def test_a_method_that_the_server_lacks_is_unsupported() -> None:
    async with FakeServer(paris) as server, AsyncClient(server.address) as client:
        with pytest.raises(errors.UnsupportedField):
            await client.generate_unary(tenon.chat("x"))


@pytest.fixture
def served() -> Iterator[Callable[[Any], FakeServer]]:
    """Serves scripts from another thread's event loop, for the synchronous client."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers: list[FakeServer] = []

    def serve(script: Any) -> FakeServer:
        servers.append(FakeServer(script))
        return asyncio.run_coroutine_threadsafe(servers[-1].__aenter__(), loop).result()

    yield serve
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_synchronous_client_streams_and_folds(served: Callable[[Any], FakeServer]) -> None:
    with Client(served(paris).address) as client:
        assert "".join(client.generate(tenon.chat("x")).text()) == "Paris"
        assert client.generate(tenon.chat("x")).collect().outputs[0].text == "Paris"
        assert [model.name for model in client.list_models()] == ["fake"]


def test_breaking_out_of_a_synchronous_stream_cancels(
    served: Callable[[Any], FakeServer],
) -> None:
    server = served(endless)
    with Client(server.address) as client:
        for _ in client.generate(tenon.chat("x")):
            break
        waiter = threading.Event()
        while server.cancelled < 1:
            waiter.wait(0.005)


def test_specs_refuse_an_unknown_role() -> None:
    with pytest.raises(ValueError, match="allowed are system"):
        tenon.chat([{"role": "robot", "content": "x"}])


def test_token_ids_of_a_completion_travel_as_token_ids() -> None:
    spec = tenon.completion([1, 2, 0])
    assert list(spec.prompt.token_ids.ids) == [1, 2, 0]
    assert tenon.completion([]).prompt.HasField("token_ids")


def test_fold_keeps_outputs_apart() -> None:
    events = [
        generation_pb2.GenerationEvent(text=generation_pb2.TextDelta(output_index=index, text=text))
        for index, text in [(1, "b"), (0, "a"), (1, "B")]
    ]
    events.append(generation_pb2.GenerationEvent(finished=generation_pb2.Finished()))
    answer = tenon.fold.fold_events(events)
    assert [output.text for output in answer.outputs] == ["a", "bB"]
    assert isinstance(answer, generation_service_pb2.GenerateUnaryResponse)
