"""Names of sources with their weights, and the embedded conversations."""

import pytest

from nanogka.data.chat_tokens import tokenize_source
from nanogka.data.conversation import ChatFormat
from nanogka.tokenizer import SPECIAL_TOKENS, Tokenizer
from tasks import chat_data
from tasks.chat_data import open_source, parse_mixture
from tasks.promise import PROMISE


@pytest.mark.parametrize(
    "text,mixture",
    [
        ("embedded", [("embedded", 1.0)]),
        ("embedded:1,my.jsonl:2", [("embedded", 1.0), ("my.jsonl", 2.0)]),
        (" smoltalk:0.5 , hub:owner/name ", [("smoltalk", 0.5), ("hub:owner/name", 1.0)]),
        ("hub:owner/name@all:3,/a:b/c.jsonl", [("hub:owner/name@all", 3.0), ("/a:b/c.jsonl", 1.0)]),
    ],
)
def test_a_mixture_is_names_with_weights(text, mixture):
    assert parse_mixture(text) == mixture


@pytest.mark.parametrize("text", ["", "a:0", "a:-1", "a:nan", "a:inf", "a,a:2"])
def test_a_mixture_that_means_nothing_is_refused(text):
    with pytest.raises(ValueError, match="data: got "):
        parse_mixture(text)


def test_embedded_conversations_are_generated_once_and_again_only_for_other_ones(base, monkeypatch):
    monkeypatch.setattr(chat_data, "EMBEDDED_TRAIN", 60)
    monkeypatch.setattr(chat_data, "EMBEDDED_VAL", 20)
    made, original = [], chat_data.conversations
    monkeypatch.setattr(chat_data, "conversations", lambda *given: made.append(given) or original(*given))
    template = ChatFormat(
        Tokenizer([bytes([b]) for b in range(256)], {name: 256 + i for i, name in enumerate(SPECIAL_TOKENS)})
    )
    first = tokenize_source(open_source("embedded", 1), template, 500)
    assert len(made) == 2  # training and validation
    again = tokenize_source(open_source("embedded", 1), template, 500)
    assert len(made) == 2
    assert again.train.fingerprint == first.train.fingerprint
    for name, seed in (("embedded", 2), ("embedded-plain", 1), ("embedded-known", 1)):
        assert tokenize_source(open_source(name, seed), template, 500).train.fingerprint != first.train.fingerprint
    assert len(made) == 8
    assert {given[0] for given in made} == {"train", "known", "held_out"}
    assert {given[2] for given in made if given[0] == "held_out"} == {0}, "one validation, whatever the seed"
    assert open_source("embedded", 1).promise == PROMISE


def test_names_of_the_hub_reach_datasets(monkeypatch):
    asked = []
    monkeypatch.setattr(chat_data, "hub_source", lambda *arguments: asked.append(arguments))
    for name in ("smoltalk", "hub:owner/name", "hub:owner/name@all"):
        open_source(name, seed=1)
    assert asked == [("HuggingFaceTB/smol-smoltalk",), ("owner/name", ""), ("owner/name", "all")]


def test_a_name_with_a_comma_or_a_number_behind_a_colon_is_one_file_if_it_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a,b.jsonl", "c:2", "d"):
        (tmp_path / name).write_text("")
    assert parse_mixture("a,b.jsonl") == [("a,b.jsonl", 1.0)]
    mixture = [("embedded", 1.0), ("a,b.jsonl", 3.0), ("c:2", 1.0), ("d", 2.0)]
    assert parse_mixture("embedded,a,b.jsonl:3, c:2,d:2") == mixture
