"""What a MODEL argument means: a name, a file, a directory or a repository of the hub."""

from dataclasses import dataclass
from pathlib import Path

from tenon.models.fetch import fetch_model
from tenon.models.progress import FetchProgress
from tenon.models.registry import built_in_models
from tenon.models.store import ModelStore, model_name_of_path, models_directory

HUB_PREFIX = "hf:"


class ModelNotFound(Exception):
    """A MODEL argument means nothing here. The message says what is known."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this machine and the name under which it is served."""

    name: str
    path: Path


def resolve_model(model: str, progress: FetchProgress) -> ResolvedModel:
    """Finds a model and fetches it if it is a known one that is not here yet.

    Raises ModelNotFound and FetchError.
    """
    if model.startswith(HUB_PREFIX):
        from tenon.models.hub import fetch_from_hub

        return fetch_from_hub(model.removeprefix(HUB_PREFIX), models_directory(), progress)
    registered = built_in_models().get(model)
    if registered is not None:
        path = fetch_model(registered, models_directory(), progress)
        return ResolvedModel(registered.name, path)
    return find_local_model(model)


def find_local_model(model: str) -> ResolvedModel:
    """Finds a model in the store or under a path; fetches nothing. Raises ModelNotFound."""
    store = ModelStore(models_directory())
    stored = store.find(model) if Path(model).name == model else None
    if stored is not None:
        return ResolvedModel(stored.name, stored.path)
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return ResolvedModel(model_name_of_path(path), path.resolve())
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"{path} is not a model directory: it has no config.json")
        return ResolvedModel(path.resolve().name, path.resolve())
    if path.is_file():
        raise ModelNotFound(f"{path} is neither a .gguf file nor a model directory")
    raise _unknown(model, store)


def _unknown(model: str, store: ModelStore) -> ModelNotFound:
    if "/" in model or model.endswith(".gguf"):
        return ModelNotFound(f"{model} does not exist (a hub model is written hf:owner/name)")
    names = sorted(built_in_models().keys() | {stored.name for stored in store.list()})
    return ModelNotFound(
        f"no model is named {model!r}; known are {', '.join(names)}, "
        "a .gguf file, a model directory, or hf:owner/name[:file]"
    )
