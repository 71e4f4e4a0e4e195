"""Bundles: their layout, errors with file and line for everything malformed, and downloads that are whole or absent."""

import json
import re
import shutil
from pathlib import Path

import pytest
from evaluate_fakes import FakeModel, FakeTokenizer, make_items, write_bundle

from nanogka.evaluate import bundle as bundles
from nanogka.evaluate.bundle import fetch_bundle, find_bundle, open_bundle, open_core_tasks, read_items
from nanogka.evaluate.core import evaluate_task
from nanogka.evaluate.task import Task

MC = {"query": "q", "choices": ["a", "b"], "gold": 1}
SCHEMA = {"context_options": ["a", "b"], "continuation": "c", "gold": 0}
LM = {"context": "c", "continuation": "w"}

CORE = """icl_tasks:
-
  label: colors
  dataset_uri: world/colors.jsonl
  num_fewshot: [2]
  icl_task_type: multiple_choice
  continuation_delimiter: "\\nAnswer: "
  has_categories: true
-
  label: ends
  dataset_uri: ends.jsonl
  num_fewshot: 0
  icl_task_type: language_modeling
"""
CHANCES = 'Eval Task,Random baseline,Description\ncolors,25,"about, colors"\nother,9.1,\n'


@pytest.fixture
def bundle(tmp_path):
    root = tmp_path / "made/eval_bundle"
    (root / "eval_data/world").mkdir(parents=True)
    (root / "core.yaml").write_text(CORE)
    (root / "eval_meta_data.csv").write_text(CHANCES)
    for name, type_ in (("world/colors", "multiple_choice"), ("ends", "language_modeling")):
        lines = [json.dumps(item) + "\n" for item in make_items(type_, 8)]
        (root / f"eval_data/{name}.jsonl").write_text("".join(lines))
    return root


@pytest.fixture
def archive(bundle, tmp_path):
    return Path(shutil.make_archive(tmp_path / "served", "zip", bundle.parent, "eval_bundle"))


# ---- reading ----


def test_a_task_that_names_no_number_of_examples_has_none(tmp_path):
    (tmp_path / "core.yaml").write_text(CORE.replace("  num_fewshot: 0\n", ""))
    assert open_bundle(tmp_path).tasks["ends"] == Task("ends", "language_modeling", 0, None, "ends.jsonl", " ")


def test_a_prompt_needs_its_examples_and_the_item_itself(bundle):
    colors = open_bundle(bundle).load("colors")
    assert colors.check_enough_items(3) is colors.check_enough_items(None) is colors
    with pytest.raises(ValueError, match="task colors: got 2 items, expected at least 3: 2 examples and the item"):
        colors.check_enough_items(2)


def test_core_yaml_and_csv_say_how_a_task_is_asked(bundle):
    tasks = open_bundle(bundle).tasks
    assert tasks == {
        "colors": Task("colors", "multiple_choice", 2, 0.25, "world/colors.jsonl", "\nAnswer: "),
        "ends": Task("ends", "language_modeling", 0, None, "ends.jsonl", " "),
    }


def test_folder_and_zip_give_the_same_items(bundle, archive, tmp_path):
    contents = shutil.make_archive(tmp_path / "contents", "zip", bundle)
    for path in (bundle, bundle.parent, archive, contents):
        assert open_bundle(path).load("colors").items == make_items("multiple_choice", 8)


def test_a_zip_that_expands_beyond_the_limit_is_refused(archive, monkeypatch):
    monkeypatch.setattr(bundles, "MAX_FILE_BYTES", 600)
    with pytest.raises(ValueError, match=r"colors.jsonl: .*600"):
        open_bundle(archive).load("colors")


