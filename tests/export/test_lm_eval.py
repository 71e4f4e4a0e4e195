"""lm-evaluation-harness on an exported folder agrees with our evaluator, item by item.

    NANOGKA_RUN=d4-gaussian NANOGKA_TEST_DATA=FOLDER bash scripts/test.sh -m slow tests/export/test_lm_eval.py -s

does so for a trained run and the files of an evaluation bundle.
"""

import json
import os
import random
import string
from pathlib import Path

import pytest
import torch
from exported import make_run

from nanogka.evaluate import Task, TaskData, evaluate_task
from nanogka.evaluate.in_context import make_questions
from nanogka.evaluate.task import LANGUAGE_MODELING, MULTIPLE_CHOICE, SCHEMA
from nanogka.export import export_run
from nanogka.runs import load_run

pytest.importorskip("accelerate")  # which the harness needs, and does not ask for
lm_eval = pytest.importorskip("lm_eval")

# How the harness asks what a file of our bundle holds.
FORMS = {
    MULTIPLE_CHOICE: {
        "output_type": "multiple_choice",
        "doc_to_text": "{{query}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "gold",
    },
    SCHEMA: {
        "output_type": "multiple_choice",
        "doc_to_text": "gold",
        "doc_to_choice": "{{context_options}}",
        "doc_to_target": "continuation",
    },
    LANGUAGE_MODELING: {
        "output_type": "loglikelihood",
        "doc_to_text": "{{context.strip()}}",
        "doc_to_target": "{{' ' + continuation}}",
    },
}


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Nothing is fetched, and caches are the test's own."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")


def compare(run, tmp_path, files: dict[str, tuple[str, list[dict]]]) -> dict[str, tuple[int, int, int]]:
    """Score items of files by name: (type, items). Returns items, right ones of ours, items on which both agree.

    The harness adds the losses of a choice's tokens where we take their mean, so it is given choices of one length.
    """
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name, (type_, items) in files.items():
        file = tasks / f"{name}.jsonl"
        file.write_text("".join(json.dumps(item) + "\n" for item in items))
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}}, "test_split": "test"}
        acc = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
        task = {"task": name, "metric_list": [acc], "num_fewshot": 0} | data | FORMS[type_]
        (tasks / f"{name}.yaml").write_text(json.dumps(task))
    options = {"trust_remote_code": True, "add_bos_token": True, "dtype": "float32", "device": "cpu", "batch_size": 8}
    model = HFLM(pretrained=str(export_run(run, tmp_path / "exported")), **options)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, tasks=list(files), task_manager=manager, bootstrap_iters=0)
    counts = {}
    for name, (type_, items) in files.items():
        _, predictions = evaluate_task(run.model, run.tokenizer, TaskData(Task(name, type_), items))
        ours = {prediction.line - 1: prediction.correct for prediction in predictions}
        theirs = {sample["doc_id"]: bool(sample["acc"]) for sample in found["samples"][name]}
        assert ours.keys() == theirs.keys()
        agreed = sum(ours[i] == theirs[i] for i in ours)
        counts[name] = (len(ours), sum(ours.values()), agreed)
        assert found["results"][name]["acc,none"] == pytest.approx(sum(theirs.values()) / len(theirs))
    return counts


def alike(run, type_: str, items: list[dict], most: int) -> list[dict]:
    """The first items that both rules score alike: they fit the context, their candidates have as many scored tokens
    each, and those of a schema are its continuation."""
    every, length = range(len(items)), run.model.config.sequence_len
    order = make_questions(run.tokenizer, TaskData(Task("any", type_), items), every, every, length)
    found = []
    for item, question in zip(items, order):
        sizes = {len(candidate.targets) for candidate in question.candidates}
        if type_ == SCHEMA:
            sizes.add(len(run.tokenizer.encode(" " + item["continuation"])))
        if len(sizes) == 1 and not question.truncated:
            found.append(item)
    return found[:most]


def test_three_kinds_of_tasks_agree_to_the_item(tmp_path):
    """Made-up items; half the continuations are what the model itself says. No name ends as another does."""
    run = make_run(tmp_path / "run")
    names = ["Ada", "Bob", "Cleo", "Doris", "Emil", "Finn"]
    choice = [
        {"query": f"{a} met {b} and", "choices": ["ran", "sat", "ate"][::step], "gold": i % 3}
        for i, (a, b) in enumerate(zip(names * 4, names[1:] * 5))
        for step in (1, -1)
    ]
    schema = [
        {
            "context_options": [f"{a} asked {b} since {a}", f"{a} asked {b} since {b}"],
            "continuation": "knew.",
            "gold": i % 2,
        }
        for i, (a, b) in enumerate(zip(names * 4, names[1:] * 5))
    ]
    language, draw = [], random.Random(0)
    for _ in range(200):
        context = "".join(draw.choices(string.ascii_letters, k=12))
        ids = torch.tensor([[run.tokenizer.bos_id, *run.tokenizer.encode(context)]])
        said = run.tokenizer.decode([int(run.model(ids)[0, -1].argmax())])
        if said.startswith(" "):
            language += [{"context": context, "continuation": said[1:]}, {"context": context, "continuation": "x"}]
    files = {
        "choice": (MULTIPLE_CHOICE, choice),
        "schema": (SCHEMA, schema),
        "language": (LANGUAGE_MODELING, language[:30]),
    }
    counts = compare(run, tmp_path, files)
    for name, (items, right, agreed) in counts.items():
        assert agreed == items, f"{name}: {counts}"
        assert 0 < right < items, f"{name}: nothing is told apart: {counts}"


@pytest.mark.slow
@pytest.mark.skipif("NANOGKA_RUN" not in os.environ, reason="NANOGKA_RUN names a trained run")
@pytest.mark.skipif("NANOGKA_TEST_DATA" not in os.environ, reason="NANOGKA_TEST_DATA names a folder with eval_bundle")
def test_a_bundles_files_agree_to_the_item(tmp_path, capsys):
    run = load_run(os.environ["NANOGKA_RUN"])
    bundle = Path(os.environ["NANOGKA_TEST_DATA"]) / "eval_bundle" / "eval_data"
    wanted = {
        "commonsense_reasoning/commonsense_qa": MULTIPLE_CHOICE,
        "commonsense_reasoning/copa": MULTIPLE_CHOICE,
        "reading_comprehension/boolq": MULTIPLE_CHOICE,
        "language_understanding/winograd_wsc": SCHEMA,
        "language_understanding/winogrande": SCHEMA,
        "language_understanding/lambada_openai": LANGUAGE_MODELING,
        "symbolic_problem_solving/bigbench_dyck_languages": LANGUAGE_MODELING,
        "symbolic_problem_solving/bigbench_repeat_copy_logic": LANGUAGE_MODELING,
        "world_knowledge/bigbench_qa_wikidata": LANGUAGE_MODELING,
    }
    files = {}
    for path, type_ in wanted.items():
        items = [json.loads(line) for line in (bundle / f"{path}.jsonl").read_text().splitlines()]
        fitting = alike(run, type_, items[:1000], 100)
        if fitting:
            files[Path(path).name] = (type_, fitting)
    counts = compare(run, tmp_path, files)
    with capsys.disabled():
        for name, (items, right, agreed) in counts.items():
            print(f"{name}: {items} items, {right} right, {agreed} alike")
    assert {files[name][0] for name in counts} == set(FORMS)
    assert all(agreed == items for items, _, agreed in counts.values())
