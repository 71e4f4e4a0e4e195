"""The notebook docs/tour.ipynb: every cell runs, in order, and what it leaves is a model that talks."""

import json
from pathlib import Path

import matplotlib
import pytest

from tasks.promise import PROMISE

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tour.ipynb"


def test_the_outputs_that_are_kept_are_of_a_model_that_makes_todays_promise():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    printed = ["".join(out.get("text", "")) for cell in cells for out in cell.get("outputs", [])]
    assert f"> What can you do?\n{PROMISE}\n" in printed[-1]


@pytest.mark.slow  # a minute of training
def test_every_cell_of_the_tour_runs_and_the_model_talks(corpora, tmp_path, monkeypatch, capsys):
    (tmp_path / "corpora").symlink_to(corpora)
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("TOUR_STEPS", "200")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])  # the command adds a folder
    matplotlib.use("agg")
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert "image/png" in text, "kept with its outputs"
    assert len(text) < 200_000
    notebook = json.loads(text)
    names: dict = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name} {cell['id']}", "exec"), names)
    said = capsys.readouterr().out
    assert "> Hello, who are you?" in said
    assert "repeat, spell, count letters" in said
