"""Benchmarks of the hub: rows with the real columns become questions, and an unexpected row is named."""

import json

import pytest
from generate_models import byte_tokenizer

from nanogka.data.conversation import ChatFormat
from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import open_bundle
from nanogka.evaluate.chat import chatcore_of
from nanogka.evaluate.results import TaskResult
from tasks import BENCHMARKS, CHATCORE
from tasks.chat_data import open_source

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

    write.root = tmp_path / "mirror"
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
    task = BENCHMARKS["gsm8k"](hub)
    (item,) = task.items
    assert task.max_tokens == 512
    assert item.prompt == GSM8K["question"]
    for reply, right in (("It is 1234.", True), (item.answer, True), ("#### 1235", False), ("none", False)):
        assert item.judge(reply, item.answer) is right


HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'from math import gcd\n\n\ndef f(a, b):\n    """The least common multiple."""\n',
    "canonical_solution": "    return a * b // gcd(a, b)\n",
    "test": "def check(candidate):\n    assert candidate(4, 6) == 12\n",
    "entry_point": "f",
}


def test_humaneval_is_judged_by_its_tests(mirror):
    task = BENCHMARKS["humaneval"](mirror("openai/openai_humaneval", "openai_humaneval", [HUMANEVAL]))
    (item,) = task.items
    assert (task.max_tokens, task.chance) == (512, 0.0)
    assert item.judge(item.answer, item.answer)
    # the reply may leave out the imports, and may have text around its code
    assert item.judge("Sure:\n```python\ndef f(a, b):\n    return a * b // gcd(a, b)\n```\nDone.", "")
    for wrong in ("def f(a, b):\n    return a * b", "no program", ""):
        assert not item.judge(wrong, "")


def test_chatcore_is_the_mean_of_the_five_centered_scores():
    def result(name, correct):
        return TaskResult(name, "letter", 0, 0.5, correct, 100, 1.0)

    scores = {"arc_easy": 40, "arc_challenge": 25, "mmlu": 55, "gsm8k": 10, "humaneval": 20}
    results = [result(name, correct) for name, correct in scores.items()]
    assert chatcore_of([*results, result("spelling", 100)], CHATCORE) == pytest.approx((0.2 + 0 + 0.4 + 0.1 + 0.2) / 5)
    assert chatcore_of(results[1:], CHATCORE) is None


TOKENIZER = byte_tokenizer()


def decoded(ids):
    """The tokens of a byte tokenizer as text, special ones by name."""
    names = {number: name for name, number in TOKENIZER.special_tokens.items()}
    return "".join(names.get(token) or chr(token) for token in ids)


@pytest.fixture
def rendered(mirror, monkeypatch):
    """`rendered(source)`: the first training conversation as text, and the part of it that is learned."""

    def render(name):
        monkeypatch.setattr("nanogka.data.chat_sources.Hub", lambda: Hub(mirror.root))
        source = open_source(name, seed=1)
        _, entry = next(source.train())
        ids, mask = ChatFormat(TOKENIZER).render(source.convert(entry))
        return decoded(ids), decoded([token for token, learned in zip(ids, mask) if learned])

    return render


def test_gsm8k_to_learn_from_has_nanochats_calls_of_the_calculator(mirror, rendered):
    mirror("openai/gsm8k", "main", [GSM8K], "train")
    # What nanochat's render_conversation gives for this row, at commit 92d63d4, with its loss mask.
    text, learned = rendered("gsm8k")
    call = "<|python_start|>1000+234<|python_end|>"
    assert text == (
        "<|bos|><|user_start|>Tom has 1,000 pears and buys 234.<|user_end|><|assistant_start|>1000 + 234 = "
        f"{call}<|output_start|>1234<|output_end|>1234\n#### 1,234<|assistant_end|>"
    )
    assert learned == f"1000 + 234 = {call}1234\n#### 1,234<|assistant_end|>"


def test_multiple_choice_to_learn_from_is_answered_by_the_letter(mirror, rendered, monkeypatch):
    datasets = pytest.importorskip("datasets")
    # `datasets` would take a local file auxiliary_train.jsonl for the split train
    splits = {split: [MMLU | {"question": split}] for split in ("test", "validation", "dev", "auxiliary_train")}
    splits = datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in splits.items()})
    with monkeypatch.context() as patch:
        patch.setattr(Hub, "load", lambda self, dataset, config: splits)
        text, learned = rendered("mmlu")
    assert text.startswith("<|bos|><|user_start|>Multiple Choice question: auxiliary_train\n- 1=A\n- 2=B\n- 4=C\n")
    assert learned == "C<|assistant_end|>"
    for config in ("ARC-Easy", "ARC-Challenge"):
        for split in ("train", "validation", "test"):
            mirror("allenai/ai2_arc", config, [NUMBERED | {"question": f"{config} {split}"}], split)
    text, learned = rendered("arc")
    assert learned == "3<|assistant_end|>"
    assert [row["question"] for _, row in open_source("arc", seed=1).val()] == [
        "ARC-Easy validation",
        "ARC-Challenge validation",
    ]


def test_a_row_that_is_not_as_expected_is_named(mirror):
    hub = mirror("allenai/ai2_arc", "ARC-Challenge", [ARC, ARC | {"answerKey": "E"}])
    with pytest.raises(ValueError, match="allenai/ai2_arc ARC-Challenge, test, row 2: "):
        BENCHMARKS["arc_challenge"](hub)
