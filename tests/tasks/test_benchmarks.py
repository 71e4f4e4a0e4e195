"""Benchmarks of the hub: rows with the real columns become questions, and an unexpected row is named."""

import json

import pytest

from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import open_bundle
from tasks import BENCHMARKS

# One row of each dataset, with its columns.
CHOICES = {"text": ["a marsh", "a tundra", "the plains", "a desert"], "label": ["A", "B", "C", "D"]}
ARC = {"id": "1", "question": "Where is fog?", "choices": CHOICES, "answerKey": "B"}
NUMBERED = ARC | {"choices": CHOICES | {"label": ["1", "2", "3", "4"]}, "answerKey": "3"}
MMLU = {"question": "What is 2 + 2?", "subject": "maths", "choices": ["1", "2", "4", "5"], "answer": 2}
GSM8K = {"question": "Tom has 1,000 pears and buys 234.", "answer": "1000 + 234 = <<1000+234=1234>>1234\n#### 1,234"}


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """`mirror(dataset, config, rows)` writes a local copy and returns a hub that reads it."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    def write(dataset, config, rows, split="test"):
        folder = tmp_path / "mirror" / dataset / config
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Hub(tmp_path / "mirror")

    return write


def test_arc_keeps_the_labels_of_its_choices(mirror):
    task = BENCHMARKS["arc_easy"](mirror("allenai/ai2_arc", "ARC-Easy", [ARC, NUMBERED]))
    assert [(item.answer, item.letters) for item in task.items] == [("B", tuple("ABCD")), ("3", tuple("1234"))]
    assert task.items[0].prompt.startswith("Multiple Choice question: Where is fog?\n- a marsh=A\n- a tundra=B\n")
    assert (task.name, task.type, task.chance) == ("arc_easy", "letter", 0.25)


def test_arc_of_the_bundle_is_the_same_question(tmp_path):
    (tmp_path / "eval_data").mkdir()
    item = {"query": "Question: Where is fog?", "choices": CHOICES["text"], "gold": 1}
    (tmp_path / "eval_data/arc.jsonl").write_text(json.dumps(item) + "\n")
    entry = {"label": "arc_easy", "dataset_uri": "arc.jsonl", "icl_task_type": "multiple_choice"}
    (tmp_path / "core.yaml").write_text(json.dumps({"icl_tasks": [entry]}))
    bundle = open_bundle(tmp_path)
    (question,) = BENCHMARKS["arc_easy"](bundle).items
    assert (question.answer, question.prompt.splitlines()[0]) == ("B", "Multiple Choice question: Where is fog?")
    assert [name for name, load in BENCHMARKS.items() if load(bundle)] == ["arc_easy"]


def test_mmlu_and_gsm8k_become_questions(mirror):
    mirror("cais/mmlu", "all", [MMLU])
    hub = mirror("openai/gsm8k", "main", [GSM8K])
    (item,) = BENCHMARKS["mmlu"](hub).items
    assert (item.answer, item.letters) == ("C", tuple("ABCD"))
    (item,) = BENCHMARKS["gsm8k"](hub).items
    assert item.prompt == GSM8K["question"]
    for reply, right in (("It is 1234.", True), (item.answer, True), ("#### 1235", False), ("none", False)):
        assert item.judge(reply, item.answer) is right


def test_a_row_that_is_not_as_expected_is_named(mirror):
    hub = mirror("allenai/ai2_arc", "ARC-Challenge", [ARC, ARC | {"answerKey": "E"}])
    with pytest.raises(ValueError, match="allenai/ai2_arc ARC-Challenge, test, row 2: "):
        BENCHMARKS["arc_challenge"](hub)
