"""Datasets of the hub: a pinned revision, local copies, and one line without a network."""

import json

import pytest

from nanogka.data.hub import REVISIONS, Hub


def test_a_dataset_known_by_name_is_read_at_its_commit(monkeypatch):
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: asked.append((names, options)))
    Hub().load("cais/mmlu", "all", "test")
    Hub().load("owner/name")
    assert asked == [
        (("cais/mmlu", "all"), {"split": "test", "revision": REVISIONS["cais/mmlu"]}),
        (("owner/name",), {"split": None}),
    ]
    assert all(len(commit) == 40 for commit in REVISIONS.values())


def test_a_local_copy_is_read_and_a_missing_one_named(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "copies/cais/mmlu/all"
    folder.mkdir(parents=True)
    (folder / "test.jsonl").write_text(json.dumps({"question": "Why?"}) + "\n")
    assert list(Hub(tmp_path / "copies").load("cais/mmlu", "all", "test")) == [{"question": "Why?"}]
    with pytest.raises(ValueError, match="copies/openai/gsm8k/main"):
        Hub(tmp_path / "copies").load("openai/gsm8k", "main", "test")


def test_a_folder_that_datasets_saved_is_read(tmp_path):
    import datasets  # here, because it takes seconds

    train, other = datasets.Dataset.from_dict({"text": ["a", "b"]}), datasets.Dataset.from_dict({"text": ["c"]})
    train.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": train, "test": other}).save_to_disk(tmp_path / "both")
    for name in ("one", "both"):
        for streaming in (False, True):
            texts = Hub().texts(str(tmp_path / name), "", "train", "text", streaming=streaming, seed=1)
            assert sorted(texts) == ["a", "b"]
    assert {split: rows["text"][:] for split, rows in Hub().load(str(tmp_path / "both")).items()} == {
        "train": ["a", "b"],
        "test": ["c"],
    }
    with pytest.raises(OSError, match="it has the splits train, not test"):
        Hub().load(str(tmp_path / "one"), split="test")


def test_without_a_network_there_is_one_clear_line(monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nand much more")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(OSError, match="^could not fetch cais/mmlu .*: Couldn't reach the Hub$"):
        Hub().load("cais/mmlu", "all", "test")
