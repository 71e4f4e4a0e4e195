"""The document of an evaluation: what an earlier one may save, on every rank alike."""

import json
from types import SimpleNamespace

import pytest

from nanogka.common.distributed import Ranks
from nanogka.evaluate.document import Document
from nanogka.evaluate.settings import EvalSettings


@pytest.fixture
def opened(tmp_path):
    """`opened(rank, said)`: the document of a rank. Rank 0 adds to `said` what it gathers, the other ranks take it."""

    def make(rank: int = 0, said: list | None = None, **settings: object) -> Document:
        said = [] if said is None else said
        gather = (lambda value: said.append(value) or [value]) if rank == 0 else (lambda value: [said.pop(0), value])
        ranks = SimpleNamespace(is_main=rank == 0, all_gather=gather)
        settings = SimpleNamespace(**{"cache": True, "json": False} | settings)
        content = {"complete": False, "made_from": f"on device {rank}", "notes": []}
        return Document(tmp_path / "found.json", "model", content, settings, ranks, 0.0)

    return make


@pytest.mark.parametrize("complete", [True, False])
def test_all_ranks_take_the_decision_of_rank_0(opened, complete):
    opened().save(complete=complete)
    said: list = []
    decided = [(earlier := one.earlier(), one.is_finished_by(earlier)) for one in (opened(0, said), opened(1, said))]
    assert decided[0] == decided[1]
    assert decided[0][1] is complete


def test_a_document_is_written_after_each_part_and_complete_at_the_end(opened, capsys):
    document = opened()
    document.save(bpb={"val": 1.5})
    assert json.loads(document.file.read_text()) == document.content
    assert document.content["complete"] is False
    document.finish()
    found = json.loads(document.file.read_text())
    assert (found["complete"], found["bpb"]) == (True, {"val": 1.5})
    assert f"written to {document.file}" in capsys.readouterr().out
    assert opened().earlier() == found
    assert opened(cache=False).earlier() == {}
    document.file.write_text("[1")
    assert opened().earlier() == {}


def test_results_go_to_the_file_that_is_asked_for_or_into_the_models_folder(tmp_path):
    model = SimpleNamespace(folder=tmp_path / "run", title="model", to_json=dict)
    for output, path in (
        ("", tmp_path / "run" / "found.json"),
        (str(tmp_path / "a" / "b.json"), tmp_path / "a/b.json"),
    ):
        document = Document.open(
            model, EvalSettings(output=output), "found.json", "key", [], SimpleNamespace(is_main=True)
        )
        assert document.file == path
        assert path.parent.is_dir()


def test_the_folder_of_the_results_is_made(tmp_path):
    """A model of another library has its results in a folder of its own, of which nothing may exist yet."""
    folder = tmp_path / "evaluations" / "theirs"
    model = SimpleNamespace(folder=folder, title="theirs", to_json=dict)
    for _ in range(2):
        document = Document.open(model, EvalSettings(), "evaluation.json", "a", [], Ranks())
        document.save()
    assert json.loads((folder / "evaluation.json").read_text())["made_from"] == "a"
