"""`scripts.base_eval` on a tiny run, in this process: what it writes, prints and refuses."""

import json
import math
import os
import random
import shutil

import pytest
from generate_models import save_run
from rank_worlds import run_training
from world import make_text, make_tokenizer

from nanogka.evaluate import core, sources
from nanogka.model import GPT, GPTConfig
from nanogka.tokenizer import Tokenizer
from scripts.base_eval import main


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A base folder with a corpus, a bundle and one run of two checkpoints."""
    base = tmp_path_factory.mktemp("base")
    make_text(base / "text", random.Random(0), 200, most=4000)
    make_tokenizer(base)
    tokenizer = Tokenizer.load(base / "tokenizers/tiny")
    for step in (3, 7):
        model = GPT(GPTConfig(256, tokenizer.vocab_size, n_layer=1, n_head=1, n_embd=32), seed=step)
        save_run(base / "runs/tiny", model, tokenizer=tokenizer, step=step, data=str(base / "text"))
    (base / "bundle/eval_data").mkdir(parents=True)
    items = [{"query": "stone", "choices": ["river", "cloud"], "gold": i % 2} for i in range(6)]
    (base / "bundle/eval_data/items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    common = {"dataset_uri": "items.jsonl", "icl_task_type": "multiple_choice"}
    entries = [common | {"label": name, "num_fewshot": n} for name, n in (("mine", 2), ("copa", 0), ("piqa", 10))]
    (base / "bundle/core.yaml").write_text(json.dumps({"icl_tasks": entries}))  # JSON is YAML
    return base


@pytest.fixture
def evaluate(base, monkeypatch, tmp_path, capsys):
    """`evaluate(*flags)` gives the exit code, stdout and stderr; results go to tmp_path."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(base))
    monkeypatch.delenv("NANOGKA_EVAL_BUNDLE_URL", raising=False)

    def call(*flags):
        output = [] if "--output" in flags else ["--output", str(tmp_path / "out.json")]
        code = main(["--device", "cpu", "--dtype", "float32", *flags, *output])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def measure(evaluate):
    """`measure(*flags)` gives the results of an evaluation that succeeds, and stdout."""

    def call(*flags):
        code, out, _ = evaluate(*flags)
        assert code == 0
        return json.loads(out.splitlines()[-1]), out

    return call


def test_everything_is_measured_printed_and_written(measure, base, tmp_path):
    predictions = tmp_path / "predictions.jsonl"
    flags = ["--run", "tiny", "--eval-bundle", str(base / "bundle"), "--predictions", str(predictions)]
    document, out = measure(*flags)
    assert document == json.loads((tmp_path / "out.json").read_text())
    assert (document["run"], document["step"]) == ("tiny", 7)
    assert set(document["bpb"]) == {"train", "val"}
    vocab_size = Tokenizer.load(base / "runs/tiny/tokenizer").vocab_size
    for split, counts in document["bpb_counts"].items():
        # before any training every token is about equally likely
        uniform = math.log2(vocab_size) * counts["tokens"] / counts["bytes"]
        assert document["bpb"][split] == pytest.approx(uniform, rel=0.01)
    assert document["val_bytes"] == document["bpb_counts"]["val"]["bytes"]
    tasks = {task["name"]: task for task in document["tasks"]}
    assert list(tasks) == ["true_continuation", "last_word", "mine", "copa"]
    assert {"type", "accuracy", "centered", "stderr", "chance", "items", "seconds"} <= set(tasks["copa"])
    assert document["six_task_mean"] is document["core"] is None
    assert [set(sample) for sample in document["samples"]] == [{"prompt", "text"}] * 5
    lines = [json.loads(line) for line in predictions.read_text().splitlines()]
    assert len(lines) == sum(task["items"] for task in document["tasks"])
    assert sum(line["correct"] for line in lines if line["task"] == "copa") == tasks["copa"]["accuracy"] * 6
    assert "copa" in out
    assert "paper GKA" not in out  # the paper's model has 20 layers


def test_core_is_every_task_of_the_bundle(evaluate, measure, base):
    flags = ["--eval", "core", "--eval-bundle", str(base / "bundle"), "--max-per-task", "5"]
    code, _, err = evaluate(*flags)
    assert (code, err.count("\n")) == (2, 1)
    assert "task piqa" in err  # ten examples of the five items
    document, _ = measure(*flags, "--tasks", "mine,copa")
    assert [(task["name"], task["items"]) for task in document["tasks"]] == [("mine", 5), ("copa", 5)]
    assert not {"bpb", "samples"} & set(document)


def test_a_bundle_that_cannot_be_fetched_is_one_line_and_nothing_is_fetched_in_vain(evaluate, measure, monkeypatch):
    monkeypatch.setattr(sources, "PAUSES", ())
    monkeypatch.setenv("NANOGKA_EVAL_BUNDLE_URL", "http://127.0.0.1:9/bundle.zip")
    code, _, err = evaluate("--eval", "core", "--max-per-task", "0", "--eval-bundle", "download")
    assert (code, err.count("\n")) == (2, 1)
    assert "--max-per-task" in err
    code, _, err = evaluate("--eval", "core", "--eval-bundle", "download")
    assert (code, err.count("\n")) == (1, 1)
    assert "could not fetch http://127.0.0.1:9/bundle.zip" in err
    document, _ = measure("--eval", "tasks", "--max-per-task", "10")
    assert any("no evaluation bundle" in note for note in document["notes"])
    assert {task["name"]: task["items"] for task in document["tasks"]} == {"true_continuation": 10, "last_word": 10}


