"""Names of sources with their weights, and the benchmarks that are asked in conversations."""

import json

import pytest

from nanogka.evaluate.chat import final_number, letter_task, number_task
from nanogka.evaluate.hub import open_hub
from nanogka.evaluate.task import item_problem
from tasks import chat_data
from tasks.chat_data import open_source, parse_mixture
from tasks.chat_evaluation import BENCHMARKS

MMLU = {"question": "What is 2 + 2? ", "subject": "maths", "choices": ["1", "2", "4", "5"], "answer": 2}
GSM8K = {"question": "Tom has 1,000 pears and buys 234.", "answer": "1000 + 234 = <<1000+234=1234>>1234\n#### 1,234"}


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


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Local copies of the datasets."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for name, row in (("mmlu", MMLU), ("gsm8k", GSM8K)):
        hub = BENCHMARKS[name].hub
        folder = tmp_path / "mirror" / hub.dataset / hub.config
        folder.mkdir(parents=True)
        (folder / f"{hub.split}.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path / "mirror"


def test_mmlu_and_gsm8k_come_through_datasets_and_are_asked_as_they_are(mirror):
    hub = open_hub(BENCHMARKS, mirror)
    data = hub.load("mmlu")
    assert item_problem(data.task.type, data.items[0]) is None
    (item,) = letter_task(data).items
    assert (item.answer, item.choices) == ("C", 4)
    assert item.prompt.startswith("What is 2 + 2?\n\nA. 1\nB. 2\nC. 4\nD. 5\n\n")
    task = number_task(hub.load("gsm8k"), max_tokens=8)
    assert task.items[0].prompt == GSM8K["question"]
    assert final_number(task.items[0].answer) == 1234
    assert task.is_right("It is 1234.", task.items[0].answer)
    assert not task.is_right("It is 234.", task.items[0].answer)
