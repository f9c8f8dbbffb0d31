"""The engine without a server: the service's own admission and event stream, in this process.

Needs the distribution tenon-server.
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tenon.fold import fold_events
from tenon.models.progress import ConsoleProgress
from tenon.models.resolve import resolve_model
from tenon.specs import chat, completion
from tenon.v1 import generation_pb2, generation_service_pb2

if TYPE_CHECKING:
    from service.admission import Admission
    from service.runtime import ModelRuntime

_NO_BOUND = 2**62
_Result = TypeVar("_Result")
Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """One output. finish_reason: stop, length, time_limit and so on."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one prompt; output_tokens over all its outputs."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What one prompt gave. prompt: as it was handed in."""

    prompt: Prompt | Conversation
    outputs: tuple[GeneratedText, ...]
    usage: TokenUsage


class LLM:
    """A model in this process. Close it, or use it as a context manager.

        with tenon.LLM("smollm2") as llm:
            print(llm.generate("The capital of France is", max_tokens=8)[0].outputs[0].text)

    model: a name, a .gguf file, a model directory or hf:owner/name; fetched if need be.
    chat_template: path of a template that replaces the model's own.
    engine_isolation: auto, thread or process. engine_options: fields of engine.config.EngineConfig,
    for example dtype="float32". Raises ImportError without tenon-server, and ValueError or OSError
    when the model cannot be loaded.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        chat_template: str | None = None,
        engine_isolation: str = "auto",
        **engine_options: Any,
    ) -> None:
        _check_installed()
        from rich.console import Console

        resolved = resolve_model(model, ConsoleProgress(Console(stderr=True)))
        self.model = resolved.name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tenon-llm", daemon=True
        )
        self._thread.start()
        self._is_closed = False
        self._runtime: ModelRuntime | None = None
        try:
            path = str(resolved.path)
            start = self._start(path, chat_template, engine_isolation, engine_options)
            self._runtime, self._admission = self._run(start)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
        n: int | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> list[GenerationResult]:
        """Continues one or many prompts, all at once; one result a prompt, in order.

        prompts: texts or lists of token ids. None takes the model's default; max_tokens None goes
        on to the context limit. Raises ServiceError when a prompt or a value is refused, and then
        drops all of them.
        """
        many: list[Any] = [prompts] if _is_one_prompt(prompts) else list(prompts)
        specs = [
            completion(
                prompt,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seed,
                num_outputs=n,
                max_tokens=max_tokens,
                stop=_as_list(stop),
            )
            for prompt in many
        ]
        return self._generate_all(many, specs)

    def chat(
        self,
        messages: str | Conversation | Sequence[Conversation],
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
        n: int | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> list[GenerationResult]:
        """Answers one or many conversations. See generate.

        messages: what the user says, mappings with "role" and "content", or several such lists.
        """
        many: list[Any] = [messages] if _is_one_conversation(messages) else list(messages)
        specs = [
            chat(
                conversation,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seed,
                num_outputs=n,
                max_tokens=max_tokens,
                stop=_as_list(stop),
            )
            for conversation in many
        ]
        return self._generate_all(many, specs)

    def close(self) -> None:
        """Stops the engine and frees its memory; harmless when done before."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._runtime is not None:
            self._run(self._runtime.engine.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(
        self, path: str, template: str | None, isolation: str, options: dict[str, Any]
    ) -> "tuple[ModelRuntime, Admission]":
        import time

        from engine.config import EngineConfig
        from service.admission import Admission
        from service.assets import load_assets
        from service.engine_client import EngineFactory
        from service.engines import create_engine_client
        from service.metrics import ServiceMetrics
        from service.registry import GenerationRegistry
        from service.runtime import ModelRuntime, ServedModels

        # Nobody else waits here: a long list of prompts is no overload.
        unbounded = {"max_waiting_requests": _NO_BOUND, "max_waiting_tokens": _NO_BOUND}
        factory = EngineFactory(EngineConfig(model_path=path, **{**unbounded, **options}))
        engine = create_engine_client(factory, isolation)
        runtime = ModelRuntime(self.model, engine, lambda: load_assets(path, template))
        try:
            await runtime.start()
        except BaseException:
            await engine.close()
            raise
        models = ServedModels({runtime.name: runtime})
        registry = GenerationRegistry(time.monotonic)
        return runtime, Admission(models, registry, ServiceMetrics())

    def _generate_all(
        self,
        prompts: Sequence[Prompt | Conversation],
        specs: Sequence[generation_pb2.GenerationSpec],
    ) -> list[GenerationResult]:
        if self._is_closed:
            raise RuntimeError("this LLM is closed")
        for spec in specs:
            spec.output.token_ids = True
        answers = self._run(self._gather(specs))
        pairs = zip(prompts, answers, strict=True)
        return [_result(prompt, answer) for prompt, answer in pairs]

    async def _gather(
        self, specs: Sequence[generation_pb2.GenerationSpec]
    ) -> list[generation_service_pb2.GenerateUnaryResponse]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._generate_one(spec)) for spec in specs]
        return [task.result() for task in tasks]

    async def _generate_one(
        self, spec: generation_pb2.GenerationSpec
    ) -> generation_service_pb2.GenerateUnaryResponse:
        generation = await self._admission.admit("", spec, None)
        try:
            events: list[generation_pb2.GenerationEvent] = []
            while (batch := await generation.next_events()) is not None:
                events += batch
            return fold_events(events)
        finally:
            self._admission.release(generation)

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs a coroutine on the engine's loop; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        except BaseException:
            future.cancel()
            raise


def _check_installed() -> None:
    """Imports the server, before a model is fetched for nothing."""
    try:
        import service.admission
        import service.assets
        import service.engines
        import service.metrics  # noqa: F401  # only whether they are there matters here
    except ModuleNotFoundError as error:
        raise ImportError(
            f"tenon.LLM needs tenon-server, but {error.name} is missing: pip install tenon-server"
        ) from None


def _is_one_prompt(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _is_one_conversation(messages: str | Conversation | Sequence[Conversation]) -> bool:
    return isinstance(messages, str) or (len(messages) > 0 and isinstance(messages[0], Mapping))


def _as_list(stop: str | Sequence[str]) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop)


def _result(
    prompt: Prompt | Conversation, answer: generation_service_pb2.GenerateUnaryResponse
) -> GenerationResult:
    usage = answer.finished.usage
    return GenerationResult(
        prompt=prompt,
        outputs=tuple(_output(output) for output in answer.outputs),
        usage=TokenUsage(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens),
    )


def _output(output: generation_pb2.Output) -> GeneratedText:
    reason = generation_pb2.FinishReason.Name(output.finished.reason)
    return GeneratedText(
        text=output.text,
        token_ids=tuple(output.token_ids.ids),
        finish_reason=reason.removeprefix("FINISH_REASON_").lower(),
    )
