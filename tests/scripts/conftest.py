"""The base folder of a test."""

from pathlib import Path

import pytest


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    """The base folder, which does not exist yet."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    return tmp_path / "base"
