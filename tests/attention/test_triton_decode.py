"""Decoding by our kernels against the literal version in float64: on the GPU where there is one, else interpreted.

By norm, an error may be twice that of the literal version in the same low precision plus one rounding step of the
result.
"""

import pytest
import torch

pytest.importorskip("triton")

from nanogka.attention import decode, triton_decode
from nanogka.attention.reference import gaussian_reference
from nanogka.model.layers import norm, rotate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
pytestmark = pytest.mark.usefixtures("poisoned_outputs")


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def frequencies(D):
    return torch.exp(-torch.arange(0, D, 2, device=DEVICE) / D * 9.2)


def gaussian_case(positions, D, window, block, *, H=2, slots=None, dtype=torch.float32, sigma=None):
    """(x, u, σ, positions) with NaN in the slots that are not filled."""
    positions = torch.tensor(positions, device=DEVICE)
    slots = slots or int(min(positions.max(), positions.max() if window is None else window)) + 1
    x, u = draw(len(positions), H, D, dtype=dtype), draw(len(positions), slots, H, D, seed=1, dtype=dtype)
    u[torch.arange(slots, device=DEVICE) > positions[:, None]] = torch.nan
    bandwidth = torch.linspace(1.5, 4, H, device=DEVICE) if sigma is None else torch.full((H,), sigma, device=DEVICE)
    return x, u, bandwidth, positions


def gaussian(case, window, block):
    x, u, bandwidth, positions = case
    tables = decode.phase_tables(positions, frequencies(x.shape[-1]), u.shape[1], window, block)
    return decode.decode_gaussian(x, u, bandwidth, positions, tables, 0 if window is None else window + 1)


def literal(case, window, block, dtype):
    x, u, bandwidth, positions = case
    u = u.nan_to_num()
    return decode.literal_gaussian(
        x.to(dtype), u.to(dtype), bandwidth, positions, frequencies(x.shape[-1]), window, block
    )


def assert_within_budget(ours, plain, exact):
    assert ours.dtype == plain.dtype
    assert torch.isfinite(ours).all()
    error, allowed = (ours.double() - exact).norm(), 2 * (plain.double() - exact).norm()
    allowed += torch.finfo(ours.dtype).eps * exact.norm()
    assert error <= allowed, f"{error:.2e}, allowed {allowed:.2e}"


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
def test_the_one_tensor_form_has_the_error_of_the_literal_version(positions, D, window, block, options):
    case = gaussian_case(positions, D, window, block, **options)
    plain, exact = (literal(case, window, block, dtype) for dtype in (case[0].dtype, torch.float64))
    assert_within_budget(gaussian(case, window, block), plain, exact)


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


def softmax_case(positions, D, DV, *, H=2, slots=None, dtype=torch.float32):
    positions = torch.tensor(positions, device=DEVICE)
    slots = slots or int(positions.max()) + 1
    q, k = draw(len(positions), H, D, dtype=dtype), draw(len(positions), slots, H, D, seed=1, dtype=dtype)
    v = draw(len(positions), slots, H, DV, seed=2, dtype=dtype)
    seen = torch.arange(slots, device=DEVICE) <= positions[:, None]
    k[~seen], v[~seen] = torch.nan, torch.nan
    return q, k, v, positions, seen


@pytest.mark.parametrize("positions,D,DV,options", SOFTMAX)
def test_the_two_tensor_form_has_the_error_of_the_literal_version(positions, D, DV, options):
    q, k, v, positions, seen = softmax_case(positions, D, DV, **options)
    k_, v_ = k.nan_to_num(), v.nan_to_num()
    plain = decode.literal_softmax(q, k_, v_, seen, 0.3)
    exact = decode.literal_softmax(q.double(), k_.double(), v_.double(), seen, 0.3)
    assert_within_budget(decode.decode_softmax(q, k, v, positions, 0.3), plain, exact)


