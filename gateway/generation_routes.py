"""POST /v1/chat/completions and POST /v1/completions."""

import secrets
from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from gateway.catalog import ModelCatalog
from gateway.chat_encoder import ChatStreamEncoder, encode_chat
from gateway.chat_request import ChatRequest, parse_chat_request
from gateway.chunks import Envelope
from gateway.completion_encoder import OBJECT, CompletionStreamEncoder, encode_completion
from gateway.completion_request import CompletionRequest, parse_completion_request
from gateway.config import GatewayConfig
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.generation_response import stream_answer, whole_answer
from gateway.generations import Generations, Translate
from gateway.json_body import read_json_object
from gateway.service_errors import api_error
from tenon import AsyncClient
from tenon.errors import TenonError
from tenon.v1 import generation_pb2


class ChatCompletions:
    """The chat route as an ASGI app."""

    def __init__(self, client: AsyncClient, catalog: ModelCatalog, config: GatewayConfig) -> None:
        self._client = client
        self._catalog = catalog
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        body = await read_json_object(scope, receive, self._config.max_body_bytes)
        request = parse_chat_request(body, self._config)
        exchange.model = request.spec.model
        await exchange.until_gone(self._answer(exchange, request))

    async def _answer(self, exchange: Exchange, request: ChatRequest) -> None:
        await self._drop_reasoning(request.spec)
        envelope = Envelope(_new_id("chatcmpl"), "chat.completion.chunk", request.options)
        translate = _translator("messages", "structured_outputs", request.spec, is_batch=False)
        async with _generations(
            self._client, [request.spec], exchange, self._config, translate
        ) as generations:
            if request.options.stream:
                encoder = ChatStreamEncoder(envelope, request)
                await stream_answer(exchange, generations, encoder, self._config)
            else:
                await whole_answer(
                    exchange,
                    generations,
                    lambda answers: encode_chat(answers[0], envelope, request),
                )

    async def _drop_reasoning(self, spec: generation_pb2.GenerationSpec) -> None:
        """`reasoning_effort` is a hint, without effect on models that cannot reason."""
        conversation = spec.prompt.conversation
        if not conversation.HasField("reasoning"):
            return
        try:
            model = await self._catalog.find(spec.model)
        except TenonError as error:
            raise api_error(error, prompt_param="messages") from error
        if model is None or not model.capabilities.reasoning:
            conversation.ClearField("reasoning")


class Completions:
    """The route of raw completions as an ASGI app."""

    def __init__(self, client: AsyncClient, config: GatewayConfig) -> None:
        self._client = client
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        body = await read_json_object(scope, receive, self._config.max_body_bytes)
        request = parse_completion_request(body, self._config)
        exchange.model = request.specs[0].model
        await exchange.until_gone(self._answer(exchange, request))

    async def _answer(self, exchange: Exchange, request: CompletionRequest) -> None:
        envelope = Envelope(_new_id("cmpl"), OBJECT, request.options)
        translate = _translator("prompt", "structured_outputs", request.specs[0], request.is_batch)
        echoes = await self._echoes(request, translate) if request.echo else []
        async with _generations(
            self._client, request.specs, exchange, self._config, translate
        ) as generations:
            if request.options.stream:
                encoder = CompletionStreamEncoder(envelope, request, echoes)
                await stream_answer(exchange, generations, encoder, self._config)
            else:
                await whole_answer(
                    exchange,
                    generations,
                    lambda answers: encode_completion(answers, envelope, request, echoes),
                )

    async def _echoes(self, request: CompletionRequest, translate: Translate) -> list[str]:
        """The texts of the prompts; those of token ids come from the service."""
        prompts = [spec.prompt for spec in request.specs]
        if not prompts[0].HasField("token_ids"):
            return [prompt.text for prompt in prompts]
        try:
            return await self._client.detokenize(
                [prompt.token_ids.ids for prompt in prompts], model=request.specs[0].model
            )
        except TenonError as error:
            raise translate(error, 0) from error


def _generations(
    client: AsyncClient,
    specs: Sequence[generation_pb2.GenerationSpec],
    exchange: Exchange,
    config: GatewayConfig,
    translate: Translate,
) -> Generations:
    return Generations(client, specs, exchange.request_id, config.request_timeout, translate)


def _translator(
    prompt_param: str, extension: str, spec: generation_pb2.GenerationSpec, is_batch: bool
) -> Translate:
    kind = spec.constraint.WhichOneof("kind")
    by_format = kind in ("json_schema", "json_object") and prompt_param == "messages"
    constraint_param = "response_format" if by_format else extension

    def translate(error: TenonError, index: int) -> ApiError:
        param = f"{prompt_param}[{index}]" if is_batch else prompt_param
        return api_error(error, prompt_param=param, constraint_param=constraint_param)

    return translate


def _new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"
