"""The commands of the model store: pull, list, show, rm."""

import json
import sys
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tenon.cli.failures import CommandError
from tenon.cli.options import MODEL_HELP
from tenon.cli.targets import Target, connect
from tenon.cli.values import format_count, format_size
from tenon.models.progress import ConsoleProgress
from tenon.models.registry import built_in_models
from tenon.models.resolve import HUB_PREFIX, ModelNotFound, find_local_model, resolve_model
from tenon.models.store import ModelStore, models_directory
from tenon.models.wheels import file_sha256

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    panel = "Models"
    app.command("pull", rich_help_panel=panel)(pull)
    app.command("list", rich_help_panel=panel)(list_models)
    app.command("show", rich_help_panel=panel)(show)
    app.command("rm", rich_help_panel=panel)(remove)


def pull(model: Annotated[str, typer.Argument(help="smollm2, or hf:owner/name[:file].")]) -> None:
    """Fetch a model, or check the hash of one that is here."""
    console = Console(stderr=True)
    registered = built_in_models().get(model)
    if registered is None and not model.startswith(HUB_PREFIX):
        raise CommandError(f"{model!r} cannot be fetched; {_names()} and hf:owner/name[:file] can")
    path = models_directory() / registered.file if registered is not None else None
    if registered is not None and path is not None and path.exists():
        if file_sha256(path) == registered.sha256:
            console.print(f"{model} is in {path}, its hash is right", soft_wrap=True)
            return
        console.print(f"{path} is damaged and is fetched again", soft_wrap=True)
        path.unlink()
    resolved = resolve_model(model, ConsoleProgress(console))
    console.print(f"{resolved.name} is in {resolved.path}", soft_wrap=True)


def list_models(as_json: AsJson = False) -> None:
    """List the models that are stored here."""
    stored = ModelStore(models_directory()).list()
    if as_json:
        print(json.dumps([_as_dict(model) for model in stored], indent=2))
        return
    if not stored:
        print(f"No models in {models_directory()}; tenon pull smollm2 fetches one.")
        return
    table = Table("NAME", "SIZE", "QUANTIZATION", "MODIFIED", box=None, pad_edge=False)
    for model in stored:
        modified = datetime.fromtimestamp(model.modified).strftime("%Y-%m-%d %H:%M")
        table.add_row(model.name, format_size(model.size), model.quantization or "-", modified)
    Console().print(table)


def show(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "smollm2",
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model is: family, size, context, template, license.

    With --target the server is asked; otherwise the files here are read.
    """
    facts = _served_facts(target, model) if target is not None else _local_facts(model)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    table = Table.grid(padding=(0, 2))
    for label, value in facts.items():
        table.add_row(label, _shown(label, value))
    Console().print(table)


def remove(
    model: Annotated[str, typer.Argument(help="A stored model, see tenon list.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a stored model."""
    store = ModelStore(models_directory())
    stored = store.find(model)
    if stored is None:
        names = ", ".join(item.name for item in store.list()) or "none"
        raise CommandError(f"no stored model is named {model!r}; stored are: {names}")
    if not yes:
        if not sys.stdin.isatty():
            raise CommandError(f"this deletes {stored.path}; add --yes where nobody can be asked")
        typer.confirm(f"Delete {stored.path} ({format_size(stored.size)})?", abort=True)
    store.remove(stored)
    print(f"deleted {stored.name} ({format_size(stored.size)})")


def _names() -> str:
    return ", ".join(built_in_models())


def _local_facts(model: str) -> dict[str, Any]:
    from tenon.models.describe import describe_model

    try:
        return describe_model(find_local_model(model))
    except ModelNotFound:
        if model in built_in_models():
            raise CommandError(f"{model} is not here yet; tenon pull {model} fetches it") from None
        raise


def _served_facts(target: str, model: str) -> dict[str, Any]:
    with connect(target) as client:
        served = client.get_model(model)
    return {
        "name": served.name,
        "family": served.family,
        "parameters": served.num_parameters,
        "quantization": served.quantization,
        "dtype": served.dtype,
        "context": served.max_model_len,
        "vocabulary": served.vocab_size,
        "kv cache tokens": served.kv_cache_tokens,
        "chat template": served.capabilities.chat,
        "fingerprint": served.fingerprint,
    }


def _shown(label: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if label == "parameters":
        return f"{format_count(value)} ({value:,})"
    if label == "size":
        return format_size(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _as_dict(model: Any) -> dict[str, Any]:
    return {
        "name": model.name,
        "path": str(model.path),
        "size": model.size,
        "quantization": model.quantization or None,
        "modified": datetime.fromtimestamp(model.modified).astimezone().isoformat(),
    }