@pytest.mark.parametrize("length,window", [(1, None), (30, None), (30, 11), (12, 11), (13, 11)])
def test_the_literal_version_is_the_operator(length, window):
    """Of a whole sequence the operator's last row, from what a cache would keep of it."""
    D, H, block = 16, 2, 4
    x, sigma = draw(1, length, H, D).double(), torch.tensor([1.0, 3.0], device=DEVICE).double()

    def rotated(features, positions):
        cos, sin = (f(positions.double()[:, None, None] * frequencies(D).double()) for f in (torch.cos, torch.sin))
        first, second = features.chunk(2, -1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)

    positions = torch.arange(length, device=DEVICE)
    z = rotated(x, positions)
    z = z / (z.square().mean(-1, keepdim=True) + decode.NORM_EPS).sqrt()
    expected = gaussian_reference(z, z, x, sigma, causal=True, window=window)[:, -1]
    ring = length if window is None else window + 1
    u = torch.zeros(1, min(ring, length), H, D, dtype=torch.float64, device=DEVICE)
    for p in range(length):
        u[:, p % ring] = rotated(x, positions % ring % block)[:, p]
    ours = decode.literal_gaussian(x[:, -1], u, sigma, positions[-1:], frequencies(D), window, block)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)  # norms under a root with ε are not quite equal


@pytest.mark.parametrize("splits", [1, 12])
def test_the_number_of_splits_changes_only_rounding(splits, monkeypatch):
    case = gaussian_case([50, 3], 16, 40, 8, H=1)
    q, k, v, positions, _ = softmax_case([150, 3], 16, 16, H=1)
    monkeypatch.setattr(triton_decode, "split_count", lambda *_: 3)
    expected = gaussian(case, 40, 8), decode.decode_softmax(q, k, v, positions, 0.3)
    monkeypatch.setattr(triton_decode, "split_count", lambda *_: splits)
    ours = gaussian(case, 40, 8), decode.decode_softmax(q, k, v, positions, 0.3)
    for a, e in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, e, atol=2e-6, rtol=0)


def test_the_number_of_splits_fills_the_chip_but_leaves_work_for_each():
    assert triton_decode.split_count(10, 128, 132) == 27
    assert triton_decode.split_count(10, 17, 132) == 9
    assert triton_decode.split_count(640, 128, 132) == 1
    assert triton_decode.split_count(1, 1, 132) == 1


def test_one_remembered_position_returns_its_own_value():
    case = gaussian_case([0], 16, None, 8, dtype=torch.bfloat16)
    assert torch.equal(gaussian(case, None, 8), case[1][:, 0])


def test_rows_that_share_memory_and_padding_rows():
    """A fork's rows are one row expanded; a padding row (position −1) gets something finite."""
    x, u, bandwidth, _ = gaussian_case([30, 30, 30], 16, 20, 8, dtype=torch.bfloat16, H=1)
    shared = u[:1].expand(3, -1, -1, -1)
    positions = torch.tensor([30, -1, 30], device=DEVICE)
    y = gaussian((x, shared, bandwidth, positions), 20, 8)
    expected = gaussian((x, shared.contiguous(), bandwidth, torch.full_like(positions, 30)), 20, 8)
    assert torch.equal(y[[0, 2]], expected[[0, 2]])
    assert torch.isfinite(y).all()


def test_one_position_for_all_rows_is_that_position_in_each():
    x, u, bandwidth, positions = gaussian_case([30, 30], 16, 20, 8)
    q, k, v, _, _ = softmax_case([30, 30], 16, 16)
    expected = gaussian((x, u, bandwidth, positions), 20, 8), decode.decode_softmax(q, k, v, positions, 0.3)
    tables = decode.phase_tables(positions[:1], frequencies(16), u.shape[1], 20, 8)
    one = positions[:1].expand(2)
    assert torch.equal(decode.decode_gaussian(x, u, bandwidth, one, tables, 21), expected[0])
    assert torch.equal(decode.decode_softmax(q, k, v, one, 0.3), expected[1])


@pytest.mark.parametrize("dtype,D", [(torch.bfloat16, 16), (torch.float16, 24), (torch.float32, 80)])
@pytest.mark.parametrize("normed", [False, True])
def test_one_position_is_rotated_as_by_torch(dtype, D, normed):
    assert_rotated_as_by_torch(dtype, D, normed)


def assert_rotated_as_by_torch(dtype, D, normed):
    x = draw(2, 3, 2 * D, dtype=dtype)[..., :D]
    for positions in ([5, 900], [31]):
        tables = (torch.tensor(positions, device=DEVICE)[:, None] * frequencies(D))[:, None]
        y = rotate(x[:, None], (tables.cos()[:, None], tables.sin()[:, None]))[:, 0]
        expected = (norm(y) if normed else y).to(dtype)
        ours = decode.rotate_heads(x, tables.cos()[:, 0], tables.sin()[:, 0], normed=normed)
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_tensors_of_any_strides():
    x, u, bandwidth, positions = gaussian_case([30, 11], 16, 20, 8, H=1)
    far = u.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    assert torch.equal(gaussian((x, far, bandwidth, positions), 20, 8), gaussian((x, u, bandwidth, positions), 20, 8))


