"""Training on images: stopped and resumed it gives the same numbers, bit for bit; what it writes; what it refuses."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("timm")

from pictures import make_folder  # noqa: E402
from training import newest, trace  # noqa: E402

from nanogka.runs import read_config  # noqa: E402
from nanogka.vision.learn import ImageOptimizer  # noqa: E402
from nanogka.vision.run import load_image_run  # noqa: E402
from scripts import vision_eval, vision_train  # noqa: E402

ROOT = Path(__file__).parents[2]
RECIPE = {  # DeiT's, on pictures of 32 pixels
    "recipe": "deit",
    "model": "deit_micro_gka_patch2_8",
    "img_size": 32,
    "patch_size": 8,
    "epochs": 2,
    "eval_every": 1,
    "batch_size": 4,
    "warmup_epochs": 1,
    "drop_path": 0.3,
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


def test_stopped_and_resumed_it_gives_the_same_numbers(runs, tmp_path, monkeypatch, capsys):
    data = make_folder(tmp_path / "pets")
    (data / "train" / "cat" / "000.png").write_bytes(b"no picture")
    settings = flags(data=data, **RECIPE)
    assert vision_train.main([*settings, "--run=whole"]) == 0
    set_rates = ImageOptimizer.set_rates

    def terminated(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return set_rates(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(ImageOptimizer, "set_rates", terminated)
        assert vision_train.main([*settings, "--run=cut"]) == 143
    assert "stopped by SIGTERM after step 3" in capsys.readouterr().err
    assert vision_train.main([*settings, "--run=cut", "--resume=auto", "--seed=2"]) == 2
    assert "--seed: got 2, expected 1" in capsys.readouterr().err
    dtype = read_config(runs / "cut")["settings"]["dtype"]  # not auto, which another device takes for another
    elsewhere = [f"--data={data.rename(tmp_path / 'moved')}", f"--dtype={dtype}", "--workers=1", "--rank-timeout=77"]
    assert vision_train.main([*settings, "--run=cut", "--resume=auto", *elsewhere]) == 0
    (tmp_path / "moved").rename(data)
    assert_same(runs / "whole", runs / "cut")
    lines = trace(runs / "whole")
    assert [line["kind"] for line in lines] == ["run", "eval", *["train"] * 4, "eval", *["train"] * 4, "eval"]
    assert [line for line in lines if "train/cat/000.png" in line.get("replaced", ())]
    assert {"top1", "val_loss", "ema_top1"} <= lines[-1].keys()
    assert "top5" not in lines[-1]  # of two classes
    for name in ("report.md", "report.html", "plots/curves.png", "config.yaml"):
        assert (runs / "whole" / name).stat().st_size

    assert vision_eval.main(["--run=whole", "--device=cpu", "--ema"]) == 0
    evaluated = json.loads((runs / "whole" / "evaluation.json").read_text())
    assert evaluated["top1"] == lines[-1]["ema_top1"]
    assert evaluated["images"] == 6
    averaged, plain = (load_image_run("whole", ema=ema).model.head.weight for ema in (True, False))
    assert not torch.equal(averaged, plain)

    assert vision_eval.main(["--maps", "--run=whole", "--number=6"]) == 2
    assert "--number: got 6, expected 0 to 5, the held-out images" in capsys.readouterr().err
    assert vision_eval.main(["--run=whole", "--number=1"]) == 2
    assert "--number: got 1, expected effect only with --maps" in capsys.readouterr().err
    drawn = {path.name for path in (runs / "whole" / "maps").iterdir()}
    assert drawn == {f"{name}.png" for name in "cls patches rollout composite bandwidth".split()} | {
        f"layer_0{layer}.png" for layer in range(4)
    }


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"data": "nowhere"}, "--data: got 'nowhere', expected digits, fashion-mnist, hf:NAME or a folder"),
        ({"model": "deit_huge"}, "--model: got 'deit_huge', expected a vision transformer by timm's name"),
        ({"batch_size": 2000}, "--batch-size: got 2000, expected at most the 1,437 images of an epoch"),
        ({"batch_size": 7, "mixup": 0.5}, "--batch-size: got 7, expected an even number"),
        ({"img_size": 9}, "--img-size: got 9, expected a multiple of the patch, 2"),
        ({"hflip": 2, "epochs": 0}, "--hflip: got '2', "),
        ({"auto_augment": "randomly"}, "--auto-augment: got 'randomly'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(changed, message, runs, capsys):
    assert vision_train.main(flags(**changed)) == 2
    assert message in capsys.readouterr().err
    assert not runs.exists()


@pytest.mark.slow
def test_two_ranks_on_a_folder_in_imagenets_layout(runs, tmp_path):
    data = make_folder(tmp_path / "pets", classes=("cat", "dog", "eel", "fox"), train=40, val=10)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, "-m", "scripts.vision_train", "--", *flags(data=data, **{**RECIPE, "batch_size": 16})]

    def start(*more):
        return subprocess.Popen([*command, *more], cwd=ROOT, stderr=subprocess.PIPE, text=True)

    whole = start("--run=whole")
    assert whole.wait() == 0, whole.stderr.read()
    cut = start("--run=cut", "--save-every=1")
    for line in cut.stderr:
        if line.startswith("step 1/"):
            cut.terminate()  # torchrun passes it on to its ranks
            break
    assert "--resume auto continues from there" in cut.stderr.read()
    cut.wait()
    resumed = start("--run=cut", "--save-every=1", "--resume=auto")
    errors = resumed.stderr.read()
    assert resumed.wait() == 0, errors
    assert_same(runs / "whole", runs / "cut")
