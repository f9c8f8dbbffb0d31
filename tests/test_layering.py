"""Who may import whom: the arrows between the folders, held by reading the imports."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"tenon", "engine", "grammar", "service", "access", "gateway"}
# Folder -> what it may import of ours.
ARROWS = {
    "engine": {"engine"},
    "grammar": {"grammar"},
    "access": {"access"},
    "service": {"service", "tenon", "access", "engine", "grammar"},
    "gateway": {"gateway", "tenon", "access"},
}
# In the client only these may reach the server's folders, and only inside functions.
CLIENT_LAZY = ("client/tenon/cli/", "client/tenon/llm.py", "client/tenon/models/")
ENGINE_LIBRARIES = {"torch", "numpy", "safetensors"}
# Server libraries that nobody should wait for when the gateway or a client starts.
HEAVY = {"torch", "tokenizers", "numpy", "safetensors", "jinja2"}


def python_files(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name)


def imported_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def module_level(tree: ast.Module) -> ast.Module:
    """The tree without functions and without `if TYPE_CHECKING`."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.If | None:
            return None if "TYPE_CHECKING" in ast.dump(node.test) else node

    stripped = Strip().visit(tree)
    assert isinstance(stripped, ast.Module)
    return stripped


@pytest.mark.parametrize("folder", sorted(ARROWS))
def test_a_folder_imports_only_what_its_arrows_allow(folder: str) -> None:
    for path in python_files(folder):
        wrong = (set(imported_names(ast.parse(path.read_text()))) & OURS) - ARROWS[folder]
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_the_client_reaches_the_server_only_lazily_and_only_where_it_may() -> None:
    for path in python_files("client/tenon"):
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text())
        lazy_allowed = name.startswith(CLIENT_LAZY)
        scope = module_level(tree) if lazy_allowed else tree
        wrong = (set(imported_names(scope)) & OURS) - {"tenon"}
        assert not wrong, f"{name} imports {sorted(wrong)}"


def test_nothing_imports_the_command_line() -> None:
    for folder in ARROWS:
        for path in python_files(folder):
            assert "tenon.cli" not in path.read_text(), path


def test_engine_imports_no_other_library() -> None:
    allowed = ENGINE_LIBRARIES | {"engine"} | set(sys.stdlib_module_names)
    for path in python_files("engine"):
        wrong = set(imported_names(ast.parse(path.read_text()))) - allowed
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_engine_runs_with_every_other_library_blocked() -> None:
    """Imports all engine modules in a process where our other folders and optional kernels fail."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in python_files("engine")
    ]
    blocked = sorted(
        (OURS - {"engine"}) | {"triton", "flashinfer", "grpc", "msgspec", "tokenizers"}
    )
    program = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({blocked!r}))
for name in {modules!r}:
    importlib.import_module(name.removesuffix(".__init__"))
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("module", ["gateway.server", "tenon", "tenon.cli"])
def test_what_must_start_fast_loads_no_heavy_library(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == ""
