"""C++ sources become operators of torch: built once, with or without OpenMP, and a reason where they cannot be."""

import functools
import itertools
import shutil
import subprocess
import sys

import pytest
import torch

from nanogka import native

SOURCE = """
#include "native.h"
namespace {
// (x of int64, x of float32, n, f) -> sums (rows, 2): of all, and of each row by its strides
void sums(StableIValue* stack, uint64_t, uint64_t) {
    Input x(stack[0]), y(stack[1]);
    if (integer(stack[2]) < 0) throw std::runtime_error("n is negative");
    Output<float> out({y.size(0), 2}, y.dtype());
    const float* rows = y.rows<float>();
    const int64_t stride = y.stride(0);
    const int64_t* all = x.contiguous<int64_t>();
    for (int64_t i = 0; i < y.size(0); i++) {
        float sum = 0;
        for (int64_t j = 0; j < y.size(1); j++) sum += rows[i * stride + j];
        out.data()[2 * i] = sum;
        out.data()[2 * i + 1] = all[i] * integer(stack[2]) + real(stack[3]);
    }
    stack[0] = out.release();
}
}
extern "C" int32_t register_operators() { return register_on_cpu({{"NAME", sums}}); }
"""
names = (f"sums_for_test_{number}" for number in itertools.count())

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")


@pytest.fixture
def unbuilt(monkeypatch, tmp_path):
    """Nothing has been compiled yet."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "load", functools.cache(native.load.__wrapped__))
    return tmp_path


@pytest.fixture
def operator(unbuilt):
    """A source in a file, and its operator."""
    name = next(names)
    source = unbuilt / f"{name}.cpp"
    source.write_text(SOURCE.replace("NAME", name))
    torch.library.define(f"nanogka::{name}", "(Tensor x, Tensor y, int n, float f) -> Tensor")
    return source, getattr(torch.ops.nanogka, name).default


def check(call):
    x, y = torch.arange(24).view(4, 6), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for a, b in [(x, y), (x[:, ::2], y[:, :3]), (x.t(), y.t()), (x[::3], y[:, ::2]), (x[:1].expand(5, 6), y[:1])]:
        result = call(a, b, 3, 0.25)
        expected = torch.stack([b.sum(1), a.flatten()[: len(b)] * 3 + 0.25], 1)
        torch.testing.assert_close(result, expected)


@needs_compiler
def test_a_source_becomes_an_operator_on_tensors_of_any_strides(operator):
    source, call = operator
    native.load(source)
    check(call)
    with pytest.raises(RuntimeError, match="n is negative"):
        call(torch.arange(3), torch.ones(1, 1), -1, 0.0)


@needs_compiler
def test_without_openmp_it_is_built_with_one_thread(operator, monkeypatch):
    source, call = operator
    monkeypatch.setattr(native, "THREADS", (["-fopenmp", "-no-such-flag"], []))
    native.load(source)
    check(call)


@needs_compiler
def test_it_is_built_once_until_something_changes(operator, monkeypatch, tmp_path):
    source, _ = operator
    native._build(source, "c++", [])
    (library,) = (tmp_path / "kernels").iterdir()
    built = library.stat().st_mtime_ns
    with monkeypatch.context() as context:
        context.setattr(subprocess, "run", None)
        assert native._build(source, "c++", []) == library
    assert library.stat().st_mtime_ns == built
    assert native._build(source, "c++", ["-DX=1"]) != library
    header = tmp_path / "native.h"
    header.write_text(native.HEADER.read_text() + "\n// changed\n")
    monkeypatch.setattr(native, "HEADER", header)
    assert native._build(source, "c++", []) != library


@pytest.mark.parametrize(
    "path,reason",
    [
        ("nothing", r"no C\+\+ compiler \(c\+\+, g\+\+ or clang\+\+\)"),
        ("broken", r"c\+\+ failed \(3\): no such standard; c\+\+ failed \(3\)"),
    ],
)
def test_where_it_cannot_be_built_the_reason_is_said(path, reason, operator, monkeypatch, tmp_path):
    without_compiler(path, monkeypatch, tmp_path)
    with pytest.raises(OSError, match=reason):
        native.load(operator[0])
    assert not list((tmp_path / "kernels").glob("*")) if path == "broken" else not (tmp_path / "kernels").exists()


def without_compiler(path, monkeypatch, folder):
    """A PATH without a compiler, or with one that fails."""
    folder = folder / "bin"
    folder.mkdir()
    if path == "broken":
        compiler = folder / "c++"
        compiler.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('no such standard')\nsys.exit(3)\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