def test_the_example_in_the_documentation_runs(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "evaluation.md"
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    (tmp_path / "eval_data").mkdir()
    (tmp_path / "eval_data" / "capitals.jsonl").write_text(blocks["jsonl"])
    (tmp_path / "core.yaml").write_text(blocks["yaml"])
    result, predictions = evaluate_task(FakeModel(), FakeTokenizer(), open_bundle(tmp_path).load("capitals"))
    assert (result.items, result.unscorable, result.chance) == (2, 0, 1 / 3)
    assert {len(prediction.losses) for prediction in predictions} == {3}


@pytest.mark.parametrize(
    "path", ["../../private.jsonl", "{outside}/private.jsonl", "link.jsonl", "folder/private.jsonl"]
)
def test_a_bundle_reads_no_file_outside_of_its_folder(bundle, tmp_path, path):
    outside = tmp_path / "outside"
    outside.mkdir()
    content = (bundle / "eval_data/ends.jsonl").read_bytes()
    for private in (outside / "private.jsonl", bundle / "private.jsonl", bundle.parent / "private.jsonl"):
        private.write_bytes(content)
    (bundle / "eval_data/link.jsonl").symlink_to(outside / "private.jsonl")
    (bundle / "eval_data/folder").symlink_to(outside)
    (bundle / "core.yaml").write_text(CORE.replace("ends.jsonl", path.format(outside=outside)))
    with pytest.raises(ValueError, match="task ends: got the path .*, expected a file inside .*eval_data"):
        open_bundle(bundle).load("ends")
    assert open_bundle(bundle).load("colors").items


def test_the_folder_of_a_bundles_files_may_be_a_link(bundle, tmp_path):
    (bundle / "eval_data").rename(tmp_path / "elsewhere")
    (bundle / "eval_data").symlink_to(tmp_path / "elsewhere")
    assert open_bundle(bundle).load("colors").items


@pytest.mark.parametrize(
    "type_,line,problem",
    [
        ("multiple_choice", '{"query": ', "Invalid JSON"),
        ("multiple_choice", {"query": "q", "gold": 0}, "choices"),
        ("multiple_choice", {**MC, "choices": ["a", 3]}, "choices.1"),
        ("multiple_choice", {**MC, "gold": 2}, "gold"),
        ("multiple_choice", {**MC, "gold": "1"}, "gold"),
        ("multiple_choice", r'{"query": "\ud83d", "choices": ["a", "b"], "gold": 0}', "Invalid JSON"),
        ("schema", {**SCHEMA, "context_options": ["a"]}, "context_options"),
        ("language_modeling", {"context": "c", "continuation": "\n"}, "continuation"),
        ("language_modeling", "\udcff", "Invalid JSON"),
        ("language_modeling", "", "Invalid JSON"),
    ],
)
def test_a_malformed_item_is_an_error_with_file_and_line(type_, line, problem):
    good = json.dumps({"multiple_choice": MC, "schema": SCHEMA, "language_modeling": LM}[type_]).encode()
    bad = (line if isinstance(line, str) else json.dumps(line)).encode(errors="surrogateescape")
    with pytest.raises(ValueError, match=f"^some.jsonl, line 2: {type_}: .*{problem}"):
        read_items(type_, b"\n".join([good, bad, good]), "some.jsonl")


def test_a_line_separator_inside_a_string_is_no_line_end():
    item = {"context": "a\u2028b\x0bc\x85d", "continuation": "w"}
    line = json.dumps(item, ensure_ascii=False).encode() + b"\r\n"
    assert read_items("language_modeling", line, "x") == [item]


@pytest.mark.parametrize(
    "old,new,problem",
    [
        ("icl_task_type: multiple_choice", "icl_task_type: quiz", "task 1: icl_task_type"),
        ("dataset_uri: ends.jsonl", "", "task 2: dataset_uri"),
        ("label: ends", "label: colors", "task 2: .*colors"),
        ("num_fewshot: [2]", "num_fewshot: [0, 5]", "task 1: num_fewshot"),
        ("num_fewshot: 0", "question_prelude: Please", "task 2: question_prelude"),
        ("icl_tasks:", "tasks:", "icl_tasks"),
    ],
)
def test_a_malformed_core_yaml_is_an_error_with_file_and_task(bundle, old, new, problem):
    assert old in CORE
    (bundle / "core.yaml").write_text(CORE.replace(old, new))
    with pytest.raises(ValueError, match=rf"(?s)core.yaml.*{problem}"):
        open_bundle(bundle)


@pytest.mark.parametrize("change", [("9.1", "low"), ("Eval Task", "Task")])
def test_a_malformed_chance_level_is_an_error_with_file_and_line(bundle, change):
    (bundle / "eval_meta_data.csv").write_text(CHANCES.replace(*change))
    with pytest.raises(ValueError, match="eval_meta_data.csv, line ."):
        open_bundle(bundle)


def test_a_path_that_is_no_bundle_is_an_error(tmp_path, bundle):
    (tmp_path / "note.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, problem in (("nowhere", "does not exist"), ("note.txt", "is neither"), ("empty", "has no core.yaml")):
        with pytest.raises(ValueError, match=f"eval_bundle: .*{name}.*{problem}"):
            open_bundle(tmp_path / name)
    (bundle / "eval_data/ends.jsonl").unlink()
    with pytest.raises(ValueError, match="task ends: .*ends.jsonl does not exist"):
        open_bundle(bundle).load("ends")


# ---- downloading ----


def kept(folder):
    return [path.name for path in folder.iterdir() if not path.name.endswith(".lock")]


def test_a_bundle_is_downloaded_once(archive, tmp_path):
    target = tmp_path / "base/eval_bundle.zip"
    assert fetch_bundle(archive.as_uri(), target) == target
    assert fetch_bundle("http://127.0.0.1:1/never", target) == target
    assert target.read_bytes() == archive.read_bytes()
    assert kept(target.parent) == ["eval_bundle.zip"]


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"<html>not found</html>"])
def test_a_download_that_is_no_bundle_is_not_kept(archive, tmp_path, damage):
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(OSError, match="could not fetch"):
        fetch_bundle(archive.as_uri(), tmp_path / "base/eval_bundle.zip")
    assert kept(tmp_path / "base") == []


