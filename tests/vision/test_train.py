"""A vision transformer trained on folders of pictures: its log, a stop and a resume, its figures, what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("timm")

from pictures import make_folder  # noqa: E402

from nanogka.vision import train  # noqa: E402
from scripts import vision_info, vision_train  # noqa: E402

ROOT = Path(__file__).parents[2]
SMALL = {  # the paper's recipe on pictures of 32 pixels
    "recipe": "deit",
    "model": "deit_micro_gka_patch4_28",
    "img_size": 32,
    "epochs": 2,
    "eval_every": 1,
    "batch_size": 4,
    "warmup_epochs": 1,
    "ema": 0.9,
    "device": "cpu",
    "dtype": "float32",
}


def flags(**settings):
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def log(folder):
    """The lines of the log, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "images_per_second"} for line in lines]


@pytest.fixture
def runs(base):
    return base / "vision"


def test_a_run_is_logged_drawn_and_resumed_after_an_epoch(runs, tmp_path, monkeypatch, capsys):
    settings = flags(data_dir=make_folder(tmp_path / "pets"), **SMALL)
    assert vision_train.main([*settings, "--run=whole"]) == 0
    lines = log(runs / "whole")
    assert [line["epoch"] for line in lines] == [1, 2]
    assert {"lr", "loss", "top1", "val_loss", "ema_top1", "ema_top5"} <= lines[-1].keys()
    drawn = {path.name for path in (runs / "whole" / "maps").iterdir()}
    assert {"cls.png", "patches.png", "rollout.png", "distance.png", "bandwidth.png", "layer_00.png"} <= drawn
    saved = torch.load(runs / "whole" / "last.pt", weights_only=True)
    assert not torch.equal(saved["model"]["head.weight"], saved["ema"]["head.weight"])

    finish = train.finish_epoch

    def stop(*arguments):
        finish(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("nanogka.vision.figures.draw_example", lambda *_: [])  # seen above
    assert vision_train.main([*settings, "--run=cut", "--resume"]) == 2
    assert "--resume" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(train, "finish_epoch", stop)
        assert vision_train.main([*settings, "--run=cut"]) == 130
    assert vision_train.main([*settings, "--run=cut"]) == 2
    assert "--run" in capsys.readouterr().err
    assert vision_train.main([*settings, "--run=cut", "--resume"]) == 0
    assert log(runs / "cut") == lines
    resumed = torch.load(runs / "cut" / "last.pt", weights_only=True)
    for part in ("model", "ema"):
        assert [name for name in saved[part] if not torch.equal(saved[part][name], resumed[part][name])] == []


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
    assert log(runs / "pets-deit_micro_gka_patch4_28")[-1]["val_loss"] < 3


def test_a_foreign_last_epoch_is_refused_with_its_file_named(tmp_path):
    run = SimpleNamespace(folder=tmp_path, device=torch.device("cpu"))
    model, average, resumed = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer, fresh = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(resumed.parameters(), lr=0.5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    parts, file = {"model": model, "ema": average, "optimizer": optimizer}, tmp_path / "last.pt"
    good = {name: part.state_dict() for name, part in parts.items()} | {"epoch": 3}
    torch.save(good, file)
    assert train.load_last(run, resumed, torch.nn.Linear(3, 2), fresh) == 3
    assert torch.equal(resumed.weight, model.weight)
    assert torch.equal(fresh.state[resumed.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    assert fresh.param_groups[0]["lr"] == 0.5  # the run's, not the file's

    moments, weight = good["optimizer"]["state"][0], good["model"]["weight"]
    short = {"state": {**good["optimizer"]["state"], 0: moments | {"exp_avg": moments["exp_avg"].flatten()[:1]}}}
    forged = {
        "exp_avg of 0 has the shape": good | {"optimizer": short},
        "its optimizer state is list": good | {"optimizer": [1]},
        "weight has the shape": good | {"model": good["model"] | {"weight": weight[:1]}},
        "not a dictionary of tensors": good | {"model": {"weight": 1}},
        "nan or inf": good | {"ema": good["ema"] | {"weight": weight * torch.nan}},
        "expected model, ema": {"model": good["model"]},
        "expected a dictionary": [1],
    }
    for said, content in forged.items():
        torch.save(content, file)
        with pytest.raises(ValueError, match=f"{file}: .*{said}"):
            train.load_last(run, resumed, average, fresh)
    file.write_bytes(b"hello")
    with pytest.raises(ValueError, match=f"^{file}: damaged, not a file of torch.save"):
        train.load_last(run, resumed, average, fresh)
