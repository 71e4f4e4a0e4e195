"""`scripts.base_eval` on a tiny run, in this process: what it writes, prints and refuses."""

import json
import math
import random
import shutil

import pytest
from evaluate_fakes import write_bundle
from generate_models import save_run
from rank_worlds import run_training
from world import make_text, make_tokenizer

from nanogka.common.digest import digest_of_code
from nanogka.common.errors import Errors
from nanogka.data import open_corpus
from nanogka.evaluate import core
from nanogka.evaluate.settings import EvalSettings
from nanogka.model import GPT, GPTConfig
from nanogka.runs import read_config, write_config
from nanogka.tokenizer import Tokenizer
from scripts.base_eval import main

FLAGS = ["--device", "cpu", "--dtype", "float32"]


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
    items = [{"query": "stone", "choices": ["river", "cloud"], "gold": i % 2} for i in range(6)]
    write_bundle(base / "bundle", ("mine", "copa"), items, num_fewshot=2)
    return base


@pytest.fixture
def evaluate(base, monkeypatch, tmp_path, capsys):
    """`evaluate(*flags)` returns the exit code, stdout and stderr; results go to tmp_path."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(base))

    def call(*flags):
        output = [] if "--output" in flags else ["--output", str(tmp_path / "out.json")]
        code = main([*FLAGS, *flags, *output])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def measure(evaluate):
    """`measure(*flags)` returns the results of an evaluation that succeeds, and stdout."""

    def call(*flags):
        code, out, _ = evaluate(*flags)
        assert code == 0
        return json.loads(out.splitlines()[-1]), out

    return call


def scores(document):
    """The results without times."""
    tasks = [{name: value for name, value in task.items() if name != "seconds"} for task in document["tasks"]]
    return {name: document[name] for name in ("run", "step", "six_task_mean", "core")} | {"tasks": tasks}


def test_everything_is_measured_printed_and_written(measure, base, tmp_path):
    predictions = tmp_path / "predictions.jsonl"
    flags = ["--run", "tiny", "--eval-bundle", str(base / "bundle"), "--predictions", str(predictions)]
    document, out = measure(*flags)
    assert document == json.loads((tmp_path / "out.json").read_text())
    assert (document["run"], document["step"], document["complete"]) == ("tiny", 7, True)
    vocab_size = Tokenizer.load(base / "runs/tiny/tokenizer").vocab_size
    assert set(document["bpb"]) == {"train", "val"}
    for split, counts in document["bpb_counts"].items():
        # Before any training every token is about equally likely.
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


def test_tasks_are_chosen_by_name_and_number_of_items(evaluate, measure, base):
    flags = ["--eval", "core", "--eval-bundle", str(base / "bundle")]
    document, _ = measure(*flags, "--tasks", "mine,copa", "--max-per-task", "5")
    assert [(task["name"], task["items"]) for task in document["tasks"]] == [("mine", 5), ("copa", 5)]
    assert not {"bpb", "samples"} & set(document)
    for more, name in ((["--max-per-task", "2"], "task mine"), (["--tasks", "quiz"], "--tasks")):
        code, _, err = evaluate(*flags, *more)
        assert (code, err.partition(" (")[0].startswith(f"base_eval: {name}")) == (2, True)


def test_without_a_bundle_tasks_come_from_the_validation_text(evaluate, measure, monkeypatch):
    document, _ = measure("--eval", "tasks", "--max-per-task", "10")
    assert any("no evaluation bundle" in note for note in document["notes"])
    assert {task["name"]: task["items"] for task in document["tasks"]} == {"true_continuation": 10, "last_word": 10}
    monkeypatch.setenv("NANOGKA_EVAL_BUNDLE_URL", "http://127.0.0.1:9/bundle.zip")
    code, _, err = evaluate("--eval", "core", "--eval-bundle", "download")
    assert (code, err.count("\n"), "http://127.0.0.1:9/bundle.zip" in err) == (1, 1, True)


def test_a_task_that_the_text_is_too_short_for_is_left_out_unless_it_is_named(evaluate, measure, base, tmp_path):
    make_text(tmp_path / "short", random.Random(0), 120)
    data = ["--data", str(tmp_path / "short"), "--split-tokens", "600"]
    document, out = measure(*data)
    assert document["complete"]
    assert set(document["bpb"]) == {"train", "val"}
    assert "true_continuation" not in {task["name"] for task in document["tasks"]}
    (note,) = (note for note in document["notes"] if "true_continuation" in note)
    assert note.startswith("left out: true_continuation: got")
    assert note in out
    document, _ = measure(*data, "--eval", "tasks", "--eval-bundle", str(base / "bundle"))
    assert note in document["notes"]
    code, _, err = evaluate(*data, "--tasks", "true_continuation")
    assert (code, err.count("\n")) == (2, 1)
    assert "true_continuation: got" in err


@pytest.mark.parametrize("chosen", ["folder", "auto", "core"])
def test_a_damaged_task_ends_an_evaluation_that_asks_for_its_bundle(evaluate, base, tmp_path, monkeypatch, chosen):
    """A bundle that lies there because it was once downloaded is not asked for."""
    bundle = shutil.copytree(base / "bundle", tmp_path / "bundle")
    (bundle / "eval_data/items.jsonl").write_text('{"query": "stone"}\n')
    monkeypatch.setattr("nanogka.evaluate.bundle.downloaded_bundle", lambda: bundle)
    words = ["--eval", "core" if chosen == "core" else "tasks", "--max-per-task", "5"]
    code, out, err = evaluate(*words, "--eval-bundle", str(bundle) if chosen == "folder" else "auto")
    if chosen == "auto":
        assert code == 0
        assert len([note for note in json.loads(out.splitlines()[-1])["notes"] if note.startswith("left out: ")]) == 2
    else:
        assert (code, err.count("\n")) == (2, 1)
        assert "items.jsonl" in err


def test_a_damaged_checkpoint_is_replaced_by_an_earlier_one(measure, base):
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
    assert note.startswith("step_000007 is damaged (model.safetensors")
    assert note in out
    shutil.rmtree(base / "runs/damaged")


def test_two_ranks_give_the_result_of_one(measure, base, tmp_path):
    flags = ["--run", "tiny", "--eval", "bpb,tasks", "--eval-bundle", str(base / "bundle"), "--max-per-task", "70"]
    document, _ = measure(*flags, "--predictions", str(tmp_path / "one.jsonl"))
    two = [*FLAGS, *flags, "--output", tmp_path / "two.json", "--predictions", tmp_path / "two.jsonl"]
    ended = run_training(2, two, base, script="base_eval")
    assert [code for code, _ in ended] == [0, 0], ended
    found = json.loads((tmp_path / "two.json").read_text())
    assert scores(found) == scores(document)
    assert found["bpb_counts"] == document["bpb_counts"]
    assert found["bpb"] == pytest.approx(document["bpb"], rel=1e-6)
    assert (tmp_path / "two.jsonl").read_text() == (tmp_path / "one.jsonl").read_text()
    assert document["tasks"][0]["items"] > core.ITEMS_PER_CHUNK  # so that both ranks have a part of it


@pytest.fixture
def scored(monkeypatch):
    """The names of the tasks that are scored, by chunk."""
    names, chunk = [], core.evaluate_chunk
    monkeypatch.setattr(core, "evaluate_chunk", lambda *args: names.append(args[2].task.name) or chunk(*args))
    return names


def test_finished_tasks_are_reused_only_if_nothing_has_changed(measure, base, scored):
    flags = ["--eval", "tasks", "--run", "tiny", "--eval-bundle", str(base / "bundle"), "--tasks", "mine,copa"]

    def again(*more):
        scored.clear()
        return scores(measure(*flags, *more)[0]), list(scored)

    first, names = again("--max-per-task", "6")
    assert names == ["mine", "copa"]
    assert again("--max-per-task", "6") == (first, [])
    for more in (["--no-cache"], ["--step", "3"], ["--max-per-task", "5"], ["--batch-tokens", "64"]):
        assert again("--max-per-task", "6", *more)[1] == names


def test_a_finished_evaluation_is_not_repeated_unless_something_changed(measure, base, tmp_path):
    flags = ["--run", "tiny", "--eval", "bpb", "--split-tokens", "600"]
    first, _ = measure(*flags)
    written = (tmp_path / "out.json").stat().st_mtime_ns
    again, out = measure(*flags)
    assert again == first
    assert (tmp_path / "out.json").stat().st_mtime_ns == written
    assert len(out.splitlines()) == 2  # a note, and the results
    for more in (["--no-cache"], ["--split-tokens", "900"], ["--step", "3"], ["--eval", "bpb,sample"]):
        made = (tmp_path / "out.json").stat().st_mtime_ns
        measure(*flags, *more)
        assert (tmp_path / "out.json").stat().st_mtime_ns > made, more


def test_other_text_at_the_same_path_and_other_code_are_measured_again(measure, base, tmp_path, monkeypatch):
    make_text(tmp_path / "text", random.Random(1), 80)
    flags = ["--run", "tiny", "--eval", "bpb", "--split-tokens", "600", "--data", str(tmp_path / "text")]
    first, _ = measure(*flags)
    assert measure(*flags)[0] == first
    for path in (tmp_path / "text").iterdir():
        path.write_text(path.read_text().replace("cat", "dog"))  # of equal length
    second, _ = measure(*flags)
    assert second["bpb"]["val"] != first["bpb"]["val"]
    for package in ("nanogka.model", "nanogka.evaluate", "nanogka.attention", "nanogka.data"):
        known = digest_of_code
        monkeypatch.setattr(
            "nanogka.common.digest.digest_of_code", lambda name, known=known, own=package: f"{name == own}{known(name)}"
        )
        assert measure(*flags)[0]["made_from"] != second["made_from"]


def test_text_that_has_changed_since_the_training_gets_a_note(measure, base, tmp_path):
    shutil.copytree(base / "runs/tiny", base / "runs/noted")
    config = read_config(base / "runs/noted")
    footers = open_corpus(base / "text").footers
    for recorded, noted in ((footers, False), ("0" * 64, True)):
        write_config(base / "runs/noted", config | {"run": {"kind": "base", "footers": recorded}})
        document, out = measure("--run", "noted", "--eval", "bpb", "--split-tokens", "300")
        note = f"{base / 'text'} holds other text than when the run was trained on it"
        assert (note in document["notes"], note in out) == (noted, noted)
    make_text(tmp_path / "other", random.Random(5), 200)  # another text is not what the run was trained on
    document, _ = measure("--run", "noted", "--eval", "bpb", "--split-tokens", "300", "--data", str(tmp_path / "other"))
    assert [note for note in document["notes"] if "holds other text" in note] == []
    shutil.rmtree(base / "runs/noted")


def test_a_stopped_evaluation_continues_with_the_first_unfinished_task(
    measure, evaluate, base, tmp_path, monkeypatch, scored
):
    flags = ["--eval", "tasks", "--run", "tiny", "--eval-bundle", str(base / "bundle")]

    def stopped(model, tokenizer, data, *rest):
        if data.task.name == "copa":
            raise KeyboardInterrupt
        return chunk(model, tokenizer, data, *rest)

    chunk = core.evaluate_chunk
    with monkeypatch.context() as patch:
        patch.setattr(core, "evaluate_chunk", stopped)
        assert [evaluate(*flags)[0] for _ in range(2)] == [130, 130]
    assert json.loads((tmp_path / "out.json").read_text())["complete"] is False
    scored.clear()
    document, _ = measure(*flags)
    assert (set(scored), document["complete"]) == ({"copa"}, True)
    assert [task["name"] for task in document["tasks"]] == ["true_continuation", "last_word", "mine", "copa"]


@pytest.mark.parametrize(
    "model,parts,refused",
    [
        ("", "sample,tasks,core,bpb", 0),
        ("", "sample", 0),
        ("", "bpb,page", 1),
        ("hf", "core,tasks", 0),
        ("hf", "bpb", 1),
    ],
)
def test_any_of_the_parts_that_a_model_has_can_be_named_all_included(model, parts, refused):
    EvalSettings(hf_path=model, eval=parts).check(errors := Errors())
    assert len(errors.lines) == refused


def test_flags_that_exclude_each_other_are_refused(evaluate, tmp_path, monkeypatch):
    monkeypatch.setattr("nanogka.export.register_with_transformers", lambda: None)  # it imports transformers
    code, _, err = evaluate("--hf-path", str(tmp_path), "--eval", "bpb,core", "--run", "tiny")
    assert (code, [line.split(": ")[1] for line in err.splitlines()]) == (2, ["--eval", "--run and --hf-path"])
