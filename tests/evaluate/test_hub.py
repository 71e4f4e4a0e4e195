"""Tasks from the hub: rows become the bundle's items, read from local copies; without a network one clear line."""

import json

import pytest

from nanogka.evaluate.download import DownloadError
from nanogka.evaluate.hub import open_hub
from nanogka.evaluate.task import item_problem
from tasks import TASKS

# Each dataset's own columns, of one item, and the item that the evaluation bundle makes of it.
CHOICES = {"text": ["a marsh", "a tundra", "the plains", "a desert"], "label": ["A", "B", "C", "D"]}
ROWS = {
    "hellaswag": (
        {
            "activity_label": "Roof shingle removal",
            "ctx_a": "A man is sitting on a roof.",
            "ctx_b": "he",
            "endings": ["is using wrap.", "[substeps] rips  tiles off.", "holds a cube.", "pulls up roofing."],
            "label": "3",
        },
        {
            "query": "Roof shingle removal: A man is sitting on a roof. He",
            "choices": ["is using wrap.", "rips tiles off.", "holds a cube.", "pulls up roofing."],
            "gold": 3,
        },
    ),
    "arc_easy": (
        {"question": "Where is fog?", "choices": CHOICES, "answerKey": "B"},
        {"query": "Question: Where is fog?", "choices": CHOICES["text"], "gold": 1},
    ),
    "openbook_qa": (
        {"question_stem": "There is fog around:", "choices": CHOICES, "answerKey": "A"},
        {"query": "There is fog around:", "choices": CHOICES["text"], "gold": 0},
    ),
    "copa": (
        {
            "premise": "The man turned on the faucet.",
            "choice1": "The toilet filled with water.",
            "choice2": "Water flowed from the spout.",
            "question": "effect",
            "label": 1,
        },
        {
            "query": "The man turned on the faucet, therefore",
            "choices": ["the toilet filled with water.", "water flowed from the spout."],
            "gold": 1,
        },
    ),
    "winogrande": (
        {
            "sentence": "Sarah was a better surgeon than Maria so _ always got the easier cases.",
            "option1": "Sarah",
            "option2": "Maria",
            "answer": "2",
        },
        {
            "context_options": [
                "Sarah was a better surgeon than Maria so Sarah",
                "Sarah was a better surgeon than Maria so Maria",
            ],
            "continuation": "always got the easier cases.",
            "gold": 1,
        },
    ),
    "lambada_openai": (
        {"text": "A stone, a sign. I don't care about signs"},
        {"context": "A stone, a sign. I don't care about", "continuation": "signs"},
    ),
    "boolq": (
        {"passage": "Zero is an even number.", "question": "is zero even", "answer": True},
        {"query": "Passage: Zero is an even number.\nQuestion: is zero even?", "choices": ["no", "yes"], "gold": 1},
    ),
    "squad": (
        {
            "context": "He had four.",
            "question": " How many? ",
            "answers": {"text": ["four", "4"], "answer_start": [7, 7]},
        },
        {"context": "Context: He had four.\nQuestion: How many?\nAnswer:", "continuation": "four"},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_becomes_the_item_that_the_bundle_has(name):
    row, item = ROWS[name]
    assert TASKS[name].hub.convert(row) == item
    assert item_problem(TASKS[name].type, item) is None


def test_every_source_is_tested():
    sources = {task.hub.convert for task in TASKS.values() if task.hub}
    assert sources == {TASKS[name].hub.convert for name in ROWS}


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Local copies of two datasets."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    def write(name, rows):
        hub = TASKS[name].hub
        folder = tmp_path / "mirror" / hub.dataset / hub.config
        folder.mkdir(parents=True)
        (folder / f"{hub.split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("boolq", [ROWS["boolq"][0] | {"question": f"is {i} even", "answer": i % 2 == 0} for i in range(12)])
    write("arc_easy", [ROWS["arc_easy"][0], ROWS["arc_easy"][0] | {"answerKey": "E"}])
    return tmp_path / "mirror"


def test_items_come_through_datasets_from_a_local_copy(mirror):
    data = open_hub(TASKS, mirror).load("boolq")
    assert [item["gold"] for item in data.items] == [1, 0] * 6
    assert data.items[3]["query"].endswith("Question: is 3 even?")
    assert data.source == "google/boolq, validation"
    assert data.chance == TASKS["boolq"].chance


def test_a_row_that_is_not_as_expected_is_an_error_that_names_it(mirror):
    hub = open_hub(TASKS, mirror)
    with pytest.raises(ValueError, match="allenai/ai2_arc ARC-Easy, test, row 2: not as task arc_easy expects"):
        hub.load("arc_easy")
    with pytest.raises(ValueError, match="there is no folder .*winogrande_xl"):
        hub.load("winogrande")
    with pytest.raises(ValueError, match="task 'jeopardy' is not on the hub; there are hellaswag_zeroshot,"):
        hub.load("jeopardy")


def test_without_a_network_there_is_one_clear_line(monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nand much more")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(DownloadError) as error:
        open_hub(TASKS).load("copa")
    assert str(error.value) == "could not fetch aps/super_glue from the Hugging Face hub: Couldn't reach the Hub"
