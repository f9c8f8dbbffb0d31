"""The commands that talk to a running server's model: generate and chat."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tenon.cli.failures import FAILED, CommandError
from tenon.cli.repl import Repl
from tenon.cli.session import ChatSession, SamplingSettings
from tenon.cli.targets import Target, connect
from tenon.cli.terminal import printable
from tenon.models.store import models_directory
from tenon.specs import chat as chat_spec
from tenon.specs import completion as completion_spec
from tenon.sync import Client
from tenon.v1 import generation_pb2, generation_service_pb2

ModelName = Annotated[
    str, typer.Option("--model", help="Name on the server; the only one unless set.")
]
System = Annotated[str | None, typer.Option("--system", help="System message.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Output token limit.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0, max=2, help="0 is greedy.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the random choices.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command(rich_help_panel="Talk")(generate)
    app.command(rich_help_panel="Talk")(chat)


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Standard input if missing or -.")] = None,
    model: ModelName = "",
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    stream: Annotated[bool, typer.Option(help="Print text as it comes.")] = True,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text, without template.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    target: Target = None,
) -> None:
    """Answer one prompt on a running server."""
    text = _prompt_text(prompt)
    settings = SamplingSettings(temperature=temperature, seed=seed, max_tokens=max_tokens)
    with connect(target) as client:
        spec = _spec(client, text, model, system, settings, raw=raw)
        if as_json:
            print(json.dumps(answer_as_dict(client.generate_unary(spec)), ensure_ascii=False))
        elif stream:
            for piece in client.generate(spec).text():
                print(printable(piece), end="", flush=True)
            print()
        else:
            print(printable(client.generate_unary(spec).outputs[0].text))


def chat(
    model: ModelName = "",
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    target: Target = None,
) -> None:
    """Chat with a running server's model. /help shows what can be typed."""
    settings = SamplingSettings(temperature=temperature, seed=seed, max_tokens=max_tokens)
    with connect(target) as client:
        served = client.get_model(model)
        if not served.capabilities.chat:
            raise CommandError(
                f"{served.name} has no chat template; tenon generate --raw continues a text"
            )
        session = ChatSession(client, served.name, system, settings)
        history = models_directory().parent / "chat_history"
        repl = Repl(session, Console(stderr=True), history_path=Path(history))
        if not repl.run():
            raise typer.Exit(FAILED)


def answer_as_dict(answer: generation_service_pb2.GenerateUnaryResponse) -> dict[str, Any]:
    """The answer of one output as plain data."""
    output, finished = answer.outputs[0], answer.finished
    reason = generation_pb2.FinishReason.Name(output.finished.reason)
    return {
        "request_id": answer.started.request_id,
        "model": answer.started.model,
        "text": output.text,
        "finish_reason": reason.removeprefix("FINISH_REASON_").lower(),
        "seed": answer.started.resolved.seed,
        "usage": {
            "prompt_tokens": finished.usage.prompt_tokens,
            "cached_tokens": finished.usage.cached_tokens,
            "output_tokens": finished.usage.output_tokens,
        },
        "timings": {
            name: getattr(finished.timings, name).ToNanoseconds() / 1e9
            for name in ("queue", "prefill", "decode", "first_token", "total")
        },
    }


def _prompt_text(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise CommandError("no prompt; give one as an argument or on standard input")
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError:
        raise CommandError("standard input is not UTF-8 text") from None
    if not text.strip():
        raise CommandError("the prompt on standard input is empty")
    return text.removesuffix("\n")


def _spec(
    client: Client,
    text: str,
    model: str,
    system: str | None,
    settings: SamplingSettings,
    *,
    raw: bool,
) -> generation_pb2.GenerationSpec:
    if raw or not client.get_model(model).capabilities.chat:
        if system is not None:
            raise CommandError("--system needs a model with a chat template, and no --raw")
        return completion_spec(text, model=model, **settings.as_arguments())
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    return chat_spec(messages, model=model, **settings.as_arguments())
