"""What only the C++ decode kernels promise: one answer however the work is shared out, and a reason where they fail.

See also test_decode.py.
"""

import functools

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

from nanogka import native
from nanogka.attention import decode


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


def test_where_it_cannot_be_built_torch_decodes_and_the_reason_is_said(monkeypatch):
    def load(source):
        raise OSError(f"no compiler for {source.name}")

    monkeypatch.setattr(native, "load", load)
    monkeypatch.setattr(decode, "why_not", functools.cache(decode.why_not.__wrapped__))
    assert decode.decode_backend("auto", CPP.device, torch.float32, 16) == "torch"
    refusal = "decode backend: 'cpp' cannot run on cpu in torch.float32: OSError: no compiler for cpp_decode.cpp"
    with pytest.raises(ValueError, match=refusal):
        decode.decode_backend("cpp", CPP.device, torch.float32, 16)
