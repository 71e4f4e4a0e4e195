"""Device, dtype and folders."""

import os
import subprocess
import sys
import tempfile

import pytest
import torch
import torch._inductor.config as compiler

from nanogka.common.runtime import can_compile, pick_device, pick_dtype


def test_device_is_chosen_or_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device() == pick_device("cpu") == torch.device("cpu")
    assert pick_device("cpu:0") == torch.device("cpu:0")
    with pytest.raises(ValueError, match="device: got 'cuda'"):
        pick_device("cuda")
    with pytest.raises(ValueError, match="device: got 'tpu'"):
        pick_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="device: got 'cuda:2'"):
        pick_device("cuda:2")


@pytest.mark.parametrize(
    "name", "cpu: cuda: mps: cpu:² cpu:1 cpu:-1 cuda:x cpu:1e99 cpu::0 CPU : cpu,cuda".split() + ["", " cpu"]
)
def test_no_text_is_a_device_that_torch_does_not_know(name, monkeypatch):
    for backend in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(backend, "is_available", lambda: True)
    with pytest.raises(ValueError, match=f"^device: got {name!r}, expected"):
        pick_device(name)


@pytest.mark.parametrize("fast,expected", [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_dtype_is_bfloat16_only_where_it_is_faster(fast, expected, monkeypatch):
    monkeypatch.setattr("nanogka.common.runtime.cpu_has_fast_bfloat16", lambda: fast)
    assert pick_dtype("auto", torch.device("cpu")) == expected
    assert pick_dtype("auto", torch.device("cpu"), decode=True) == torch.float32
    assert pick_dtype("float32", torch.device("cpu")) == torch.float32
    with pytest.raises(ValueError, match="dtype: got 'int8'"):
        pick_dtype("int8", torch.device("cpu"))


def test_a_script_learns_what_is_chosen_on_this_machine():
    command = [sys.executable, "-m", "nanogka.common.runtime"]
    done = subprocess.run(command, capture_output=True, text=True)
    device = pick_device("auto")
    dtype = {torch.bfloat16: "bfloat16", torch.float32: "float32"}[pick_dtype("auto", device)]
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{device.type} {dtype}\n", "")


def test_a_compiler_that_fails_is_reported_not_raised(monkeypatch):
    def broken(function):
        raise RuntimeError("no C++ compiler found\nmore")

    monkeypatch.setattr(torch, "compile", broken)
    able, reason = can_compile(torch.device("cpu"))
    assert not able
    assert "no C++ compiler found" in reason
    assert "more" not in reason

    def silent(function):
        raise AssertionError

    monkeypatch.setattr(torch, "compile", silent)
    assert can_compile(torch.device("cpu")) == (False, "torch.compile does not work here: AssertionError")


def test_nothing_is_compiled_from_a_folder_that_somebody_else_can_fill(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    assert can_compile(torch.device("cpu"))[0]
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    able, reason = can_compile(torch.device("cpu"))
    assert not able
    assert f"{folder}, where torch.compile keeps its work, is a link or another user's" in reason


def test_the_key_of_the_compilers_cache_has_the_width_of_the_vectors(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(compiler.cpp, "simdlen", None)  # restored after the test
    keys = []
    for capability in ("AVX512", "AVX2", "DEFAULT", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)  # noqa: B023
        assert can_compile(torch.device("cpu"))[0]
        keys.append(compiler.save_config_portable())  # what torch hashes
    assert keys[0] == keys[3] != keys[1] != keys[2] != keys[0]


COMPILES = """
import torch
from nanogka.common.runtime import can_compile
assert can_compile(torch.device("cpu"))[0]
def double(ids):
    return torch.where(ids > 3, ids * 2, ids - 1).to(torch.int64)
ids = torch.arange(1003, dtype=torch.int32)
print(torch.equal(torch.compile(double)(ids), double(ids)))
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="a CPU with AVX-512")
def test_a_cpu_with_narrower_vectors_shares_a_cache(tmp_path):
    for capability in ("avx512", "avx2"):
        env = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        run = subprocess.run([sys.executable, "-c", COMPILES], env=env, capture_output=True, text=True)
        assert run.stdout == "True\n", run.stderr
