"""Decoding by our kernels against the literal version in float64: Triton on the GPU where there is one, else
interpreted, and C++ on the CPU.

By norm, an error may be twice that of the literal version in the same low precision plus one rounding step of the
result.
"""

import pytest
import torch
from decode_cases import (
    CPP,
    TRITON,
    assert_rotated_as_by_torch,
    assert_within_budget,
    draw,
    frequencies,
    gaussian,
    gaussian_case,
    literal,
    softmax,
    softmax_case,
)

from nanogka.attention import decode
from nanogka.attention.reference import gaussian_reference

pytestmark = pytest.mark.usefixtures("poisoned_outputs")


@pytest.fixture(params=[TRITON, CPP], ids=lambda each: each.backend)
def kernels(request):
    if request.param is TRITON:
        pytest.importorskip("triton")
    return request.param


GAUSSIAN = [
    # positions, D, window, block, what else
    ([0], 16, None, 16, {}),
    ([0, 0], 16, 7, 4, {"H": 1}),
    ([37], 32, None, 8, {"dtype": torch.bfloat16}),
    ([5, 0, 63, 64], 16, None, 16, {"H": 1}),
    ([100, 7, 19, 20, 21], 16, 20, 8, {"H": 1}),  # rings that have gone round several times, once, not yet
    ([200, 31], 24, 31, 8, {"dtype": torch.float16, "H": 1}),
    ([39, 40, 41], 48, 40, 5, {"dtype": torch.bfloat16, "H": 1}),
    ([70], 128, 32, 16, {"dtype": torch.bfloat16}),
    ([33], 256, None, 16, {"dtype": torch.bfloat16, "H": 1}),
    ([80], 96, 64, 64, {"H": 1}),
    ([90], 16, 150, 32, {"slots": 120, "H": 1}),  # room for more than is filled, less than the ring
    ([17], 16, None, 8, {"slots": 64, "dtype": torch.bfloat16}),
    ([30], 16, 20, 8, {"sigma": 0.2}),
    ([30], 16, None, 8, {"sigma": 50.0, "dtype": torch.float16}),
]


@pytest.mark.parametrize("positions,D,window,block,options", GAUSSIAN)
def test_the_one_tensor_form_has_the_error_of_the_literal_version(kernels, positions, D, window, block, options):
    case = gaussian_case(kernels, positions, D, window, block, **options)
    plain, exact = (literal(case, window, block, dtype) for dtype in (case[0].dtype, torch.float64))
    assert_within_budget(gaussian(kernels, case, window, block), plain, exact)


SOFTMAX = [
    # positions, D, D_v, what else
    ([0], 16, 16, {}),
    ([70, 0, 63], 16, 16, {"H": 1}),
    ([129, 40], 48, 24, {"dtype": torch.bfloat16}),
    ([40], 128, 128, {"dtype": torch.float16}),
    ([70], 256, 256, {"dtype": torch.bfloat16, "H": 1}),
    ([99], 16, 16, {"slots": 41}),  # a ring that has gone round
    ([20], 16, 32, {"slots": 200, "dtype": torch.bfloat16}),
]


@pytest.mark.parametrize("positions,D,DV,options", SOFTMAX)
def test_the_two_tensor_form_has_the_error_of_the_literal_version(kernels, positions, D, DV, options):
    q, k, v, positions, seen = softmax_case(kernels, positions, D, DV, **options)
    k_, v_ = k.nan_to_num(), v.nan_to_num()
    plain = decode.literal_softmax(q, k_, v_, seen, 0.3)
    exact = decode.literal_softmax(q.double(), k_.double(), v_.double(), seen, 0.3)
    assert_within_budget(softmax(kernels, q, k, v, positions), plain, exact)


@pytest.mark.parametrize("length,window", [(1, None), (30, None), (30, 11), (12, 11), (13, 11)])
def test_the_literal_version_is_the_operator(length, window):
    """Of a whole sequence the operator's last row, from what a cache would keep of it."""
    D, H, block = 16, 2, 4
    x, sigma = draw(CPP, 1, length, H, D).double(), torch.tensor([1.0, 3.0]).double()

    def rotated(features, positions):
        cos, sin = (f(positions.double()[:, None, None] * frequencies(D).double()) for f in (torch.cos, torch.sin))
        first, second = features.chunk(2, -1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)

    positions = torch.arange(length)
    z = rotated(x, positions)
    z = z / (z.square().mean(-1, keepdim=True) + decode.NORM_EPS).sqrt()
    expected = gaussian_reference(z, z, x, sigma, causal=True, window=window)[:, -1]
    ring = length if window is None else window + 1
    u = torch.zeros(1, min(ring, length), H, D, dtype=torch.float64)
    for p in range(length):
        u[:, p % ring] = rotated(x, positions % ring % block)[:, p]
    ours = decode.literal_gaussian(x[:, -1], u, sigma, positions[-1:], frequencies(D), window, block)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)  # norms under a root with ε are not quite equal


def test_one_remembered_position_returns_its_own_value(kernels):
    case = gaussian_case(kernels, [0], 16, None, 8, dtype=torch.bfloat16)
    assert torch.equal(gaussian(kernels, case, None, 8), case[1][:, 0])


