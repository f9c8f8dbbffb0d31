"""Compares protos/ with the previous commit and the last tag; fails on a breaking change.

A reference that does not exist, or that had no protos yet, is named and passed over.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> str | None:
    """Output of a git command, None if it fails."""
    result = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() if result.returncode == 0 else None


def has_protos(reference: str) -> bool:
    """Whether a commit has a protos folder."""
    return bool(git("ls-tree", reference, "protos/"))


def references() -> list[str]:
    """The previous commit and the last tag, where they exist."""
    candidates = (git("rev-parse", "--verify", "HEAD~1"), git("describe", "--tags", "--abbrev=0"))
    return [reference for reference in candidates if reference]


def main() -> int:
    """Runs `buf breaking` against each reference."""
    failed = False
    for reference in references():
        if not has_protos(reference):
            print(f"protos: {reference[:12]} had none, not compared")
            continue
        against = f".git#ref={reference},subdir=protos"
        command = [str(Path(sys.executable).parent / "buf"), "breaking", "protos"]
        result = subprocess.run([*command, "--against", against], cwd=ROOT, check=False)
        failed |= result.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
