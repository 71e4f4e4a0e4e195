"""scripts.fetch: it opens everything that a later step of speedrun.sh would otherwise download."""

import json
import shutil

import pytest
from evaluate_fakes import write_core_bundle

from nanogka.evaluate import sources
from scripts import fetch
from tasks import CHAT_TASKS, TASKS


@pytest.fixture
def bundle(base, tmp_path, monkeypatch) -> str:
    """The address of a bundle that can be downloaded."""
    write_core_bundle(tmp_path / "eval_bundle", ["copa"], TASKS)
    file = shutil.make_archive(str(tmp_path / "made"), "zip", tmp_path, "eval_bundle")
    monkeypatch.setenv(sources.URL_VARIABLE, f"file://{file}")
    return file


def test_bundle_chat_tasks_and_conversations_are_fetched(base, bundle, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sources.HubTasks, "load", lambda self, name: asked.append(name))
    message = [{"role": role, "content": "hi"} for role in ("user", "assistant")]
    (tmp_path / "talk").mkdir()
    (tmp_path / "talk" / "train.jsonl").write_text(json.dumps({"messages": message}))
    assert fetch.main(f"-n 0 --bundle --chat-tasks --conversations hub:{tmp_path / 'talk'},embedded".split()) == 0
    assert (base / "eval_bundle.zip").is_file()
    assert set(asked) == set(CHAT_TASKS)


@pytest.mark.parametrize("flags, code", [
    ("--bundle", 1),
    ("--conversations nowhere.jsonl", 2),
    ("--conversations embedded:-1", 2),
])  # fmt: skip
def test_what_can_not_be_fetched_fails(base, monkeypatch, flags, code):
    monkeypatch.setenv(sources.URL_VARIABLE, "file:///nowhere.zip")
    assert fetch.main(["-n", "0", *flags.split()]) == code
