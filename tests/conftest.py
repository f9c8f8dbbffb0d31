"""Fixtures that every test may use: where models and data of others are, or a clean skip."""

import os
from pathlib import Path

import pytest


def models_directory() -> Path:
    """Where `make models` puts test models and `tenon pull` the default one."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tenon" / "models"
    return Path(os.environ.get("TENON_MODEL_DIR", default))


def _model_path(file_name: str) -> Path:
    path = models_directory() / file_name
    if not path.exists():
        pytest.skip(f"{file_name} is not in {models_directory()}")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model, SmolLM2-135M-Instruct in Q4_1."""
    return _model_path("smollm2.gguf")


@pytest.fixture(scope="session")
def qwen_coder_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct in Q4_K_M."""
    return _model_path("qwen2.5-coder-0.5b-instruct.gguf")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Data of others, found through TENON_TEST_DATA."""
    directory = os.environ.get("TENON_TEST_DATA")
    if not directory:
        pytest.skip("TENON_TEST_DATA is not set")
    return Path(directory)
