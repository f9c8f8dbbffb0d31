"""Writes requirements/dev.lock: every dependency of both distributions, pinned with hashes.

torch and our own distributions stay outside: torch is chosen by `make venv TORCH=...`.
Usage: python scripts/lock_requirements.py [--upgrade]
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "dev.lock"
OUTSIDE = ("torch>", "torch=", "tenon=")
HEADER = """\
# Written by `make lock` from pyproject.toml and client/pyproject.toml. Do not edit.
# torch is installed before this file and is not in it, see the Makefile.
"""


def requirements() -> list[str]:
    """Requirements of both distributions, with the dev extra, without what stays outside."""
    found = ["setuptools>=77"]
    for path in (ROOT / "pyproject.toml", ROOT / "client" / "pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        extras = project.get("optional-dependencies", {})
        found += project["dependencies"] + extras.get("dev", []) + extras.get("hub", [])
    return sorted({line for line in found if not line.startswith(OUTSIDE)})


def main() -> int:
    """Runs pip-compile and keeps only what does not depend on this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "requirements.in"
        source.write_text("\n".join(requirements()) + "\n")
        command = [
            *(sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes"),
            *("--allow-unsafe", "--strip-extras", "--no-header", "--no-emit-index-url"),
            *("--no-emit-trusted-host", "--no-emit-find-links", "--no-annotate"),
            *("--output-file", str(LOCK), str(source), *sys.argv[1:]),
        ]
        subprocess.run(command, check=True)
    LOCK.write_text(HEADER + LOCK.read_text())
    print(f"wrote {LOCK.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
