"""scripts.fetch: it opens everything that a later step of speedrun.sh would otherwise download."""

import json
import zipfile
from types import SimpleNamespace

import pytest

from nanogka.evaluate.settings import URL_VARIABLE
from scripts import fetch
from tasks import BENCHMARKS


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """A bundle that can be downloaded."""
    core = "icl_tasks: [{label: one, dataset_uri: one.jsonl, icl_task_type: language_modeling}]"
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        archive.writestr("eval_bundle/core.yaml", core)
        archive.writestr("eval_bundle/eval_data/one.jsonl", json.dumps({"context": "a", "continuation": "b"}))
    monkeypatch.setenv(URL_VARIABLE, (tmp_path / "made.zip").as_uri())


def test_bundle_chat_tasks_and_conversations_are_fetched(base, bundle, tmp_path, monkeypatch):
    asked = []
    task = SimpleNamespace(items=[])
    for name in BENCHMARKS:
        monkeypatch.setitem(BENCHMARKS, name, lambda source, name=name: asked.append(name) or task)
    message = [{"role": role, "content": "hi"} for role in ("user", "assistant")]
    (tmp_path / "talk").mkdir()
    (tmp_path / "talk" / "train.jsonl").write_text(json.dumps({"messages": message}))
    assert fetch.main(f"-n 0 --bundle --chat-tasks --conversations hub:{tmp_path / 'talk'},embedded".split()) == 0
    assert (base / "eval_bundle.zip").is_file()
    assert set(asked) == set(BENCHMARKS)


@pytest.mark.parametrize("flags, code", [
    ("--bundle", 1),
    ("--conversations nowhere.jsonl", 2),
    ("--conversations embedded:-1", 2),
])  # fmt: skip
def test_what_can_not_be_fetched_fails(base, monkeypatch, flags, code):
    monkeypatch.setenv(URL_VARIABLE, "file:///nowhere.zip")
    assert fetch.main(["-n", "0", *flags.split()]) == code
