"""Names of sources with their weights."""

import pytest

from tasks import chat_data
from tasks.chat_data import open_source, parse_mixture


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
    with pytest.raises(ValueError, match="--data: got "):
        parse_mixture(text)


def test_names_of_the_hub_reach_datasets(monkeypatch):
    asked = []
    monkeypatch.setattr(chat_data, "hub_source", lambda *arguments: asked.append(arguments))
    for name in ("smoltalk", "hub:owner/name", "hub:owner/name@all"):
        open_source(name, seed=1)
    assert asked == [("HuggingFaceTB/smol-smoltalk",), ("owner/name", ""), ("owner/name", "all")]
