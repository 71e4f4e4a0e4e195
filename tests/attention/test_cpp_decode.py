"""What only the C++ decode kernels promise: one answer however the work is shared out, and a reason where they fail.

See also test_decode.py.
"""

import subprocess
import sys

import pytest
import torch
from decode_cases import (
    CPP,
    assert_accurate,
    assert_within_budget,
    draw,
    gaussian,
    gaussian_case,
    literal,
    softmax,
    softmax_case,
)

from nanogka.attention import cpp_decode, decode


@pytest.fixture
def unbuilt(monkeypatch, tmp_path):
    """Nothing has been compiled yet."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    cpp_decode._functions.cache_clear()
    yield tmp_path
    cpp_decode._functions.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("D,window", [(128, None), (128, 1024), (96, 700)])
def test_long_contexts(dtype, D, window):
    assert_accurate(CPP, gaussian_case(CPP, [1500, 2047, 12], D, window, 64, H=3, dtype=dtype), window, atol=1e-3)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1e4])
def test_sharp_and_flat_kernels(sigma):
    case = gaussian_case(CPP, [600], 32, None, 64, sigma=sigma)
    exact = literal(case, None, 64, torch.float64)
    torch.testing.assert_close(gaussian(CPP, case, None, 64).double(), exact, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_mean_of_two_is_rounded_to_nearest_ties_to_even(dtype):
    v = torch.tensor([[1.0, -1.0078125], [1.0078125, -1.015625]])  # neighbours: their mean is a tie
    v = v.repeat_interleave(8, 1)
    v = torch.cat([v, draw(CPP, 2, 16)], 1).to(dtype)[None, :, None]
    q, positions = torch.zeros(1, 1, 32, dtype=dtype), torch.tensor([1])
    expected = v.float().mean(1).to(dtype)
    assert torch.equal(softmax(CPP, q, torch.ones_like(v), v, positions), expected)


def test_blocks_larger_than_a_chunk_are_refused():
    assert torch.isfinite(gaussian(CPP, gaussian_case(CPP, [600], 32, 500, 256), 500, 256)).all()
    with pytest.raises(ValueError, match="block: got 257 slots, takes at most 256"):
        gaussian(CPP, gaussian_case(CPP, [600], 32, None, 257), None, 257)


@pytest.mark.parametrize("heads", [1, 40])
def test_few_and_many_heads(heads):
    case = gaussian_case(CPP, [700], 64, 600, 64, H=heads, dtype=torch.bfloat16)
    plain, exact = (literal(case, 600, 64, dtype) for dtype in (torch.bfloat16, torch.float64))
    assert_within_budget(gaussian(CPP, case, 600, 64), plain, exact)


def test_the_number_of_threads_and_the_other_streams_change_no_bit():
    x, u, bandwidth, positions = gaussian_case(CPP, [1000, 3, 700], 128, None, 64)
    q, k, v, _, _ = softmax_case(CPP, [1000, 3, 700], 48, 48)
    threads, answers = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            case = x, u, bandwidth, positions
            answers.append((gaussian(CPP, case, None, 64), softmax(CPP, q, k, v, positions)))
    finally:
        torch.set_num_threads(threads)
    for row in range(3):
        one = slice(row, row + 1)
        alone = gaussian(CPP, (x[one], u[one], bandwidth, positions[one]), None, 64)
        for y, z in answers:
            assert torch.equal(y[one], alone)
            assert torch.equal(z[one], softmax(CPP, q[one], k[one], v[one], positions[one]))


def test_room_that_is_not_filled_changes_no_bit():
    x, u, bandwidth, positions = gaussian_case(CPP, [300], 32, None, 64)
    roomy = torch.cat([u, torch.full((1, 900, 2, 32), torch.nan)], 1)
    ours, expected = (gaussian(CPP, (x, t, bandwidth, positions), None, 64) for t in (roomy, u))
    assert torch.equal(ours, expected)


def test_without_openmp_it_has_one_thread_and_the_same_answer(unbuilt, monkeypatch):
    case = gaussian_case(CPP, [600], 32, None, 64)
    expected = gaussian(CPP, case, None, 64)
    cpp_decode._functions.cache_clear()
    monkeypatch.setattr(cpp_decode, "THREADS", (["-fopenmp", "-no-such-flag"], []))
    assert torch.equal(gaussian(CPP, case, None, 64), expected)


def test_it_is_built_once(unbuilt, monkeypatch):
    cpp_decode._functions()
    (library,) = (unbuilt / "kernels").iterdir()
    built = library.stat().st_mtime_ns
    cpp_decode._functions.cache_clear()
    monkeypatch.setattr(subprocess, "run", None)
    cpp_decode._functions()
    assert library.stat().st_mtime_ns == built


@pytest.mark.parametrize(
    "path,reason",
    [
        ("nothing", r"no C\+\+ compiler \(c\+\+, g\+\+ or clang\+\+\)"),
        ("broken", r"c\+\+ failed \(3\): no such standard; c\+\+ failed \(3\)"),
    ],
)
def test_where_it_cannot_be_built_torch_decodes_and_the_reason_is_said(path, reason, unbuilt, monkeypatch):
    folder = unbuilt / "bin"
    folder.mkdir()
    if path == "broken":
        compiler = folder / "c++"
        compiler.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('no such standard')\nsys.exit(3)\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    decode.why_not.cache_clear()
    try:
        assert decode.decode_backend("auto", CPP.device, torch.float32, 16) == "torch"
        refusal = f"decode backend: 'cpp' cannot run on cpu in torch.float32: OSError: {reason}"
        with pytest.raises(ValueError, match=refusal):
            decode.decode_backend("cpp", CPP.device, torch.float32, 16)
    finally:
        decode.why_not.cache_clear()
