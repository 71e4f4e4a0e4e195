"""A vision transformer trained on folders of pictures: its log, a stop and a resume, its figures, what it refuses."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("timm")

from pictures import make_folder  # noqa: E402
from training import newest, trace  # noqa: E402

from nanogka.vision.train import EMA  # noqa: E402
from scripts import vision_info, vision_train  # noqa: E402

ROOT = Path(__file__).parents[2]
SMALL = {  # the paper's recipe on pictures of 32 pixels
    "recipe": "deit",
    "model": "deit_micro_gka_patch4_28",
    "img_size": 32,
    "epochs": 2,
    "eval_every": 1,
    "save_every": 1,
    "batch_size": 4,
    "warmup_epochs": 1,
    "ema": 0.9,
    "device": "cpu",
    "dtype": "float32",
}


def flags(**settings):
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


@pytest.fixture
def runs(base):
    return base / "vision"


def assert_same(one, other):
    assert trace(one) == trace(other)
    weights, others = newest(one).weights, newest(other).weights
    assert weights.keys() == others.keys()
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []


def test_a_run_is_logged_drawn_and_resumed_from_the_end_of_an_epoch(runs, tmp_path, capsys):
    settings = flags(data_dir=make_folder(tmp_path / "pets"), **SMALL)
    assert vision_train.main([*settings, "--run=whole"]) == 0
    lines = trace(runs / "whole")
    assert [line["kind"] for line in lines] == ["run", "eval", *(["train"] * 4 + ["eval"]) * 2]
    assert {"top1", "val_loss", "ema_top1", "ema_top5"} <= lines[-1].keys()
    assert lines[-1]["epoch"] == 2
    drawn = {path.name for path in (runs / "whole" / "maps").iterdir()}
    assert {"cls.png", "patches.png", "rollout.png", "distance.png", "bandwidth.png", "layer_00.png"} <= drawn
    weights = newest(runs / "whole").weights
    plain, averaged = weights["head.weight"], weights[EMA + "head.weight"]
    assert not torch.equal(plain, averaged)

    # Without its last checkpoint, the run resumes from its second epoch.
    assert vision_train.main([*settings, "--run=cut"]) == 0
    cut = runs / "cut"
    shutil.rmtree(cut / "checkpoints" / "step_000008")
    assert vision_train.main([*settings, "--run=cut", "--resume=auto"]) == 0
    assert "resuming from step_000004" in capsys.readouterr().out
    assert_same(runs / "whole", cut)
    assert vision_train.main([*settings, "--run=cut", "--resume=auto", "--seed=2"]) == 2
    assert "--seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changed,setting",
    [
        ({"model": "deit_huge"}, "--model"),
        ({"model": "resnet18"}, "--model"),
        ({"batch_size": 2000}, "--batch-size"),
        ({"batch_size": 7}, "--batch-size"),
        ({"auto_augment": "randomly"}, "--auto-augment"),
        ({"dataset": "torch/nothing"}, "--data-dir"),
        ({"data_dir": ""}, "--data-dir"),
        ({"warmup_epochs": 2}, "--warmup-epochs"),
    ],
)
def test_bad_settings_are_named_before_anything_is_created(changed, setting, runs, tmp_path, capsys):
    settings = SMALL | {"data_dir": make_folder(tmp_path / "pets")} | changed
    assert vision_train.main(flags(**settings)) == 2
    assert f"{setting}: " in capsys.readouterr().err
    assert not runs.exists()


def test_info_prints_the_paper_table(capsys):
    assert vision_info.main(["--sizes", "tiny"]) == 0
    out = capsys.readouterr().out
    assert "| deit_tiny_gka_patch16_224 | 4,383,436 |" in out
    assert vision_info.main(["--sizes", "huge"]) == 2


@pytest.mark.slow
def test_two_ranks_see_all_images_and_log_finite_losses(runs, tmp_path):
    data = make_folder(tmp_path / "pets", classes=("cat", "dog", "eel", "fox"), train=40, val=10)
    rank = tmp_path / "rank.py"
    paths = [str(ROOT), str(Path(__file__).parent)]  # conftest makes torchvision's CUDA wheel importable
    rank.write_text(
        f"import sys\nsys.path[:0] = {paths}\nimport conftest\nfrom scripts.vision_train import main\nmain()\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", rank]
    command = [*torchrun, *flags(data_dir=data, **{**SMALL, "batch_size": 16})]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    lines = [
        json.loads(line) for line in (runs / "pets-deit_micro_gka_patch4_28" / "metrics.jsonl").read_text().splitlines()
    ]
    assert lines[-1]["val_loss"] < 3