def test_nanochats_bundle_must_have_the_pinned_hash(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "NANOCHAT_BUNDLE_URL", archive.as_uri())
    with pytest.raises(OSError, match=bundles.NANOCHAT_BUNDLE_SHA256):
        fetch_bundle(archive.as_uri(), tmp_path / "base/eval_bundle.zip")
    assert kept(tmp_path / "base") == []
    monkeypatch.setattr(bundles, "NANOCHAT_BUNDLE_SHA256", bundles.sha256_of(archive))
    fetch_bundle(archive.as_uri(), tmp_path / "base/eval_bundle.zip")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/bundle.zip", "bundle.zip"])
def test_an_address_that_does_not_answer_is_one_line(tmp_path, url):
    with pytest.raises(OSError, match="^could not fetch .*$"):
        fetch_bundle(url, tmp_path / "base/eval_bundle.zip")


def test_a_damaged_download_gets_a_note_unless_its_tasks_are_required(base):
    base.mkdir()
    (base / "eval_bundle.zip").write_bytes(b"PK but no archive")
    notes = []
    assert find_bundle("auto", notes) is None
    (note,) = notes
    assert note.startswith(f"left out: eval_bundle: got '{base / 'eval_bundle.zip'}'")
    with pytest.raises(ValueError, match="^eval_bundle: got .*eval_bundle.zip"):
        find_bundle("auto", notes, required=True)


def test_a_file_of_a_bundle_that_links_to_itself_is_one_line(tmp_path):
    write_bundle(tmp_path, ["mine"], [])
    items = tmp_path / "eval_data/items.jsonl"
    items.unlink()
    items.symlink_to(items)
    with pytest.raises(ValueError, match="^task mine: .*items.jsonl does not exist$"):
        open_bundle(tmp_path).load("mine")


def test_auto_opens_an_earlier_download_and_only_download_fetches(archive, base, monkeypatch):
    monkeypatch.setenv("NANOGKA_EVAL_BUNDLE_URL", archive.as_uri())
    assert find_bundle("auto", []) is find_bundle("none", []) is None
    assert not base.exists()
    with pytest.raises(ValueError, match="eval_bundle: got 'auto'"):
        open_core_tasks("auto", ("copa",), None)
    assert list(find_bundle("download", []).tasks) == list(find_bundle("auto", []).tasks) == ["colors", "ends"]
    assert find_bundle("none", []) is None
    with pytest.raises(ValueError, match="eval_bundle: got 'auto'"):
        open_core_tasks("auto", ("copa",), None)
