"""`scripts.base_eval` on a tiny run, in this process: what it writes, prints and refuses."""

import json
import math
import random
import shutil

import pytest
import torch
import yaml
from rank_worlds import run_training

from nanogka.checkpoint import Checkpoint, save_checkpoint
from nanogka.evaluate import in_context, run
from nanogka.model import GPT, GPTConfig
from nanogka.tokenizer import Tokenizer
from scripts.base_eval import main

WORDS = ["stone", "river", "cloud", "ember", "willow", "north", "cedar", "flint", "harbor", "meadow", "copper", "ash"]


def make_texts(count, words=300):
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=words)) for _ in range(count)]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A base folder with a corpus, a bundle and one run of two checkpoints."""
    base = tmp_path_factory.mktemp("base")
    (base / "corpus").mkdir()
    texts = make_texts(240)
    (base / "corpus/all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with pytest.warns(UserWarning, match="vocab_size"):
        tokenizer = Tokenizer.train(texts, vocab_size=400)
    config = GPTConfig(256, tokenizer.vocab_size, n_layer=1, n_head=1, n_embd=32)
    tiny = base / "runs/tiny"
    tokenizer.save(tiny / "tokenizer")
    settings = {"settings": {"data": str(base / "corpus")}, "model": config.to_dict()}
    (tiny / "config.yaml").write_text(yaml.safe_dump(settings))
    for step in (3, 7):
        save_checkpoint(tiny / "checkpoints", Checkpoint(step, GPT(config, seed=step).state_dict(), {}, {}))
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


def test_everything_is_measured_printed_and_written(evaluate, base, tmp_path):
    predictions = tmp_path / "predictions.jsonl"
    code, out, _ = evaluate("--run", "tiny", "--eval-bundle", str(base / "bundle"), "--predictions", str(predictions))
    assert code == 0
    document = json.loads(out.splitlines()[-1])
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


def test_core_is_every_task_of_the_bundle(evaluate, base):
    flags = ["--eval", "core", "--eval-bundle", str(base / "bundle"), "--max-per-task", "5"]
    code, _, err = evaluate(*flags)
    assert code == 2
    assert err.count("\n") == 1
    assert "task piqa" in err  # ten examples of the five items
    code, out, _ = evaluate(*flags, "--tasks", "mine,copa")
    assert code == 0
    document = json.loads(out.splitlines()[-1])
    assert [(task["name"], task["items"]) for task in document["tasks"]] == [("mine", 5), ("copa", 5)]
    assert "bpb" not in document
    assert "samples" not in document


def test_a_bundle_that_cannot_be_fetched_is_one_line_and_a_note_where_it_is_optional(evaluate, monkeypatch):
    monkeypatch.setenv("NANOGKA_EVAL_BUNDLE_URL", "http://127.0.0.1:9/bundle.zip")
    code, _, err = evaluate("--eval", "core", "--max-per-task", "0")
    assert (code, err) == (2, "base_eval: --max-per-task: got '0', takes an integer of at least 1\n")  # not fetched
    code, out, _ = evaluate("--eval", "tasks", "--max-per-task", "10")
    assert code == 0
    assert "no evaluation bundle: could not fetch http://127.0.0.1:9/bundle.zip" in out
    items = {task["name"]: task["items"] for task in json.loads(out.splitlines()[-1])["tasks"]}
    assert items == {"true_continuation": 10, "last_word": 10}
    for flags in (["--eval", "core"], ["--eval", "tasks", "--eval-bundle", "download"]):
        code, _, err = evaluate(*flags)
        assert code == 1
        assert err.startswith("base_eval: could not fetch http://127.0.0.1:9/bundle.zip")
        assert err.count("\n") == 1


def test_an_earlier_checkpoint_can_be_named(evaluate):
    code, out, _ = evaluate("--step", "3", "--eval", "bpb", "--split-tokens", "600")
    document = json.loads(out.splitlines()[-1])
    assert (code, document["step"], document["checkpoint"], document["notes"]) == (0, 3, "step_000003", [])
    assert document["bpb_counts"]["val"]["tokens"] <= 2 * 256


def test_scores_say_that_a_newer_checkpoint_is_damaged(evaluate, base):
    shutil.copytree(base / "runs/tiny", base / "runs/damaged")
    weights = base / "runs/damaged/checkpoints/step_000007/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    code, out, _ = evaluate("--run", "damaged", "--eval", "bpb", "--split-tokens", "600")
    document = json.loads(out.splitlines()[-1])
    assert (code, document["checkpoint"]) == (0, "step_000003")
    (note,) = document["notes"]
    assert note.startswith("step_000007 is damaged (model.safetensors is not what the manifest says")
    assert note in out
    shutil.rmtree(base / "runs/damaged")


def test_every_bad_argument_is_reported_at_once_and_nothing_is_written(evaluate, tmp_path):
    code, out, err = evaluate(
        *["--run", "nope", "--eval", "tasks,dance", "--data", "/no/data", "--eval-bundle", "/no/bundle"],
        *["--device", "gpu", "--dtype", "int8", "--max-per-task", "0", "--split-tokens", "many"],
        *["--batch-tokens", "-1"],
        *["--predictions", "/no/folder/p.jsonl", "--output", str(tmp_path / "none/out.json")],
    )
    assert (code, out) == (2, "")
    for flag in ("run", "eval", "data", "eval-bundle", "device", "dtype", "max-per-task", "split-tokens"):
        assert f"base_eval: --{flag}: got " in err
    for flag in ("batch-tokens", "predictions", "output"):
        assert f"base_eval: --{flag}: got " in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_unknown_tasks_are_named(evaluate, base):
    code, _, err = evaluate("--tasks", "copa,chess", "--eval", "tasks")
    assert code == 2
    assert "--tasks: got 'chess', takes true_continuation, last_word (there is no bundle)" in err
    assert not (base / "corpora").exists()


def without_times(document):
    """Results less what the clock and the call decide."""
    tasks = [{name: value for name, value in task.items() if name != "seconds"} for task in document["tasks"]]
    return {name: document[name] for name in ("run", "step", "six_task_mean", "core")} | {"tasks": tasks}


def test_two_ranks_give_exactly_the_result_of_one(evaluate, base, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "CACHE_FOLDER", "alone")  # so that the two below find nothing done
    flags = ["--run", "tiny", "--eval", "tasks", "--eval-bundle", str(base / "bundle"), "--max-per-task", "70"]
    code, out, _ = evaluate(*flags, "--predictions", str(tmp_path / "one.jsonl"))
    assert code == 0
    more = ["--no-cache", "--device", "cpu", "--dtype", "float32", "--predictions", tmp_path / "two.jsonl"]
    ended = run_training(2, [*flags, *more, "--output", tmp_path / "two.json"], base, script="base_eval")
    assert [code for code, _ in ended] == [0, 0], ended
    assert without_times(json.loads((tmp_path / "two.json").read_text())) == without_times(
        json.loads(out.splitlines()[-1])
    )
    assert (tmp_path / "two.jsonl").read_text() == (tmp_path / "one.jsonl").read_text()
    assert any("-rank1.json" in file.name for file in (base / "runs/tiny/evaluation").iterdir())


def test_an_evaluation_that_was_stopped_goes_on_and_one_that_is_repeated_costs_nothing(evaluate, base, monkeypatch):
    monkeypatch.setattr(run, "CACHE_FOLDER", "stopped")
    flags = ["--eval", "tasks", "--run", "tiny", "--eval-bundle", str(base / "bundle"), "--max-per-task", "140"]
    calls, chunk = [], in_context.evaluate_chunk

    def count(*args):
        calls.append(args[2].task.name)
        if len(calls) == 2:  # in the second task
            raise KeyboardInterrupt
        return chunk(*args)

    monkeypatch.setattr(in_context, "evaluate_chunk", count)
    assert evaluate(*flags)[0] == 130
    made, printed, documents = [], [], []
    for more in ([], [], ["--no-cache"], ["--step", "3"]):
        before = len(calls)
        code, out, _ = evaluate(*flags, *more)
        assert code == 0
        made.append(len(calls) - before)
        printed.append(out)
        documents.append(without_times(json.loads(out.splitlines()[-1])))
    assert "scored by an earlier evaluation: true_continuation (--no-cache" in printed[0]
    everything = made[2]
    assert everything > 2
    assert made == [everything - 1, 0, everything, everything]
    assert documents[0] == documents[1] == documents[2]


def test_a_model_of_another_library_takes_tasks_only_and_one_of_run_and_path(evaluate, base, tmp_path):
    code, _, err = evaluate("--hf-path", str(tmp_path), "--eval", "bpb,core", "--run", "tiny")
    assert code == 2
    assert "--eval: got 'bpb,core', takes one or more of tasks, core" in err
    assert "--run and --hf-path: got " in err
    assert "takes a folder with a config.json" in err


def test_a_diverged_model_is_reported_in_valid_json(evaluate, base, tmp_path):
    config = GPTConfig.from_dict(yaml.safe_load((base / "runs/tiny/config.yaml").read_text())["model"])
    model = GPT(config)
    model.lm_head.weight.data.fill_(torch.nan)
    broken = base / "runs/broken"
    shutil.copytree(base / "runs/tiny", broken, ignore=shutil.ignore_patterns("checkpoints"))
    save_checkpoint(broken / "checkpoints", Checkpoint(1, model.state_dict(), {}, {}))
    code, out, _ = evaluate("--run", "broken", "--eval", "bpb,tasks", "--max-per-task", "4")
    document = json.loads(out.splitlines()[-1])
    assert code == 0
    assert document["bpb"] == {"train": None, "val": None}
    assert [task["unscorable"] for task in document["tasks"]] == [4, 4]
