"""Bundles: the layout, and an error with file and line for everything malformed."""

import json
import re
import shutil
from pathlib import Path

import pytest
from evaluate_fakes import FakeModel, FakeTokenizer, make_items

from nanogka.evaluate.bundle import open_bundle, read_items
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
    root = tmp_path / "eval_bundle"
    (root / "eval_data/world").mkdir(parents=True)
    (root / "core.yaml").write_text(CORE)
    (root / "eval_meta_data.csv").write_text(CHANCES)
    write(root / "eval_data/world/colors.jsonl", make_items("multiple_choice", 8))
    write(root / "eval_data/ends.jsonl", make_items("language_modeling", 6))
    return root


def write(file, items):
    file.write_text("".join(json.dumps(item) + "\n" for item in items))


def test_core_yaml_and_csv_say_how_a_task_is_asked(bundle):
    tasks = open_bundle(bundle).tasks
    assert list(tasks) == ["colors", "ends"]
    assert tasks["colors"] == Task("colors", "multiple_choice", 2, 0.25, "world/colors.jsonl", "\nAnswer: ")
    assert tasks["ends"] == Task("ends", "language_modeling", 0, None, "ends.jsonl", " ")


def test_folder_and_zip_give_the_same_items(bundle, tmp_path):
    whole = shutil.make_archive(tmp_path / "whole", "zip", bundle.parent, "eval_bundle")
    contents = shutil.make_archive(tmp_path / "contents", "zip", bundle)
    for path in (bundle, bundle.parent, whole, contents):
        data = open_bundle(path).load("colors")
        assert data.items == make_items("multiple_choice", 8)
        assert data.line(7) == 8


def test_a_zip_that_expands_beyond_the_limit_is_refused(bundle, tmp_path, monkeypatch):
    (bundle / "eval_data/ends.jsonl").write_bytes(b" " * 3_000_000)
    archive = shutil.make_archive(tmp_path / "bomb", "zip", bundle.parent, "eval_bundle")
    assert Path(archive).stat().st_size < 10_000
    monkeypatch.setattr("nanogka.evaluate.bundle.MAX_FILE_BYTES", 1_000_000)
    assert len(open_bundle(archive).load("colors").items) == 8
    with pytest.raises(ValueError, match=r"ends.jsonl: .*1,000,000"):
        open_bundle(archive).load("ends")


def test_the_task_of_ones_own_in_the_documentation_runs(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "evaluation.md"
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    (tmp_path / "eval_data").mkdir()
    (tmp_path / "eval_data" / "capitals.jsonl").write_text(blocks["jsonl"])
    (tmp_path / "core.yaml").write_text(blocks["yaml"])
    result, predictions = evaluate_task(FakeModel(), FakeTokenizer(), open_bundle(tmp_path).load("capitals"))
    assert (result.items, result.unscorable, result.chance) == (2, 0, 1 / 3)
    assert {len(prediction.losses) for prediction in predictions} == {3}


@pytest.mark.parametrize(
    "type_,line,problem",
    [
        ("multiple_choice", '{"query": ', "bad JSON: "),
        ("multiple_choice", '["a"]', "expected an object"),
        ("multiple_choice", {"query": "q", "gold": 0}, "'choices'"),
        ("multiple_choice", {**MC, "choices": ["a", 3]}, "'choices'"),
        ("multiple_choice", {**MC, "gold": 2}, "'gold'"),
        ("multiple_choice", {**MC, "gold": True}, "'gold'"),
        ("multiple_choice", r'{"query": "\ud83d", "choices": ["a", "b"], "gold": 0}', "surrogate"),
        ("schema", {**SCHEMA, "context_options": ["a"]}, "'context_options'"),
        ("language_modeling", {"context": "c", "continuation": "\n"}, "'continuation'"),
        ("language_modeling", "", "not UTF-8"),
    ],
)
def test_a_malformed_item_is_an_error_with_file_and_line(type_, line, problem):
    good = json.dumps({"multiple_choice": MC, "schema": SCHEMA, "language_modeling": LM}[type_]).encode()
    bad = (line if isinstance(line, str) else json.dumps(line)).encode() or b"\xff"
    with pytest.raises(ValueError, match="^some.jsonl, line 3: ") as error:
        read_items(type_, b"\n".join([good, b"", bad, good]), "some.jsonl")
    assert problem in str(error.value)


def test_a_line_separator_inside_a_string_is_no_line_end():
    item = {"context": "a\u2028b\x0bc\x85d", "continuation": "w"}
    items, lines = read_items("language_modeling", json.dumps(item, ensure_ascii=False).encode() + b"\r\n", "x")
    assert (items, lines) == ([item], [1])


@pytest.mark.parametrize(
    "old,new,problem",
    [
        ("icl_task_type: multiple_choice", "icl_task_type: quiz", "task 1: icl_task_type: got 'quiz'"),
        ("dataset_uri: ends.jsonl", "", "task 2: missing dataset_uri"),
        ("label: ends", "label: colors", "task 2: .*colors"),
        ("num_fewshot: [2]", "num_fewshot: [0, 5]", r"task 1: task colors: got \[0, 5\] shots"),
        ("num_fewshot: 0", "question_prelude: Please", "task 2: unknown key question_prelude"),
        ("icl_tasks:", "tasks:", "expected a key icl_tasks"),
        ('continuation_delimiter: "\\nAnswer: "', "continuation_delimiter: 3", "continuation_delimiter: got 3"),
    ],
)
def test_a_malformed_core_yaml_is_an_error_with_file_and_task(bundle, old, new, problem):
    assert old in CORE
    (bundle / "core.yaml").write_text(CORE.replace(old, new))
    with pytest.raises(ValueError, match=rf"(?s)core.yaml.*{problem}"):
        open_bundle(bundle)


@pytest.mark.parametrize("change", [("9.1", "low"), ("Eval Task", "Task"), ("colors", "\udcff")])
def test_a_malformed_chance_level_is_an_error_with_file_and_line(bundle, change):
    content = CHANCES.replace(*change).encode(errors="surrogateescape")
    (bundle / "eval_meta_data.csv").write_bytes(content)
    with pytest.raises(ValueError, match="eval_meta_data.csv, line ."):
        open_bundle(bundle)


def test_a_folder_or_file_that_is_no_bundle_is_an_error(tmp_path, bundle):
    (tmp_path / "note.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, problem in (
        ("nowhere", "nowhere"),
        ("note.txt", "note.txt"),
        ("empty", "has no core.yaml"),
    ):
        with pytest.raises(ValueError, match=problem):
            open_bundle(tmp_path / name)
    (bundle / "eval_data/ends.jsonl").unlink()
    with pytest.raises(ValueError, match="task ends: .*ends.jsonl does not exist"):
        open_bundle(bundle).load("ends")
