"""What only the Triton decode kernels promise: how they share out their work, and the GPU. See also test_decode.py."""

import pytest
import torch

pytest.importorskip("triton")

from decode_cases import (
    TRITON,
    assert_accurate,
    assert_rotated_as_by_torch,
    assert_within_budget,
    gaussian,
    gaussian_case,
    softmax,
    softmax_case,
)

from nanogka.attention import decode, triton_decode

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
kernels = TRITON
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("splits", [1, 12])
def test_the_number_of_splits_changes_only_rounding(splits, monkeypatch):
    case = gaussian_case(kernels, [50, 3], 16, 40, 8, H=1)
    q, k, v, positions, _ = softmax_case(kernels, [150, 3], 16, 16, H=1)
    monkeypatch.setattr(triton_decode, "split_count", lambda *_: 3)
    expected = gaussian(kernels, case, 40, 8), softmax(kernels, q, k, v, positions)
    monkeypatch.setattr(triton_decode, "split_count", lambda *_: splits)
    ours = gaussian(kernels, case, 40, 8), softmax(kernels, q, k, v, positions)
    for a, e in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, e, atol=2e-6, rtol=0)


def test_the_number_of_splits_fills_the_chip_but_leaves_work_for_each():
    assert triton_decode.split_count(10, 128, 132) == 27
    assert triton_decode.split_count(10, 17, 132) == 9
    assert triton_decode.split_count(640, 128, 132) == 1
    assert triton_decode.split_count(1, 1, 132) == 1


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
    case = gaussian_case(kernels, [3000, 8191 if window else 2999, 12], D, window, 64, H=3, dtype=dtype)
    assert_accurate(kernels, case, window, atol=2e-3)
    slots = None if window is None else window + 1
    q, k, v, positions, seen = softmax_case(kernels, [3000, 12], D, D, slots=slots, dtype=dtype)
    exact = decode.literal_softmax(q.double(), k.nan_to_num().double(), v.nan_to_num().double(), seen, 0.1)
    plain = decode.literal_softmax(q, k.nan_to_num(), v.nan_to_num(), seen, 0.1)
    assert_within_budget(softmax(kernels, q, k, v, positions, 0.1), plain, exact)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("normed", [False, True])
def test_rotations_on_the_gpu(dtype, normed):
    assert_rotated_as_by_torch(kernels, dtype, 128, normed)


@pytest.mark.gpu
@needs_gpu
def test_a_recorded_launch_follows_the_positions(monkeypatch):
    monkeypatch.undo()
    x, u, bandwidth, positions = gaussian_case(kernels, [150], 64, 100, 64, dtype=torch.bfloat16)
    u = u.nan_to_num()
    gaussian(kernels, (x, u, bandwidth, positions), 100, 64)  # compiled before it is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gaussian(kernels, (x, u, bandwidth, positions), 100, 64)
    for position in (3, 99, 100, 101, 777):
        positions.fill_(position)
        graph.replay()
        expected = gaussian(kernels, (x, u, bandwidth, positions), 100, 64)
        assert torch.equal(y, expected)
