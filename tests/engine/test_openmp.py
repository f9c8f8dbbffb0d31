"""How long OpenMP threads spin is settled before torch is loaded, and the user's word stands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import os, sys, engine.build
loaded = list(sys.modules)
print(os.environ.get("GOMP_SPINCOUNT"), loaded.index("engine") < loaded.index("torch"))
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "500 True"),
        ({"GOMP_SPINCOUNT": "7"}, "7 True"),
        ({"OMP_WAIT_POLICY": "active"}, "None True"),
    ],
)
def test_spinning_is_short_unless_the_user_says_otherwise(
    settings: dict[str, str], expected: str
) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=kept | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == expected
