"""What the set-up installs: the pinned versions fit together on machines that CI does not have."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNREACHABLE = ("Failed to fetch", "Request failed", "dns error", "error sending request", "Connection refused")


def resolve(project: Path, *flags: str) -> str:
    """The versions that uv picks for Linux with an NVIDIA GPU. Metadata alone is downloaded, if an input changed."""
    inputs = [(project / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    known = Path(sys.prefix) / ".resolved" / hashlib.sha256(repr((inputs, flags)).encode()).hexdigest()
    if known.exists():
        return known.read_text()
    found = Path(sys.executable).with_name("uv")
    uv = str(found) if found.is_file() else shutil.which("uv")
    if uv is None:
        pytest.skip("no uv")
    command = [uv, "pip", "compile", "pyproject.toml", "--extra", "dev", "--python-platform", "x86_64-manylinux_2_28"]
    done = subprocess.run([*command, "--no-header", *flags], cwd=project, capture_output=True, text=True)
    if done.returncode and any(words in done.stderr for words in UNREACHABLE):
        pytest.skip("no package index")
    assert done.returncode == 0, done.stderr
    known.parent.mkdir(exist_ok=True)
    known.write_text(done.stdout)
    return done.stdout


@pytest.mark.parametrize("python", ["3.10", "3.14"])
def test_pinned_versions_fit_a_cuda_build_of_torch(python):
    """The CPU build needs no Triton. The CUDA build needs one exact release."""
    versions = resolve(ROOT, "-c", "constraints.txt", "--extra", "fa4", "--python-version", python)
    assert "torch==2.13.0" in versions
    assert "triton==3.7.1" in versions


def test_oldest_supported_versions_fit_a_cuda_build_of_torch():
    assert "torch==2.11.0" in resolve(ROOT, "--resolution", "lowest-direct", "--python-version", "3.10")


@pytest.mark.parametrize("given", [{}, {"PYTORCH_ALLOC_CONF": "a"}, {"PYTORCH_CUDA_ALLOC_CONF": "b"}])
def test_commands_configure_the_cuda_allocator_before_torch_is_imported(given):
    code = "import os, sys, scripts; print('torch' in sys.modules, os.environ.get('PYTORCH_ALLOC_CONF'))"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | given
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    expected = given.get("PYTORCH_ALLOC_CONF") if given else "expandable_segments:True"
    assert done.stdout == f"False {expected}\n"


def test_the_lowest_versions_are_installed_without_pytorchs_index_too(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "test_lowest.sh", tmp_path / "scripts")
    (bin := tmp_path / ".venv-lowest" / "bin").mkdir(parents=True)
    (bin / "uv").write_text('#!/bin/sh\necho "uv $*" >> calls\ncase "$*" in *--torch-backend*) exit 2 ;; esac\n')
    (bin / "python").write_text('#!/bin/sh\necho "python $*" >> calls\n')
    for command in bin.iterdir():
        command.chmod(0o755)
    words, environment = ["bash", "scripts/test_lowest.sh", "a"], os.environ | {"TORCH_BACKEND": "cpu"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, "trying its default build" in done.stderr) == (0, True)
    _, first, second, tests = (tmp_path / "calls").read_text().splitlines()
    assert first == second + " --torch-backend cpu"
    assert second.endswith("--resolution lowest-direct -e .[dev]")
    assert tests == "python -m pytest -m not slow a"


def test_uv_sync_installs_torch_without_cuda_on_request():
    project = (ROOT / "pyproject.toml").read_text()
    assert 'torch = [{ index = "pytorch-cpu", extra = "cpu" }]' in project
    assert 'url = "https://download.pytorch.org/whl/cpu"\nexplicit = true' in project
