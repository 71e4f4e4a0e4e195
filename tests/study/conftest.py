"""Pictures of few pixels: to draw them takes most of the time of a report."""

import pytest

from nanogka.plots import style


@pytest.fixture(autouse=True)
def pictures(monkeypatch):
    monkeypatch.setattr(style, "DPI", 40)