def test_an_earlier_checkpoint_is_named_or_taken_if_a_newer_one_is_damaged(measure, base):
    flags = ["--eval", "bpb", "--split-tokens", "600"]
    document, _ = measure("--step", "3", *flags)
    assert (document["step"], document["checkpoint"], document["notes"]) == (3, "step_000003", [])
    assert document["bpb_counts"]["val"]["tokens"] <= 2 * 256
    shutil.copytree(base / "runs/tiny", base / "runs/damaged")
    weights = base / "runs/damaged/checkpoints/step_000007/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    damaged, out = measure("--run", "damaged", *flags)
    (note,) = damaged["notes"]
    assert damaged["bpb"] == document["bpb"]
    assert note.startswith("step_000007 is damaged (model.safetensors is not what the manifest says")
    assert note in out
    shutil.rmtree(base / "runs/damaged")


def without_times(document):
    """Results less what the clock and the call decide."""
    tasks = [{name: value for name, value in task.items() if name != "seconds"} for task in document["tasks"]]
    return {name: document[name] for name in ("run", "step", "six_task_mean", "core")} | {"tasks": tasks}


def without_compiler():
    os.environ["CXX"] = "no-compiler"  # of kernels that an evaluation has no use for; both ranks would build them


def test_two_ranks_give_exactly_the_result_of_one_and_serve_one(measure, base, tmp_path, monkeypatch):
    flags = ["--run", "tiny", "--eval", "tasks", "--eval-bundle", str(base / "bundle"), "--max-per-task", "70"]
    document, _ = measure(*flags, "--predictions", str(tmp_path / "one.jsonl"))
    two = ["--device", "cpu", "--dtype", "float32", "--output", tmp_path / "two.json"]
    predictions = ["--predictions", tmp_path / "two.jsonl"]
    ended = run_training(2, [*flags, *two, *predictions], base, without_compiler, "base_eval")
    assert [code for code, _ in ended] == [0, 0], ended
    assert without_times(json.loads((tmp_path / "two.json").read_text())) == without_times(document)
    assert (tmp_path / "two.jsonl").read_text() == (tmp_path / "one.jsonl").read_text()
    assert document["tasks"][0]["items"] > core.ITEMS_PER_CHUNK  # so that both ranks have a part of it
    monkeypatch.setattr(core, "evaluate_chunk", None)  # nothing is scored any more
    assert without_times(measure(*flags, "--output", str(tmp_path / "two.json"))[0]) == without_times(document)


def test_finished_tasks_are_reused_only_where_nothing_has_changed(measure, base, monkeypatch):
    flags = ["--eval", "tasks,bpb", "--split-tokens", "600", "--run", "tiny", "--eval-bundle", str(base / "bundle")]
    flags += ["--max-per-task", "6", "--tasks", "mine,copa"]
    scored, chunk = [], core.evaluate_chunk
    monkeypatch.setattr(core, "evaluate_chunk", lambda *args: scored.append(args[2].task.name) or chunk(*args))

    def run_again(*more):
        scored.clear()
        return without_times(measure(*flags, *more)[0]), list(scored)

    first, all_tasks = run_again()
    assert all_tasks == ["mine", "copa"]
    assert run_again() == (first, [])
    assert run_again("--no-cache") == (first, all_tasks)
    assert run_again("--step", "3")[1] == all_tasks
    for more in (["--max-per-task", "5"], ["--batch-tokens", "64"]):
        assert run_again(*more)[1] == all_tasks


def test_an_evaluation_that_was_stopped_is_not_complete_and_continues_with_the_first_unfinished_task(
    measure, evaluate, base, tmp_path, monkeypatch
):
    flags = ["--eval", "tasks,bpb", "--split-tokens", "600", "--run", "tiny", "--eval-bundle", str(base / "bundle")]
    scored, chunk = [], core.evaluate_chunk

    def stopped(model, tokenizer, data, *rest):
        if data.task.name == "copa":
            raise KeyboardInterrupt
        return chunk(model, tokenizer, data, *rest)

    monkeypatch.setattr(core, "evaluate_chunk", stopped)
    assert [evaluate(*flags)[0] for _ in range(2)] == [130, 130]
    assert json.loads((tmp_path / "out.json").read_text())["complete"] is False
    monkeypatch.setattr(core, "evaluate_chunk", lambda *args: scored.append(args[2].task.name) or chunk(*args))
    document, _ = measure(*flags)
    assert set(scored) == {"copa"}
    assert [task["name"] for task in document["tasks"]] == ["true_continuation", "last_word", "mine", "copa"]
    assert document["complete"] is True


def test_a_model_of_another_library_takes_tasks_only_and_one_of_run_and_path(evaluate, base, tmp_path):
    code, _, err = evaluate("--hf-path", str(tmp_path), "--eval", "bpb,core", "--run", "tiny")
    assert code == 2
    for name in ("--eval: ", "--run and --hf-path: ", "--hf-path: "):
        assert f"base_eval: {name}" in err
