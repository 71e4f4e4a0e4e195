"""The C++ kernels: right whatever sizes, strides, positions and threads are.

The float64 formulas are those by which the kernels probe themselves; tests/model/test_kv_cache.py compares both with
the network itself.
"""

import pytest
import torch

from nanogka.kernels import cpu

DTYPES = (torch.float32, torch.bfloat16)
EPS = 1e-6


@pytest.fixture(scope="module", autouse=True)
def built():
    reason = cpu.unsupported_reason()
    if reason and "no C++ compiler" in reason:
        pytest.skip(reason)
    assert reason is None


@pytest.fixture(autouse=True)
def poisoned(poisoned_outputs):
    with torch.no_grad():
        yield


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def frequencies(D):
    return torch.exp(-torch.arange(0, D, 2) / D * 9.2)


def positions_held(position, slots, ring):
    """Slot → the position it holds, for the filled slots."""
    if not ring:
        return {slot: slot for slot in range(min(position + 1, slots))}
    return {p % ring: p for p in range(max(0, position - ring + 1), position + 1)}


def features_case(
    positions, D, ring=0, *, H=2, slots=None, dtype=torch.float32, sigma=None, successor=False, affine=False,
    embedded=False,
):  # fmt: skip
    """Arguments of `decode_features`, with NaN in the slots that are not filled."""
    slots = slots or min(max(positions) + 1, ring or max(positions) + 1)
    cached = torch.full((len(positions), slots, H, D), torch.nan, dtype=dtype)
    x = torch.empty(len(positions), H, D, dtype=dtype)
    for b, position in enumerate(positions):
        held = positions_held(position, slots, ring)
        cached[b, list(held)] = draw(len(held), H, D, seed=b, dtype=dtype)
        x[b] = cached[b, position % ring if ring else position]
    bandwidth = torch.linspace(1.5, 4, H) if sigma is None else torch.full((H,), sigma)
    more = None
    if embedded:
        ids = torch.arange(len(positions) * slots, dtype=torch.int32).view(len(positions), slots) % 7
        more = draw(7, H * D, seed=98, dtype=dtype), ids, draw(len(positions), slots, H, seed=99)
    key_affine = (draw(H, D, seed=96), draw(H, D, seed=97)) if affine else None
    return x, cached, bandwidth, torch.tensor(positions), frequencies(D), ring, EPS, successor, key_affine, more


