"""The speedrun's plan."""

import shutil

import pytest
import torch

from nanogka.model import GPT, GPTConfig, count
from nanogka.train.checkpoint import Checkpoint, save_checkpoint
from nanogka.train.disk import checkpoint_bytes
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, build_optimizer
from nanogka.train.plan import VARIABLES, make_plan
from scripts import speedrun


@pytest.fixture(autouse=True)
def _base(monkeypatch, tmp_path):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def commands(**environment):
    return [step.text for step in make_plan(environment).steps]


def test_eight_gpus_get_the_papers_run_on_all_of_them():
    plan = make_plan({"PRETEND_GPUS": "8", "DRY_RUN": "1"})
    assert plan.horizon.num_iterations == 2650
    assert plan.horizon.tokens == 2_778_726_400
    text = plan.describe()
    assert "378,798,320 parameters" in text
    assert "torch.distributed.run --standalone --nproc_per_node=8 -m scripts.base_train --" in text
    assert "nanogka.data.fineweb -n" in text
    assert "6.71e+18 FLOPs" in text
    assert "shards          62 + validation" in text
    assert "--data fineweb-edu" in text
    assert "--shards 62" in text
    # 6.3 GB of shards; four checkpoints of 4 bytes a weight, 4 a matrix element and 8 an element of anything else
    accounting = count(plan.config)
    others = accounting.total_parameters - accounting.parameters["matrix"]
    each = 8 * accounting.parameters["matrix"] + 12 * others
    assert checkpoint_bytes(accounting) == each
    assert f"data 6.3 GB, checkpoints {4 * each / 1e9:.1f} GB" in text
    assert "expected time" in text


def test_a_disk_that_is_too_small_is_said_in_the_plan(monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=9 * 10**9))
    pretended = {"PRETEND_GPUS": "8", "DRY_RUN": "1"}
    need = sum(make_plan(pretended).disk.parts.values())
    assert f"WARNING         the disk is too small by {(need - 9e9) / 1e9:.1f} GB" in make_plan(pretended).describe()
    shards = tmp_path / "corpora" / "fineweb-edu"
    shards.mkdir(parents=True)
    with open(shards / "shard_00000.parquet", "wb") as file:
        file.truncate(100_000_000)  # what is there need not be fetched
    assert f"too small by {(need - 9.1e9) / 1e9:.1f} GB" in make_plan(pretended).describe()
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=10**12))
    assert "WARNING" not in make_plan(pretended).describe()


def test_a_checkpoint_is_as_large_as_the_plan_says(tmp_path):
    config = GPTConfig.from_depth(2, "gaussian", vocab_size=4096, sequence_len=32)
    model = GPT(config)
    optimizers = build_optimizer(model, Rates(), plan_horizon(config, num_iterations=1, total_batch_size=64))
    model(torch.zeros(1, 32, dtype=torch.int64), torch.zeros(1, 32, dtype=torch.int64)).backward()
    for optimizer in optimizers:
        optimizer.step()
    states = {str(i): optimizer.state_dict() for i, optimizer in enumerate(optimizers)}
    folder = save_checkpoint(tmp_path, Checkpoint(1, model.state_dict(), states, {}))
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size == pytest.approx(checkpoint_bytes(count(config)), rel=0.03)


def test_without_a_gpu_it_is_a_small_run_on_the_embedded_corpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    text = make_plan({}).describe()
    assert "data            embedded" in text
    assert "torch.distributed.run" not in text
    order = ["tok_train", "base_train", "base_eval", "chat_sft", "chat_eval", "report"]
    assert [next(word for word in order if word in command) for command in commands()] == order
    assert "expected time" in text


def test_overrides_reach_the_commands():
    text = " ".join(
        commands(
            DEPTH="3",
            ATTENTION="dot_product",
            DATA="/tmp/my text",
            NUM_ITERATIONS="7",
            WANDB_RUN="w",
            SEED="5",
            TRAIN_FLAGS="--matrix-lr 0.01",
            EVAL_BUNDLE="/tmp/b.zip",
            TOTAL_BATCH_SIZE="2_048",
            RUN="mine",
        )  # fmt: skip
    )
    for part in ("--depth 3", "--attention dot_product", "'/tmp/my text'", "--num-iterations 7", "--wandb-run w"):
        assert part in text
    for part in ("--seed 5", "--matrix-lr 0.01", "--eval-bundle /tmp/b.zip", "--total-batch-size 2048", "--run mine"):
        assert part in text


def test_fine_tuning_is_on_all_gpus_takes_other_conversations_and_can_be_left_out():
    text = " ".join(commands(PRETEND_GPUS="8", DRY_RUN="1"))
    assert "--nproc_per_node=8 -m scripts.chat_sft -- --base d20-gaussian" in text
    assert "--data smoltalk:9,embedded:1" in text
    assert "--run d20-gaussian-chat --eval-bundle hub" in text
    text = " ".join(commands(CHAT="talk.jsonl", RUN="mine", EVAL_BUNDLE="b.zip"))
    assert "chat_sft --base mine --run mine-chat --data talk.jsonl --lr-scale 0.3" in text
    assert "chat_eval --run mine-chat --eval-bundle b.zip" in text
    plan = make_plan({"CHAT": "none"})
    assert not any("chat" in step.text for step in plan.steps)
    assert plan.talk_to == plan.run
    assert make_plan({}).talk_to == "d4-gaussian-chat"


def test_every_bad_variable_is_named_at_once():
    with pytest.raises(ValueError) as error:
        make_plan({"DEPTH": "deep", "ATTENTION": "x", "NUM_ITERATIONS": "0", "PRETEND_GPUS": "8"})
    text = str(error.value)
    assert all(f"{name}: got " in text for name in ("DEPTH", "ATTENTION", "NUM_ITERATIONS", "PRETEND_GPUS"))


def test_dry_run_prints_the_plan_and_starts_nothing(monkeypatch, capsys):
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setattr("subprocess.call", lambda *a: pytest.fail("a command was started"))
    assert speedrun.main([]) == 0
    assert "commands" in capsys.readouterr().out


def test_a_command_that_fails_stops_the_speedrun_with_its_code(monkeypatch, capsys):
    started = []
    monkeypatch.setattr("subprocess.call", lambda command: started.append(command) or 7)
    assert speedrun.main([]) == 7
    assert len(started) == 1
    assert "ended with exit code 7" in capsys.readouterr().err