def test_the_operators_keep_the_rules_of_custom_operators(monkeypatch):
    monkeypatch.undo()  # the checker compares tensors it made by torch.empty
    x, u, bandwidth, positions = gaussian_case([20, 3], 16, 9, 8, H=1)
    tables = decode.phase_tables(positions, frequencies(16), u.shape[1], 9, 8)
    u = u.nan_to_num()
    arguments = (x, u, bandwidth, positions, *tables.query, *tables.back, 10, 1e-6)
    torch.library.opcheck(triton_decode.gaussian_op, arguments)
    torch.library.opcheck(triton_decode.rotate_op, (x, tables.back[0][:1], tables.back[1][:1], True, 1e-6))
    q, k, v, positions, _ = softmax_case([40, 3], 16, 32, H=1)
    torch.library.opcheck(triton_decode.softmax_op, (q, k.nan_to_num(), v.nan_to_num(), positions, 0.3))


def test_the_probe_passes_here_and_refusals_have_a_reason():
    assert decode.decode_backend("triton", DEVICE, torch.bfloat16, 32) == "triton"
    assert decode.decode_backend("torch", DEVICE, torch.bfloat16, 32) == "torch"
    assert decode.decode_backend("auto", torch.device("cpu"), torch.bfloat16, 32) == "torch"
    with pytest.raises(ValueError, match="'triton' cannot run on .*float64: .* take bfloat16, float16 or float32"):
        decode.decode_backend("triton", DEVICE, torch.float64, 32)
    with pytest.raises(ValueError, match="decode backend: got 'cuda', takes auto, torch, triton"):
        decode.decode_backend("cuda", DEVICE, torch.bfloat16, 32)


def test_kernels_that_compute_wrongly_are_refused(monkeypatch):
    right = decode.decode_softmax
    monkeypatch.setattr(decode, "decode_softmax", lambda *a: right(*a) * 1.1)
    assert "disagrees with the literal version: keys and values" in decode._disagreement(DEVICE, torch.float32, 16)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "dtype,D,window",
    [
        (torch.bfloat16, 128, None),
        (torch.bfloat16, 128, 1024),
        (torch.float32, 128, 1024),
        (torch.float16, 64, 1024),
        (torch.bfloat16, 80, 1024),
        (torch.bfloat16, 256, None),
        (torch.float32, 256, 1024),
        (torch.float32, 16, None),
    ],
)
def test_long_contexts_on_the_gpu(dtype, D, window):
    case = gaussian_case([3000, 8191 if window else 2999, 12], D, window, 64, H=3, dtype=dtype)
    ours = gaussian(case, window, 64)
    plain, exact = (literal(case, window, 64, kind) for kind in (dtype, torch.float64))
    if dtype == torch.float32:  # angles at these positions are off by up to 2^-12 in float32, in either version
        torch.testing.assert_close(ours.double(), exact, atol=2e-3, rtol=0)
    else:
        assert_within_budget(ours, plain, exact)
    q, k, v, positions, seen = softmax_case([3000, 12], D, D, slots=None if window is None else window + 1, dtype=dtype)
    exact = decode.literal_softmax(q.double(), k.nan_to_num().double(), v.nan_to_num().double(), seen, 0.1)
    plain = decode.literal_softmax(q, k.nan_to_num(), v.nan_to_num(), seen, 0.1)
    assert_within_budget(decode.decode_softmax(q, k, v, positions, 0.1), plain, exact)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("normed", [False, True])
def test_rotations_on_the_gpu(dtype, normed):
    assert_rotated_as_by_torch(dtype, 128, normed)


@pytest.mark.gpu
@needs_gpu
def test_a_recorded_launch_follows_the_positions(monkeypatch):
    monkeypatch.undo()
    x, u, bandwidth, positions = gaussian_case([150], 64, 100, 64, dtype=torch.bfloat16)
    u = u.nan_to_num()
    gaussian((x, u, bandwidth, positions), 100, 64)  # compiled before it is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gaussian((x, u, bandwidth, positions), 100, 64)
    for position in (3, 99, 100, 101, 777):
        positions.fill_(position)
        graph.replay()
        expected = gaussian((x, u, bandwidth, positions), 100, 64)
        assert torch.equal(y, expected)
