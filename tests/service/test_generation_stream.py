"""A generation over a real socket and a scripted engine."""

from tenon.aio import AsyncClient
from tenon.v1 import generation_pb2, prompt_pb2
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import running_service, text_script


def chat_spec(text: str = "hi") -> generation_pb2.GenerationSpec:
    message = prompt_pb2.Message(
        role=prompt_pb2.ROLE_USER, parts=[prompt_pb2.ContentPart(text=text)]
    )
    conversation = prompt_pb2.Conversation(messages=[message])
    return generation_pb2.GenerationSpec(prompt=prompt_pb2.Prompt(conversation=conversation))


async def test_a_chat_is_answered_with_events_in_order() -> None:
    engine = ScriptedEngineClient(text_script("Hello!"))
    async with running_service(engine) as address, AsyncClient(address) as client:
        async with client.generate(chat_spec()) as stream:
            kinds = [event.WhichOneof("event") async for event in stream]
        assert kinds[:2] == ["started", "prompt_processed"]
        assert kinds[-2:] == ["output_finished", "finished"]
        answer = await client.generate_unary(chat_spec())
        assert answer.outputs[0].text == "Hello!"
