"""Training on images: stopped and resumed it gives the same numbers, bit for bit; what it writes; what it refuses."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("timm")

from pictures import make_folder  # noqa: E402

from nanogka.runs import read_config, read_metrics  # noqa: E402
from nanogka.train import loop  # noqa: E402
from nanogka.vision.run import load_image_run  # noqa: E402
from scripts import vision_eval, vision_train  # noqa: E402

ROOT = Path(__file__).parents[2]
TIMES = {"seconds", "total_seconds", "images_per_second", "data_wait", "created", "peak_memory"}
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
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    return tmp_path / "base" / "vision"


def numbers(folder):
    """The lines of metrics.jsonl without times, and the weights of the last checkpoint."""
    lines = read_metrics(folder / "metrics.jsonl")
    lines = [{name: value for name, value in line.items() if name not in TIMES | {"tag"}} for line in lines]
    return lines, load_file(sorted((folder / "checkpoints").glob("step_*"))[-1] / "model.safetensors")


def assert_same(one, other):
    assert numbers(one)[0] == numbers(other)[0]
    weights, others = numbers(one)[1], numbers(other)[1]
    assert weights.keys() == others.keys()
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []


class StopsAfter:
    """A request to stop that comes before step `step`."""

    step = 3

    def __init__(self):
        self.asked = 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    @property
    def received(self):
        self.asked += 1
        return signal.SIGTERM if self.asked >= self.step else None  # asked for once a step


def test_stopped_and_resumed_it_gives_the_same_numbers(base, tmp_path, monkeypatch, capsys):
    data = make_folder(tmp_path / "pets")
    (data / "train" / "cat" / "000.png").write_bytes(b"no picture")
    settings = flags(data=data, **RECIPE)
    assert vision_train.main([*settings, "--run=whole"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(loop, "StopRequest", StopsAfter)
        assert vision_train.main([*settings, "--run=cut"]) == 143
    assert "stopped by SIGTERM after step 3" in capsys.readouterr().err
    assert vision_train.main([*settings, "--run=cut", "--resume=auto", "--seed=2"]) == 2
    assert "--seed: got 2, takes 1" in capsys.readouterr().err
    dtype = read_config(base / "cut")["settings"]["dtype"]  # not auto, which another device takes for another
    elsewhere = [f"--data={data.rename(tmp_path / 'moved')}", f"--dtype={dtype}", "--workers=1", "--rank-timeout=77"]
    assert vision_train.main([*settings, "--run=cut", "--resume=auto", *elsewhere]) == 0
    (tmp_path / "moved").rename(data)
    assert_same(base / "whole", base / "cut")
    lines, _ = numbers(base / "whole")
    assert [line["kind"] for line in lines] == ["run", "eval", *["train"] * 4, "eval", *["train"] * 4, "eval"]
    assert [line for line in lines if "train/cat/000.png" in line.get("replaced", ())]
    assert {"top1", "val_loss", "ema_top1"} <= lines[-1].keys()
    assert "top5" not in lines[-1]  # of two classes
    for name in ("report.md", "report.html", "plots/curves.png", "config.yaml"):
        assert (base / "whole" / name).stat().st_size

    assert vision_eval.main(["--run=whole", "--device=cpu", "--ema"]) == 0
    evaluated = json.loads((base / "whole" / "evaluation.json").read_text())
    assert evaluated["top1"] == lines[-1]["ema_top1"]
    assert evaluated["images"] == 6
    averaged, plain = (load_image_run("whole", ema=ema).model.head.weight for ema in (True, False))
    assert not torch.equal(averaged, plain)

    assert vision_eval.main(["--maps", "--run=whole", "--number=6"]) == 2
    assert "--number: got 6, takes 0 to 5, the held-out images" in capsys.readouterr().err
    assert vision_eval.main(["--run=whole", "--number=1"]) == 2
    assert "--number: got 1, takes effect only with --maps" in capsys.readouterr().err
    drawn = {path.name for path in (base / "whole" / "maps").iterdir()}
    assert drawn == {f"{name}.png" for name in "cls patches rollout composite bandwidth".split()} | {
        f"layer_0{layer}.png" for layer in range(4)
    }


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"data": "nowhere"}, "--data: got 'nowhere', takes digits, fashion-mnist, hf:NAME or a folder"),
        ({"model": "deit_huge"}, "--model: got 'deit_huge', takes a vision transformer by timm's name: deit_base_gka"),
        ({"batch_size": 2000}, "--batch-size: got 2000, takes at most the 1,437 images of an epoch"),
        ({"batch_size": 7, "mixup": 0.5}, "--batch-size: got 7, takes an even number"),
        ({"img_size": 9}, "--img-size: got 9, takes a multiple of the patch, 2"),
        ({"hflip": 2, "epochs": 0}, "--hflip: got '2', takes a number from 0 to 0.999"),
        ({"auto_augment": "randomly"}, "--auto-augment: got 'randomly'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(changed, message, base, capsys):
    assert vision_train.main(flags(**changed)) == 2
    assert message in capsys.readouterr().err
    assert not base.exists()


@pytest.mark.slow
def test_two_ranks_on_a_folder_in_imagenets_layout(base, tmp_path, capsys):
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
    assert "--resume auto goes on from there" in cut.stderr.read()
    cut.wait()
    resumed = start("--run=cut", "--save-every=1", "--resume=auto")
    errors = resumed.stderr.read()
    assert resumed.wait() == 0, errors
    one, other = (numbers(base / name) for name in ("whole", "cut"))
    assert [line["loss"] for line in one[0] if line["kind"] == "train"] == [
        line["loss"] for line in other[0] if line["kind"] == "train"
    ]
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])
