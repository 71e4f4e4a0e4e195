"""lm-evaluation-harness on an exported folder agrees with our evaluator, item by item."""

import json
import random
import string

import pytest
import torch
from exported import make_run

from nanogka.evaluate.core import evaluate_task
from nanogka.evaluate.loglikelihood import GPTScorer
from nanogka.evaluate.task import LANGUAGE_MODELING, MULTIPLE_CHOICE, SCHEMA, LoadedTask, Task
from nanogka.export import export_run

pytest.importorskip("accelerate")  # which the harness needs, and does not ask for
lm_eval = pytest.importorskip("lm_eval")

# How the harness asks what a file of our bundle holds: output_type, doc_to_text, doc_to_target, doc_to_choice.
FORMS = {
    MULTIPLE_CHOICE: ("multiple_choice", "{{query}}", "gold", "{{choices}}"),
    SCHEMA: ("multiple_choice", "gold", "continuation", "{{context_options}}"),
    LANGUAGE_MODELING: ("loglikelihood", "{{context.strip()}}", "{{' ' + continuation}}"),
}


def made_up(run):
    """{task type: items}; half the continuations are what the model itself says. No name ends as another does.

    The harness adds the losses of a choice's tokens where we take their mean, so choices have one length.
    """
    names = ["Ada", "Bob", "Cleo", "Doris", "Emil", "Finn"]
    pairs = list(enumerate(zip(names * 4, names[1:] * 5)))
    choice = [
        {"query": f"{a} met {b} and", "choices": ["ran", "sat", "ate"][::step], "gold": i % 3}
        for i, (a, b) in pairs
        for step in (1, -1)
    ]
    schema = [
        {"context_options": [f"{a} asked {b} since {c}" for c in (a, b)], "continuation": "knew.", "gold": i % 2}
        for i, (a, b) in pairs
    ]
    language, draw = [], random.Random(0)
    for _ in range(200):
        context = "".join(draw.choices(string.ascii_letters, k=12))
        ids = torch.tensor([[run.tokenizer.bos_id, *run.tokenizer.encode(context)]])
        said = run.tokenizer.decode([int(run.model(ids)[0, -1].argmax())])
        if said.startswith(" "):
            language += [{"context": context, "continuation": said[1:]}, {"context": context, "continuation": "x"}]
    return {MULTIPLE_CHOICE: choice, SCHEMA: schema, LANGUAGE_MODELING: language[:30]}


def harness(backend, folder):
    """A model of the harness: `--model hf` or `--model vllm`."""
    options = {"pretrained": str(folder), "add_bos_token": True, "dtype": "float32", "batch_size": 8}
    if backend == "hf":
        return lm_eval.api.registry.get_model("hf")(trust_remote_code=True, device="cpu", **options)
    pytest.importorskip("vllm")
    return lm_eval.api.registry.get_model("vllm")(enforce_eager=True, **options)


@pytest.mark.parametrize("backend", ["hf", pytest.param("vllm", marks=pytest.mark.slow)])
def test_three_kinds_of_tasks_agree_to_the_item(tmp_path, monkeypatch, backend):
    from lm_eval.tasks import TaskManager

    for name, value in {"ENABLE_V1_MULTIPROCESSING": "0", "CPU_KVCACHE_SPACE": "1", "NO_USAGE_STATS": "1"}.items():
        monkeypatch.setenv(f"VLLM_{name}", value)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    run, tasks = make_run(tmp_path / "run"), tmp_path / "tasks"
    tasks.mkdir()
    items = made_up(run)
    for name in items:
        (tasks / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items[name]))
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tasks / f"{name}.jsonl")}}}
        acc = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
        form = zip(("output_type", "doc_to_text", "doc_to_target", "doc_to_choice"), FORMS[name])
        task = {"task": name, "metric_list": [acc], "num_fewshot": 0, "test_split": "test"} | data | dict(form)
        (tasks / f"{name}.yaml").write_text(json.dumps(task))
    model = harness(backend, export_run(run, tmp_path / "exported"))
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, tasks=list(items), task_manager=manager, bootstrap_iters=0)
    for name in items:
        _, predictions = evaluate_task(GPTScorer(run.model), run.tokenizer, LoadedTask(Task(name, name), items[name]))
        ours = {prediction.line - 1: prediction.correct for prediction in predictions}
        assert ours == {sample["doc_id"]: bool(sample["acc"]) for sample in found["samples"][name]}
        assert 0 < sum(ours.values()) < len(ours), f"{name}: nothing is told apart"
        assert found["results"][name]["acc,none"] == pytest.approx(sum(ours.values()) / len(ours))
