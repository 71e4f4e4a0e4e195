"""`scripts.base_eval` on a tiny run, in this process: what it writes, prints and refuses."""

import json
import math
import os
import random
import shutil

import pytest
import torch
from generate_models import save_run
from rank_worlds import run_training
from world import make_text, make_tokenizer

from nanogka.evaluate import in_context, run
from nanogka.model import GPT, GPTConfig
from nanogka.tokenizer import Tokenizer
from scripts.base_eval import main


def save_untrained(base, tag, step, spoil=lambda model: None):
    tokenizer = Tokenizer.load(base / "tokenizers/tiny")
    model = GPT(GPTConfig(256, tokenizer.vocab_size, n_layer=1, n_head=1, n_embd=32), seed=step)
    spoil(model)
    save_run(base / "runs" / tag, model, tokenizer=tokenizer, step=step, data=str(base / "text"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A base folder with a corpus, a bundle and one run of two checkpoints."""
    base = tmp_path_factory.mktemp("base")
    make_text(base / "text", random.Random(0), 200, most=4000)
    make_tokenizer(base)
    for step in (3, 7):
        save_untrained(base, "tiny", step)
    bundle = base / "bundle"
    (bundle / "eval_data/commonsense_reasoning").mkdir(parents=True)
    items = [{"query": "stone", "choices": ["river", "cloud"], "gold": i % 2} for i in range(6)]
    for name in ("commonsense_reasoning/copa", "mine", "commonsense_reasoning/piqa"):
        (bundle / f"eval_data/{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    entry = "- {label: mine, dataset_uri: mine.jsonl, num_fewshot: 2, icl_task_type: multiple_choice}\n"
    (bundle / "core.yaml").write_text("icl_tasks:\n" + entry)
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
    assert "0.3000" in out


def test_core_is_every_task_of_the_bundle(evaluate, measure, base):
    flags = ["--eval", "core", "--eval-bundle", str(base / "bundle"), "--max-per-task", "5"]
    code, _, err = evaluate(*flags)
    assert (code, err.count("\n")) == (2, 1)
    assert "task piqa" in err  # ten examples of the five items
    document, _ = measure(*flags, "--tasks", "mine,copa")
    assert [(task["name"], task["items"]) for task in document["tasks"]] == [("mine", 5), ("copa", 5)]
    assert not {"bpb", "samples"} & set(document)


def test_a_bundle_that_cannot_be_fetched_is_one_line_and_a_note_where_it_is_optional(evaluate, measure, monkeypatch):
    monkeypatch.setenv("NANOGKA_EVAL_BUNDLE_URL", "http://127.0.0.1:9/bundle.zip")
    code, _, err = evaluate("--eval", "core", "--max-per-task", "0")
    assert (code, err) == (2, "base_eval: --max-per-task: got '0', expected an integer of at least 1\n")  # not fetched
    document, out = measure("--eval", "tasks", "--max-per-task", "10")
    assert "no evaluation bundle: could not fetch http://127.0.0.1:9/bundle.zip" in out
    assert {task["name"]: task["items"] for task in document["tasks"]} == {"true_continuation": 10, "last_word": 10}
    for flags in (["--eval", "core"], ["--eval", "tasks", "--eval-bundle", "download"]):
        code, _, err = evaluate(*flags)
        assert code == 1
        assert err.startswith("base_eval: could not fetch http://127.0.0.1:9/bundle.zip")
        assert err.count("\n") == 1


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
    with monkeypatch.context() as patch:
        patch.setattr(run, "CACHE_FOLDER", "alone")  # so that the two below find nothing done
        document, _ = measure(*flags, "--predictions", str(tmp_path / "one.jsonl"))
    more = ["--no-cache", "--device", "cpu", "--dtype", "float32", "--predictions", tmp_path / "two.jsonl"]
    ended = run_training(2, [*flags, *more, "--output", tmp_path / "two.json"], base, without_compiler, "base_eval")
    assert [code for code, _ in ended] == [0, 0], ended
    assert without_times(json.loads((tmp_path / "two.json").read_text())) == without_times(document)
    assert (tmp_path / "two.jsonl").read_text() == (tmp_path / "one.jsonl").read_text()
    assert document["tasks"][0]["items"] > in_context.ITEMS_PER_CHUNK  # so that both ranks have a part of it
    monkeypatch.setattr(in_context, "evaluate_chunk", None)  # nothing is scored any more
    assert without_times(measure(*flags)[0]) == without_times(document)


def test_an_evaluation_that_is_repeated_costs_nothing(measure, base, monkeypatch):
    monkeypatch.setattr(run, "CACHE_FOLDER", "repeated")
    flags = ["--eval", "tasks", "--run", "tiny", "--eval-bundle", str(base / "bundle"), "--max-per-task", "70"]
    calls, chunk = [], in_context.evaluate_chunk
    monkeypatch.setattr(in_context, "evaluate_chunk", lambda *args: calls.append(args) or chunk(*args))
    made, printed, documents = [], [], []
    for more in ([], [], ["--no-cache"], ["--step", "3"]):
        before = len(calls)
        document, out = measure(*flags, *more)
        made.append(len(calls) - before)
        printed.append(out)
        documents.append(without_times(document))
    assert "scored by an earlier evaluation: true_continuation, last_word, mine, copa (--no-cache" in printed[1]
    assert made == [made[0], 0, made[0], made[0]]
    assert documents[0] == documents[1] == documents[2]


def test_only_an_evaluation_that_did_all_its_parts_is_marked_complete(measure, evaluate, tmp_path, monkeypatch):
    document, _ = measure("--run", "tiny", "--eval", "bpb,sample", "--split-tokens", "600")
    assert document["complete"] is True

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "draw_samples", interrupted)
    code, _, _ = evaluate("--run", "tiny", "--eval", "bpb,sample", "--split-tokens", "600")
    assert code == 130
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["bpb"] == document["bpb"]
    assert written["complete"] is False


def test_a_model_of_another_library_takes_tasks_only_and_one_of_run_and_path(evaluate, base, tmp_path):
    code, _, err = evaluate("--hf-path", str(tmp_path), "--eval", "bpb,core", "--run", "tiny")
    assert code == 2
    assert "--eval: got 'bpb,core', expected one or more of tasks, core" in err
    assert "--run and --hf-path: got " in err
    assert "expected a folder with a config.json" in err


def test_a_diverged_model_is_reported_in_valid_json(measure, base):
    save_untrained(base, "broken", 1, lambda model: model.lm_head.weight.data.fill_(torch.nan))
    document, _ = measure("--run", "broken", "--eval", "bpb,tasks", "--max-per-task", "4")
    assert document["bpb"] == {"train": None, "val": None}
    assert [task["unscorable"] for task in document["tasks"]] == [4, 4]
