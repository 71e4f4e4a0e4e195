"""The training-step benchmark on a small model, and the GPU check where there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts import bench_train

ROOT = Path(__file__).parents[2]


def test_both_mixers_are_measured_and_compared(capsys):
    flags = "--depth 1 --sequence-len 32 --batch 2 --vocab-size 600 --repeats 2 --dtype float32 --device cpu"
    assert bench_train.main(flags.split()) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    ours, baseline = document["results"]["gaussian"], document["results"]["dot_product"]
    assert len(ours["seconds"]) == 2
    assert ours["flops_per_token"] < baseline["flops_per_token"]
    assert ours["peak_bytes"] < baseline["peak_bytes"]
    promise = baseline["flops_per_token"] / ours["flops_per_token"]
    gained = ours["tokens_per_second"] / baseline["tokens_per_second"]
    assert document["kept_of_promise"] == pytest.approx(gained / promise)


def test_every_bad_flag_is_named(capsys):
    assert bench_train.main(["--depth", "0", "--batch", "0", "--device", "nowhere"]) == 2
    complaints = capsys.readouterr().err
    for flag in ("--depth", "--batch", "--device"):
        assert flag in complaints


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_gpu_check_says_that_there_is_no_gpu(tmp_path):
    environment = os.environ | {"PYTHON": sys.executable, "NANOGKA_BASE_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "scripts/gpu_check.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3
    assert "sees no CUDA device; nothing was checked" in done.stderr
    assert not list(tmp_path.iterdir())