def assert_accurate(ours, exact, dtype):
    assert ours.dtype == dtype
    assert (ours - exact).norm() <= max(4 * torch.finfo(dtype).eps, 1e-5) * exact.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "positions,D,ring,options",
    [
        ([0], 2, 0, {}),
        ([112, 5], 128, 0, {"H": 1, "slots": 300}),
        ([0, 16, 17, 18], 16, 17, {}),
        ([1000, 113, 64, 63], 128, 65, {}),
        ([100_000], 24, 600, {"H": 3}),
        ([20], 16, 65, {"slots": 21}),  # a ring that the sequence will not fill
        ([300], 32, 0, {"sigma": 0.05}),
        ([300], 32, 0, {"sigma": 1e4}),
        ([0, 1, 62], 16, 0, {"successor": True}),
        ([700], 128, 0, {"successor": True}),
        ([0, 15, 16, 17, 18, 40], 16, 17, {"successor": True}),
        ([1000, 113, 65, 64], 128, 66, {"successor": True}),
        ([0, 70, 300], 128, 0, {"successor": True, "embedded": True, "H": 3}),
        ([64, 5], 16, 17, {"embedded": True}),
        ([300, 64], 128, 0, {"affine": True, "H": 3}),
        ([300, 64, 17], 16, 18, {"affine": True, "successor": True, "embedded": True}),
    ],
)
def test_features_against_float64(dtype, positions, D, ring, options):
    case = features_case(positions, D, ring, dtype=dtype, **options)
    assert_accurate(cpu.decode_features(*case), cpu._literal_features(*case), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("positions,D,DV", [([0], 8, 8), ([62, 63, 64], 48, 128), ([700, 1, 256], 128, 40)])
def test_softmax_against_float64(dtype, positions, D, DV):
    positions = torch.tensor(positions)
    B, S = len(positions), int(positions.max()) + 1
    q, k, v = draw(B, 2, D, dtype=dtype), draw(B, S, 2, D, seed=1, dtype=dtype), draw(B, S, 2, DV, seed=2, dtype=dtype)
    hidden = torch.arange(S) > positions[:, None]
    k[hidden], v[hidden] = torch.nan, torch.nan
    exact = cpu._literal_softmax(q, k, v, 0.3, ~hidden)
    assert_accurate(cpu.decode_softmax(q, k, v, positions, 0.3), exact, dtype)


@pytest.mark.parametrize("features,outputs", [(1, 1), (70, 65), (384, 513)])
def test_linear_against_float64_and_rounded_once_to_nearest_even(features, outputs):
    for rows in (1, 2, cpu.MAX_ROWS):
        x, weight = draw(rows, features, dtype=torch.bfloat16), draw(outputs, features, seed=1, dtype=torch.bfloat16)
        exact = x.double() @ weight.double().T
        assert (cpu.linear(x, weight) - exact).norm() <= torch.finfo(torch.bfloat16).eps * exact.norm()
        integers = (8 * x).round().clamp(-15, 15), (8 * weight).round().clamp(-15, 15)  # whose sums are exact
        exact = integers[0].float() @ integers[1].float().T
        assert torch.equal(cpu.linear(*integers), exact.bfloat16())


def test_any_strides_and_leading_dimensions():
    x, cached, *rest = features_case([40, 7], 16, 0, H=3)
    expected = cpu.decode_features(x, cached, *rest)
    heads_first = cached.transpose(1, 2).contiguous().transpose(1, 2)
    roomy = torch.cat([cached, torch.full_like(cached, torch.nan)], 1)[:, :60]
    apart = cached.repeat_interleave(2, -1)[..., ::2]
    for other in (heads_first, roomy, apart):
        assert torch.equal(cpu.decode_features(x.clone(), other, *rest), expected)
    x, weight = draw(3, 1, 48, dtype=torch.bfloat16)[..., ::2], draw(40, 24, dtype=torch.bfloat16)
    assert torch.equal(cpu.linear(x, weight), cpu.linear(x.reshape(3, 24), weight).view(3, 1, 40))


def test_threads_and_other_rows_change_no_bit():
    case = features_case([1000, 3, 700], 128, 513)
    q, k, v = draw(3, 2, 48), draw(3, 1001, 2, 48, seed=1), draw(3, 1001, 2, 48, seed=2)
    x, weight = draw(5, 200, dtype=torch.bfloat16), draw(301, 200, dtype=torch.bfloat16)
    threads = torch.get_num_threads()

    def answers(number):
        torch.set_num_threads(number)
        return cpu.decode_features(*case), cpu.decode_softmax(q, k, v, case[3], 0.3), cpu.linear(x, weight)

    try:
        one, two = answers(1), answers(2)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(one, two))
    features, cached, bandwidth, positions, *rest = case
    alone = cpu.decode_features(features[1:2], cached[1:2], bandwidth, positions[1:2], *rest)
    assert torch.equal(alone, one[0][1:2])


def test_a_row_of_padding_has_no_slots_and_yields_zeros():
    x, cached, bandwidth, positions, *rest = features_case([5, 5], 16)
    positions[1] = -1
    y = cpu.decode_features(x, cached, bandwidth, positions, *rest)
    assert torch.isfinite(y[0]).all()
    assert (y[1] == 0).all()


def test_what_does_not_fit_is_refused():
    x, cached, bandwidth, positions, *rest = features_case([5, 5], 16)
    for wrong in ((x.double(), cached), (x, cached[:, :, :1]), (x.to("meta"), cached)):
        with pytest.raises(ValueError, match="got .*"):
            cpu.decode_features(*wrong, bandwidth, positions, *rest)
    with pytest.raises(ValueError, match="positions: got .*expected"):
        cpu.decode_features(x, cached, bandwidth, positions.int(), *rest)
    *case, (table, ids, gates) = features_case([5, 5], 16, embedded=True)
    with pytest.raises(ValueError, match="ids: got .*expected"):
        cpu.decode_features(*case, (table, ids.long(), gates))
    with pytest.raises(ValueError, match="v: got .*expected"):
        cpu.decode_softmax(x, cached, cached[:1], positions, 0.3)
    with pytest.raises(ValueError, match="linear: got .*expected"):
        cpu.linear(draw(3, 20, dtype=torch.bfloat16), draw(20, 9, dtype=torch.bfloat16))


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch):
    monkeypatch.setattr(cpu, "decode_softmax", lambda q, k, v, positions, scale: 2 * q)
    reason = cpu.unsupported_reason.__wrapped__()
    assert reason.startswith("decode_softmax, D = 12 in torch.float32 disagrees with float64")
