"""What each setting of a training run changes: said at its flag, and the same for resume, reports and studies."""

import json
import re
import sys
from unittest.mock import Mock

import pytest
import torch

from nanogka.common.cli import flags_of
from nanogka.common.errors import Errors
from nanogka.study.grid import decisive
from nanogka.train.budget import plan_budget
from nanogka.train.chat import ChatSettings
from nanogka.train.plan import FolderSettings, RunSettings, compared_on_resume, decide_compile, plan_batch
from nanogka.train.rl import RLSettings
from nanogka.train.settings import TrainSettings
from scripts import base_train, chat_rl, chat_sft


@pytest.mark.parametrize("settings", [TrainSettings, ChatSettings, RLSettings])
def test_every_setting_says_what_it_changes(settings):
    assert [name for name, one in flags_of(settings).items() if one.affects is None] == []


@pytest.mark.parametrize("rows, expected", [(64, 32), (33, 11), (37, 1), (20, 20), (62, 31)])
def test_a_micro_batch_has_at_most_32_rows_and_divides_the_step(rows, expected):
    budget = plan_budget(TrainSettings().config(50), num_iterations=1, total_batch_size=rows * 3 * 16)
    assert plan_batch(None, budget, 16, world_size=3).rows == expected


def test_a_run_is_compared_in_what_decides_its_losses():
    compared = compared_on_resume(TrainSettings)
    assert {"matrix_lr", "seed", "dtype", "attention", "num_iterations", "short_conv"} <= compared
    # The fingerprints of the text and the number of steps are compared instead.
    assert not compared & {"data", "tokenizer", "shards", "target_flops"}
    assert not compared & {"device", "compile", "keep", "sample_every"}
    assert "eval_samples" not in compared_on_resume(RLSettings)


def test_the_shape_of_a_model_follows_from_its_flags():
    settings = TrainSettings(depth=3, aspect_ratio=40, head_dim=64, sequence_len=96)
    config = settings.config(300)
    assert (config.n_layer, config.n_embd, config.n_head, config.sequence_len) == (3, 128, 2, 96)
    assert {"aspect_ratio", "head_dim"} <= compared_on_resume(TrainSettings)


def test_a_study_knows_a_run_by_its_budget_and_not_by_where_its_text_is():
    first = decisive(TrainSettings(target_flops=1e13, data="here", sample_every=3).to_dict())
    assert first == decisive(TrainSettings(target_flops=1e13, data="there", keep=7).to_dict())
    assert first != decisive(TrainSettings(target_flops=2e13, data="here").to_dict())


@pytest.mark.parametrize("name", ["../x", ".x", "-x", "a\\b", " a", "a\n", "a" * 200])
def test_a_name_that_is_no_plain_folder_is_refused(name):
    FolderSettings(run="a b,c:2 é").check(errors := Errors())
    assert not errors.lines
    FolderSettings(run=name).check(errors)
    assert errors.lines == [f"run: got {name!r}, expected a plain folder name"]


def test_help_marks_what_a_resumed_run_cannot_change(capsys):
    with pytest.raises(SystemExit):
        base_train.main(["--help"])
    flags = re.split(r"\n  --", capsys.readouterr().out)
    marked = {one.split()[0] for one in flags if "[fixed once a run has started]" in " ".join(one.split())}
    assert {"matrix-lr", "seed", "short-conv", "attention"} <= {name.rstrip(",") for name in marked}
    assert not marked & {"data", "device", "keep", "target-flops"}


@pytest.fixture
def read(monkeypatch):
    """Names of the settings that anything but `dataclasses` has read."""
    names = set()

    def spy(self, name):
        if sys._getframe(1).f_globals["__name__"] != "dataclasses":
            names.add(name)
        return object.__getattribute__(self, name)

    monkeypatch.setattr(RunSettings, "__getattribute__", spy)
    return names


def test_a_training_reads_every_flag_that_it_accepts(base, flags, read):
    """Flags are inherited, so only a run shows which of them its script reads."""
    talk = base / "talk.jsonl"
    turns = [[("user", f"the cat {i}"), ("assistant", "a dog")] for i in range(20)]
    lines = [{"messages": [{"role": role, "content": text} for role, text in turn]} for turn in turns]
    talk.write_text("\n".join(map(json.dumps, lines)))
    common = "--device cpu --eval-every 0".split()
    one = [*common, "--num-iterations", "1"]
    tune = ["--base", "tiny", "--data", str(talk), "--total-batch-size", "64", "--compile", "off"]
    small = "--base tiny-chat --questions 1 --samples 2 --max-tokens 2 --eval-items 1 --eval-samples 1".split()
    # Read only on a GPU, at a batch that is not finite, by July's network, and with --core-every.
    rare = {"allow_torch", "skip_bad_batches", "backout_lr"}
    for script, kind, runs, unread in (
        (base_train, TrainSettings, [[*flags, *one, "--sequence-len", "64", "--run", "tiny"]], rare | {"eval_bundle"}),
        (chat_sft, ChatSettings, [[*tune, *one], [*tune, *common, "--dry-run"]], rare),
        (chat_rl, RLSettings, [[*small, *one]], rare),
    ):
        read.clear()
        for words in [*runs, [*runs[0], "--resume", "auto"]]:
            assert script.main(words) == 0
        accepted = {one.owner or name for name, one in flags_of(kind).items()}
        assert accepted - read == unread


def test_compiling_is_decided_by_the_flag_the_device_and_the_length_of_the_run():
    cpu, gpu, short, long = torch.device("cpu"), torch.device("cuda"), Mock(flops=1.9e13), Mock(flops=2e13)
    assert decide_compile(None, gpu, long) == (False, "batches have many shapes")
    assert decide_compile("off", gpu, long) == (False, "--compile off")
    assert decide_compile("auto", cpu, short) == (False, "the run is too short for it to pay")
    for wanted, device, budget in (("auto", cpu, long), ("auto", gpu, short), ("on", cpu, short)):
        assert decide_compile(wanted, device, budget, probe=False) == (True, "not tried in a dry run")