def test_rows_that_share_memory_and_padding_rows(kernels):
    """A fork's rows are one row expanded; a padding row (position −1) gets something finite."""
    x, u, bandwidth, _ = gaussian_case(kernels, [30, 30, 30], 16, 20, 8, dtype=torch.bfloat16, H=1)
    shared = u[:1].expand(3, -1, -1, -1)
    positions = torch.tensor([30, -1, 30], device=kernels.device)
    y = gaussian(kernels, (x, shared, bandwidth, positions), 20, 8)
    expected = gaussian(kernels, (x, shared.contiguous(), bandwidth, torch.full_like(positions, 30)), 20, 8)
    assert torch.equal(y[[0, 2]], expected[[0, 2]])
    assert torch.isfinite(y).all()


def test_one_position_for_all_rows_is_that_position_in_each(kernels):
    x, u, bandwidth, positions = gaussian_case(kernels, [30, 30], 16, 20, 8)
    q, k, v, _, _ = softmax_case(kernels, [30, 30], 16, 16)
    expected = gaussian(kernels, (x, u, bandwidth, positions), 20, 8), softmax(kernels, q, k, v, positions)
    turns = frequencies(16, kernels.device)
    tables = decode.phase_tables(positions[:1], turns, u.shape[1], 20, 8, backend=kernels.backend)
    one = positions[:1].expand(2)
    assert torch.equal(decode.decode_gaussian(x, u, bandwidth, one, tables, 21, backend=kernels.backend), expected[0])
    assert torch.equal(softmax(kernels, q, k, v, one), expected[1])


@pytest.mark.parametrize("dtype,D", [(torch.bfloat16, 16), (torch.float16, 24), (torch.float32, 80)])
@pytest.mark.parametrize("normed", [False, True])
def test_one_position_is_rotated_as_by_torch(kernels, dtype, D, normed):
    assert_rotated_as_by_torch(kernels, dtype, D, normed)


def test_tensors_of_any_strides(kernels):
    x, u, bandwidth, positions = gaussian_case(kernels, [30, 11], 16, 20, 8, H=1)
    far = u.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    ours, expected = (gaussian(kernels, (x, t, bandwidth, positions), 20, 8) for t in (far, u))
    assert torch.equal(ours, expected)
    spread = positions.repeat_interleave(3)[::3]
    assert torch.equal(gaussian(kernels, (x, u, bandwidth, spread), 20, 8), expected)
    q, k, v, positions, _ = softmax_case(kernels, [30, 11], 16, 16)
    expected = softmax(kernels, q, k, v, positions)
    assert torch.equal(softmax(kernels, q, k, v, positions.repeat_interleave(3)[::3]), expected)


def test_the_operators_keep_the_rules_of_custom_operators(kernels, monkeypatch):
    monkeypatch.undo()  # the checker compares tensors it made by torch.empty
    x, u, bandwidth, positions = gaussian_case(kernels, [20, 3], 16, 9, 8, H=1)
    turns = frequencies(16, kernels.device)
    tables = decode.phase_tables(positions, turns, u.shape[1], 9, 8, backend=kernels.backend)
    rotations = (*tables.query, *tables.back) if kernels is TRITON else (turns, *tables.query, 8)
    module = decode._kernels(kernels.backend)
    torch.library.opcheck(module.gaussian_op, (x, u.nan_to_num(), bandwidth, positions, *rotations, 10, 1e-6))
    if kernels is TRITON:  # for the other, torch rotates
        torch.library.opcheck(module.rotate_op, (x, tables.back[0][:1], tables.back[1][:1], True, 1e-6))
    q, k, v, positions, _ = softmax_case(kernels, [40, 3], 16, 32, H=1)
    torch.library.opcheck(module.softmax_op, (q, k.nan_to_num(), v.nan_to_num(), positions, 0.3))


def test_the_probe_passes_here_and_refusals_have_a_reason(kernels):
    device, alike = kernels.device, {"triton": "bfloat16, float16 or float32", "cpp": "bfloat16 or float32"}
    assert decode.decode_backend(kernels.backend, device, torch.bfloat16, 32) == kernels.backend
    assert decode.decode_backend("torch", device, torch.bfloat16, 32) == "torch"
    refusal = f"{kernels.backend!r} cannot run on .*float64: .* take {alike[kernels.backend]} alike"
    with pytest.raises(ValueError, match=refusal):
        decode.decode_backend(kernels.backend, device, torch.float64, 32)
    with pytest.raises(ValueError, match="decode backend: got 'cuda', takes auto, torch, triton, cpp"):
        decode.decode_backend("cuda", device, torch.bfloat16, 32)


def test_the_best_that_works_is_chosen():
    assert decode.decode_backend("auto", torch.device("cpu"), torch.bfloat16, 32) == "cpp"
    assert decode.decode_backend("auto", torch.device("cpu"), torch.float64, 32) == "torch"
    assert decode.decode_backend("auto", torch.device("meta"), torch.bfloat16, 32) == "torch"


def test_kernels_that_compute_wrongly_are_refused(kernels, monkeypatch):
    right = decode.decode_softmax
    monkeypatch.setattr(decode, "decode_softmax", lambda *a, **k: right(*a, **k) * 1.1)
    reason = decode._disagreement(kernels.backend, kernels.device, torch.float32, 16)
    assert "disagrees with the literal version: keys and values" in reason
