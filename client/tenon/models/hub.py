"""Models of the Hugging Face hub, through the optional library huggingface-hub."""

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon.models.progress import FetchProgress
from tenon.models.wheels import FetchError

if TYPE_CHECKING:
    from tenon.models.resolve import ResolvedModel

# What the engine and the tokenizer read of a model directory.
_DIRECTORY_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt")


def fetch_from_hub(reference: str, directory: Path, progress: FetchProgress) -> "ResolvedModel":
    """The model owner/name[:file] under `directory`. Raises FetchError.

    Without a file it is a safetensors repository, or one with a single .gguf file. The library
    draws its own progress bars.
    """
    from tenon.models.resolve import ResolvedModel

    repository, _, file = reference.partition(":")
    owner, _, name = repository.partition("/")
    if not owner or not name or "/" in name:
        raise FetchError(f"hf:{reference} is not of the form hf:owner/name[:file]")
    hub = _library()
    target = directory / f"{owner}--{name}"
    try:
        file = file or _only_gguf(hub.list_repo_files(repository), reference)
        if file:
            path = Path(hub.hf_hub_download(repository, file, local_dir=target))
        else:
            patterns = list(_DIRECTORY_FILES)
            path = Path(
                hub.snapshot_download(repository, allow_patterns=patterns, local_dir=target)
            )
    except FetchError:
        raise
    except Exception as error:  # the library's own, requests' and httpx's: all mean the same here
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FetchError(f"hf:{reference} could not be fetched: {reason}") from None
    return ResolvedModel(repository, path)


def _only_gguf(files: list[str], reference: str) -> str:
    """The file to take, "" for a whole safetensors repository."""
    if any(fnmatch.fnmatch(file, "*.safetensors") for file in files):
        return ""
    candidates = [file for file in files if file.endswith(".gguf")]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise FetchError(f"hf:{reference} has neither .safetensors nor .gguf files")
    raise FetchError(f"hf:{reference}:FILE is needed; FILE is one of {', '.join(candidates)}")


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise FetchError(
            "hf: models need huggingface-hub: pip install 'tenon-server[hub]'"
        ) from None
    library: Any = huggingface_hub
    library.logging.set_verbosity_error()  # not each of its retries: what fails is told once
    return library
