"""Sources of items: a bundle fetched whole and verified or not at all; rows of the hub as the bundle's items."""

import io
import json
import zipfile

import pytest

from nanogka.common.errors import Errors
from nanogka.evaluate.bundle import open_bundle
from nanogka.evaluate.chat import chat_task
from nanogka.evaluate.sources import DownloadError, HubTasks, fetch_bundle, open_source
from tasks import CHAT_TASKS

BUNDLE = {
    "eval_bundle/core.yaml": "icl_tasks: [{label: one, dataset_uri: one.jsonl, icl_task_type: language_modeling}]",
    "eval_bundle/eval_data/one.jsonl": '{"context": "a", "continuation": "b"}',
}


@pytest.fixture
def archive(tmp_path):
    """A .zip of a bundle, in a folder of its own."""
    (tmp_path / "served").mkdir()
    return write_archive(tmp_path / "served/bundle.zip", BUNDLE)


def write_archive(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_bundle_is_fetched_once_and_opened(archive, tmp_path):
    target = tmp_path / "base/eval_bundle.zip"
    assert fetch_bundle(archive.as_uri(), target) == target
    assert open_bundle(target).load("one").items == [{"context": "a", "continuation": "b"}]
    assert [path.name for path in target.parent.iterdir()] == ["eval_bundle.zip"]
    assert fetch_bundle("http://127.0.0.1:1/never", target) == target


@pytest.mark.parametrize(
    "damage,problem",
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "which is neither|not a good .zip"),
        (lambda path: write_archive(path, {"readme.txt": "no bundle"}), "has no core.yaml"),
    ],
)
def test_a_bundle_that_is_not_what_it_should_be_leaves_nothing(archive, tmp_path, damage, problem):
    damage(archive)
    with pytest.raises(ValueError, match=problem):
        fetch_bundle(archive.as_uri(), tmp_path / "base/eval_bundle.zip")
    assert list((tmp_path / "base").iterdir()) == []


def test_a_url_that_cannot_be_fetched_is_one_line(archive, tmp_path, monkeypatch):
    def refused(urls):
        for url in urls:
            with pytest.raises(DownloadError, match="^could not fetch .*$"):
                fetch_bundle(url, tmp_path / "base/eval_bundle.zip")
            assert list((tmp_path / "base").iterdir()) == []

    refused((archive.as_uri() + ".missing", "http://127.0.0.1:1/bundle.zip", "bundle.zip"))
    answer = io.BytesIO(b"PK")  # of a connection cut short, which urllib does not report
    answer.headers = {"Content-Length": "100000"}
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: answer)
    refused(["http://127.0.0.1:1/bundle.zip"])


def test_auto_takes_what_is_there_and_downloads_only_with_a_url(archive, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    monkeypatch.delenv("NANOGKA_EVAL_BUNDLE_URL", raising=False)
    errors, notes = Errors(), []

    def names(choice, needed=""):
        source = open_source(choice, {}, errors, needed, notes)
        return None if source is None else list(source.tasks)

    assert names("auto") == []
    assert "no evaluation bundle" in notes[0]
    monkeypatch.setenv("NANOGKA_EVAL_BUNDLE_URL", archive.as_uri())
    errors.lines.append("something else is wrong")
    assert names("auto", "core") is None
    assert not (tmp_path / "base").exists()
    errors.lines.clear()
    assert names("auto") == ["one"]
    monkeypatch.delenv("NANOGKA_EVAL_BUNDLE_URL")
    assert names("auto", "core") == ["one"]
    assert names("none") == []
    assert len(notes) == 1
    assert not errors.lines


# ---- the Hugging Face hub, for tasks asked in conversations ----

# Each dataset's own columns, of one item, and the item that is made of it.
CHOICES = {"text": ["a marsh", "a tundra", "the plains", "a desert"], "label": ["A", "B", "C", "D"]}
ARC = {"question": "Where is fog?", "choices": CHOICES, "answerKey": "B"}
MMLU = {"question": "What is 2 + 2? ", "subject": "maths", "choices": ["1", "2", "4", "5"], "answer": 2}
GSM8K = {"question": "Tom has 1,000 pears and buys 234.", "answer": "1000 + 234 = <<1000+234=1234>>1234\n#### 1,234"}


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Local copies of the datasets, of ARC with a row whose answer is none of the choices."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = {"arc_easy": [ARC], "arc_challenge": [ARC, ARC | {"answerKey": "E"}], "mmlu": [MMLU], "gsm8k": [GSM8K]}
    for name, own in rows.items():
        hub = CHAT_TASKS[name].hub
        folder = tmp_path / "mirror" / hub.dataset / hub.config
        folder.mkdir(parents=True)
        (folder / f"{hub.split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    return open_source(f"hub:{tmp_path / 'mirror'}", CHAT_TASKS, Errors(), with_hub=True)


def test_items_come_through_datasets_from_a_local_copy(mirror, tmp_path):
    data = mirror.load("arc_easy")
    assert data.items == [{"query": "Question: Where is fog?", "choices": CHOICES["text"], "gold": 1}]
    assert data.source == "allenai/ai2_arc ARC-Easy, test"
    assert mirror.load("mmlu").items == [{"query": "What is 2 + 2?", "choices": ["1", "2", "4", "5"], "gold": 2}]
    (item,) = chat_task(mirror.load("mmlu")).items
    assert (item.answer, item.choices) == ("C", 4)
    assert item.prompt.startswith("What is 2 + 2?\n\nA. 1\nB. 2\nC. 4\nD. 5\n\n")
    task = chat_task(mirror.load("gsm8k"))
    assert task.items[0].prompt == GSM8K["question"]
    assert task.is_right("It is 1234.", task.items[0].answer)
    with pytest.raises(ValueError, match="allenai/ai2_arc ARC-Challenge, test, row 2: not as task arc_challenge"):
        mirror.load("arc_challenge")
    with pytest.raises(ValueError, match="there is no folder .*elsewhere/cais/mmlu/all"):
        HubTasks(CHAT_TASKS, tmp_path / "elsewhere").load("mmlu")


def test_without_a_network_there_is_one_clear_line(monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nand much more")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(OSError, match="^could not fetch") as error:
        HubTasks(CHAT_TASKS).load("mmlu")
    assert str(error.value) == "could not fetch cais/mmlu from the Hugging Face hub: Couldn't reach the Hub"
