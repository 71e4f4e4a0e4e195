"""The GPU check: a script that bash reads, of commands that exist, with flags that they have."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def test_bash_reads_it_and_python_its_probe():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    probe = re.search(r"<<'PY'\n(.*?)^PY$", SCRIPT.read_text(), re.DOTALL | re.MULTILINE)[1]
    compile(probe, "probe", "exec")


def test_its_commands_and_their_flags_exist(capsys):
    text = SCRIPT.read_text().replace("\\\n", " ").replace('"${attention[@]}"', "-m scripts.bench attention")
    commands = re.findall(r"-m scripts\.(\w+)((?: [a-z]+)?)(.*)", text)
    assert {name + subject for name, subject, _ in commands} == {
        "bench attention", "bench train", "bench generate", "tok_train", "base_train",
    }  # fmt: skip
    for name, subject, flags in commands:
        with pytest.raises(SystemExit):
            importlib.import_module(f"scripts.{name}").main([*subject.split(), "--help"])
        known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        assert set(re.findall(r"--\w[\w-]*", flags)) <= known, name


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    environment = os.environ | {"PYTHON": sys.executable, "NANOGKA_BASE_DIR": str(tmp_path)}
    done = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "no CUDA device; nothing was checked" in done.stderr
    assert not list(tmp_path.iterdir())
