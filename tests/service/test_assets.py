"""What the service reads besides the weights."""

from pathlib import Path

import pytest

from service.assets import load_assets


def test_a_template_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_bytes(b"\xd0\xff")
    with pytest.raises(ValueError, match=r"chat_template .*template\.jinja is not UTF-8 text"):
        load_assets(str(tmp_path), str(path))
