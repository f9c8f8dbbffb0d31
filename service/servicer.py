"""tenon.v1.GenerationService: one method per RPC, each a few lines over the modules that do it."""

import base64
import binascii
from typing import Any

import grpc

from service.admission import Admission
from service.errors import ServiceError, invalid, unsupported
from service.generation import Generation
from service.interceptors import CallRecord, current_call
from service.metrics import ServiceMetrics
from service.models import model_message
from service.prompting import render_and_encode, run_sized
from service.registry import GenerationRegistry
from service.runtime import ModelRuntime, ServedModels
from service.translate_prompt import translate_conversation
from service.validation import check_enum, check_length, check_request_id, check_token_ids
from tenon.fold import EventFold
from tenon.v1 import generation_service_pb2 as pb
from tenon.v1 import generation_service_pb2_grpc, model_pb2, prompt_pb2

MAX_BATCH = 256
DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000

Context = grpc.aio.ServicerContext[Any, Any]


class GenerationServicer(generation_service_pb2_grpc.GenerationServiceServicer):
    """Serves the data plane. Errors leave as ServiceError; the interceptor maps them.

    Streams are written with `context.write`, not yielded: a cancelled call then runs the handler's
    `finally` at once, whatever it waited for.
    """

    def __init__(
        self,
        models: ServedModels,
        admission: Admission,
        registry: GenerationRegistry,
        metrics: ServiceMetrics,
    ) -> None:
        self._models = models
        self._admission = admission
        self._registry = registry
        self._metrics = metrics

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]  # stubs know generators only
        """Streams messages, each with all events since the one before."""
        if request.idempotency_key:
            raise unsupported("idempotency_key")
        generation = await self._admit(request, context)
        try:
            sequence = 0
            while (batch := await generation.next_events()) is not None:
                sequence += 1
                await context.write(pb.GenerateResponse(sequence=sequence, events=batch))
        finally:
            self._release(generation)

    async def GenerateUnary(
        self, request: pb.GenerateUnaryRequest, context: Context
    ) -> pb.GenerateUnaryResponse:
        """The fold of the events that Generate streams."""
        generation = await self._admit(request, context)
        try:
            fold = EventFold()
            while (batch := await generation.next_events()) is not None:
                for event in batch:
                    fold.add(event)
            return fold.answer()
        finally:
            self._release(generation)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:  # type: ignore[override]  # as above
        """Not built in yet: no generation outlives its call."""
        raise unsupported("request_id", "cannot be attached to: detached requests are not built in")

    async def EndGeneration(
        self, request: pb.EndGenerationRequest, context: Context
    ) -> pb.EndGenerationResponse:
        """Ends a running generation from a second call."""
        check_enum("mode", request.mode, pb.EndMode.values())
        if request.mode == pb.END_MODE_UNSPECIFIED:
            raise invalid("mode", "is required")
        if not request.request_id:
            raise invalid("request_id", "is required")
        generation = self._registry.find(check_request_id("request_id", request.request_id))
        if request.mode == pb.END_MODE_CLOSE:
            generation.end()
        else:
            message = "the request was cancelled by EndGeneration"
            generation.fail(ServiceError("CANCELLED_BY_CALLER", message))
        return pb.EndGenerationResponse()

    async def CheckConstraint(
        self, request: pb.CheckConstraintRequest, context: Context
    ) -> pb.CheckConstraintResponse:
        """Not built in yet."""
        raise unsupported("constraint")

    async def RenderChat(
        self, request: pb.RenderChatRequest, context: Context
    ) -> pb.RenderChatResponse:
        """Text and ids of a conversation, as Generate would feed them."""
        assets = self._models.find(request.model).assets
        if not request.HasField("conversation"):
            raise invalid("conversation", "is required")
        chat = translate_conversation(request.conversation, "conversation")
        size = sum(len(message.content) for message in chat.messages)
        rendered, ids = await run_sized(
            size, lambda: render_and_encode(assets, chat, "conversation")
        )
        return pb.RenderChatResponse(text=rendered.text, token_ids=prompt_pb2.TokenIds(ids=ids))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Ids and bytes of texts."""
        tokenizer = self._models.find(request.model).assets.tokenizer
        check_length("texts", request.texts, 1, MAX_BATCH, "texts")
        special = request.add_special_tokens if request.HasField("add_special_tokens") else None

        def encode_all() -> list[list[int]]:
            return [
                tokenizer.encode(text, add_special_tokens=special, parse_special=True)
                for text in request.texts
            ]

        sequences = await run_sized(sum(map(len, request.texts)), encode_all)
        return pb.TokenizeResponse(
            results=[
                pb.TokenizedText(
                    token_ids=prompt_pb2.TokenIds(ids=ids),
                    token_bytes=[tokenizer.token_bytes(id_) for id_ in ids],
                )
                for ids in sequences
            ]
        )

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        """Texts of ids."""
        runtime = self._models.find(request.model)
        check_length("sequences", request.sequences, 1, MAX_BATCH, "sequences")
        sequences = [
            check_token_ids(f"sequences[{index}].ids", item.ids, runtime.info.vocab_size)
            for index, item in enumerate(request.sequences)
        ]
        decode = runtime.assets.tokenizer.decode
        texts = await run_sized(
            sum(map(len, sequences)),
            lambda: [decode(ids, skip_special=request.skip_special_tokens) for ids in sequences],
        )
        return pb.DetokenizeResponse(texts=texts)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """One model."""
        return pb.GetModelResponse(model=model_message(self._models.find(request.name)))

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        """Models in the order of their names, page by page."""
        if request.page_size < 0:
            raise invalid("page_size", f"must not be negative, but is {request.page_size}")
        size = min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        after = _name_of_token(request.page_token)
        later = [runtime for runtime in self._models.runtimes if runtime.name > after]
        page = later[:size]
        models: list[model_pb2.Model] = [model_message(runtime) for runtime in page]
        has_more = len(later) > len(page)
        return pb.ListModelsResponse(
            models=models, next_page_token=_token_of(page[-1]) if has_more else ""
        )

    async def _admit(
        self, request: pb.GenerateRequest | pb.GenerateUnaryRequest, context: Context
    ) -> Generation:
        record = current_call.get(CallRecord())
        if not request.HasField("spec"):
            raise invalid("spec", "is required")
        request_id = request.request_id or record.request_id
        generation = await self._admission.admit(
            request.request_id, request.spec, context.time_remaining()
        )
        record.request_id = generation.request_id or request_id
        return generation

    def _release(self, generation: Generation) -> None:
        self._admission.release(generation)
        record = current_call.get(CallRecord())
        record.prompt_tokens = generation.prompt_tokens
        record.cached_tokens = generation.cached_tokens
        record.output_tokens = generation.output_tokens
        record.first_token_seconds = generation.first_token_seconds
        self._metrics.prompt_tokens.inc(generation.prompt_tokens)
        self._metrics.cached_tokens.inc(generation.cached_tokens or 0)
        self._metrics.output_tokens.inc(generation.output_tokens)
        self._metrics.request_seconds.observe(self._registry.age(generation))


def _token_of(runtime: ModelRuntime) -> str:
    return base64.urlsafe_b64encode(runtime.name.encode()).decode()


def _name_of_token(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("page_token", "is not one that this server gave") from None
