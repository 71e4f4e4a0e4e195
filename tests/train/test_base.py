"""A training that starts from another run: its defaults, the run it starts from, and what it refuses."""

import pytest
import torch
import yaml
from training import fine_tune, newest, train

from nanogka.checkpoint import save_checkpoint
from nanogka.common.distributed import Ranks
from nanogka.data.hub import Hub
from nanogka.data.hub_corpora import HUB_CORPORA
from nanogka.model import GPTConfig
from nanogka.train.budget import plan_budget
from nanogka.train.chat import ChatSettings
from nanogka.train.plan import About, make_plan
from nanogka.train.rl import RLSettings
from nanogka.train.settings import TrainSettings

JULY = {"unembedding_lr": 0.008, "weight_decay": 0.28, "warmup_steps": 40, "warmdown_ratio": 0.65}
JULY |= {"final_lr_frac": 0.05}


@pytest.mark.parametrize(
    "kind, own",
    [
        (TrainSettings, {}),
        (ChatSettings, {"weight_decay": 0.0}),
        (RLSettings, {"weight_decay": 0.0, "warmdown_ratio": 1.0, "final_lr_frac": 0.0}),
    ],
)
def test_every_training_takes_the_defaults_of_the_models_network(kind, own, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    config = GPTConfig.from_depth(1, vocab_size=50, sequence_len=32, network="july")
    budget = plan_budget(config, num_iterations=3, total_batch_size=64)
    about = About(facts={}, data="")
    for given in ({}, {"warmup_steps": 7}):
        settings = kind(device="cpu", dry_run=True, **given)
        plan = make_plan(settings, config, None, budget, 32, "mine", Ranks(), about, None)
        found = {name: getattr(plan.settings, name) for name in JULY}
        assert found == JULY | own | given


def test_a_base_outside_of_the_runs_folder_is_found_again_on_resume(chat_base, talk, monkeypatch):
    (chat_base / "runs" / "tiny").rename(chat_base / "faraway")
    monkeypatch.chdir(chat_base)
    words = ["--data", talk, "--num-iterations", 1, "--lr-scale", 0, "--eval-every", 0, "--run", "far"]
    assert fine_tune(*words, "--base", "faraway") == 0
    config = yaml.safe_load((chat_base / "runs" / "far" / "config.yaml").read_text())
    assert config["settings"]["base"] == str(chat_base / "faraway")
    for given in ((), ("--base", "faraway")):
        assert fine_tune(*words, *given, "--resume", "auto") == 0


def test_weights_that_are_not_finite_are_no_start(chat_base, talk, capsys):
    folder = chat_base / "runs" / "tiny" / "checkpoints"
    checkpoint = newest(folder.parent)
    checkpoint.weights["lm_head.weight"] = torch.full_like(checkpoint.weights["lm_head.weight"], torch.nan)
    save_checkpoint(folder, checkpoint)
    assert fine_tune("--data", talk) == 2
    assert f"chat_sft: --base: {folder / 'step_000007'}: weights must be finite" in capsys.readouterr().err
    assert not (chat_base / "runs" / "tiny-chat").exists()


def test_the_base_is_looked_for_before_the_network_is_asked(chat_base, monkeypatch, capsys):
    monkeypatch.setattr(Hub, "load", lambda *_: pytest.fail("asked the hub"))
    assert fine_tune("--base", "nosuch", "--data", "smoltalk") == 2
    assert "chat_sft: --base: got 'nosuch'" in capsys.readouterr().err


def test_all_training_shards_of_a_corpus_can_be_asked_for_and_no_more(base, capsys):
    words = ["--tokenizer", "tiny", "--data", "climbmix", "--depth", "2", "--dry-run", "--shards"]
    most = HUB_CORPORA["climbmix"].training_shards
    assert train(*words, str(most)) == 0
    assert train(*words, str(most + 1)) == 2
    assert f"--shards: got {most + 1}, expected at most {most}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, says",
    [
        ("--lr-scale 1e300", "--lr-scale: got '1e300', expected a number less than or equal to 1000000"),
        ("--matrix-lr 1e25", "--matrix-lr: got '1e25'"),
        ("--shards 5 --data text", "--shards: got 5, expected --data fineweb-edu"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_before_anything_is_created(base, words, says, capsys):
    assert train("--tokenizer", "tiny", *words.split()) == 2
    assert says in capsys.readouterr().err
    assert not (base / "runs").exists()
