"""scripts.fetch: it opens everything that a later step of speedrun.sh would otherwise download."""

import json
import zipfile
from types import SimpleNamespace

import pytest

from nanogka.data import chat_tokens
from nanogka.data.conversation import ChatFormat
from nanogka.evaluate.settings import URL_VARIABLE
from nanogka.tokenizer import Tokenizer
from scripts import fetch
from tasks import BENCHMARKS
from tasks.chat_data import open_source


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


def test_conversations_are_tokenized_as_fine_tuning_reads_them(base, tmp_path, monkeypatch):
    messages = [[{"role": role, "content": f"{i} hi"} for role in ("user", "assistant")] for i in range(9)]
    (tmp_path / "talk.jsonl").write_text("\n".join(json.dumps({"messages": one}) for one in messages))
    tokenizer = Tokenizer.train(["hi hi"], 270)
    tokenizer.save(base / "tokenizers" / "t")
    words = f"-n 0 --conversations {tmp_path / 'talk.jsonl'} --tokenizer t --sequence-len 64"
    assert fetch.main(words.split()) == 0
    monkeypatch.setattr(chat_tokens, "_tokenize_source", None)  # the tokens on disk are enough
    tokenized = chat_tokens.tokenize_source(open_source(str(tmp_path / "talk.jsonl"), 0), ChatFormat(tokenizer), 65)
    assert len(tokenized.train) + len(tokenized.val) == 9


@pytest.mark.parametrize("flags, code", [
    ("--bundle", 1),
    ("--conversations nowhere.jsonl", 2),
    ("--conversations embedded:-1", 2),
])  # fmt: skip
def test_what_can_not_be_fetched_fails(base, monkeypatch, flags, code):
    monkeypatch.setenv(URL_VARIABLE, "file:///nowhere.zip")
    assert fetch.main(["-n", "0", *flags.split()]) == code
