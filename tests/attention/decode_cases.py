"""Cases for the decode kernels of every back-end, and what is asked of each: Triton on the GPU where there is one, else
interpreted, and C++ on the CPU."""

from dataclasses import dataclass

import torch

from nanogka.attention import decode
from nanogka.model.layers import norm, rotate

GPU = torch.cuda.is_available()


@dataclass(frozen=True)
class Kernels:
    backend: str
    device: torch.device

    def dtype(self, dtype):
        """The one that stands for `dtype` where it is not taken."""
        return torch.bfloat16 if (self.backend, dtype) == ("cpp", torch.float16) else dtype


TRITON = Kernels("triton", torch.device("cuda" if GPU else "cpu"))
CPP = Kernels("cpp", torch.device("cpu"))


def draw(kernels, *shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(kernels.device, kernels.dtype(dtype))


def frequencies(D, device="cpu"):
    return torch.exp(-torch.arange(0, D, 2, device=device) / D * 9.2)


def gaussian_case(kernels, positions, D, window, block, *, H=2, slots=None, dtype=torch.float32, sigma=None):
    """(x, u, σ, positions) with NaN in the slots that are not filled."""
    device, rows = kernels.device, len(positions)
    positions = torch.tensor(positions, device=device)
    slots = slots or int(min(positions.max(), positions.max() if window is None else window)) + 1
    x, u = draw(kernels, rows, H, D, dtype=dtype), draw(kernels, rows, slots, H, D, seed=1, dtype=dtype)
    u[torch.arange(slots, device=device) > positions[:, None]] = torch.nan
    bandwidth = torch.linspace(1.5, 4, H, device=device) if sigma is None else torch.full((H,), sigma, device=device)
    return x, u, bandwidth, positions


def gaussian(kernels, case, window, block):
    x, u, bandwidth, positions = case
    tables = decode.phase_tables(
        positions,
        frequencies(x.shape[-1], x.device),
        u.shape[1],
        window,
        block,
        backend=kernels.backend,
    )
    ring = 0 if window is None else window + 1
    return decode.decode_gaussian(x, u, bandwidth, positions, tables, ring, backend=kernels.backend)


def softmax(kernels, q, k, v, positions, scale=0.3):
    return decode.decode_softmax(q, k, v, positions, scale, backend=kernels.backend)


def literal(case, window, block, dtype):
    x, u, bandwidth, positions = case
    u = u.nan_to_num()
    return decode.literal_gaussian(
        x.to(dtype), u.to(dtype), bandwidth, positions, frequencies(x.shape[-1], x.device), window, block
    )


def assert_within_budget(ours, plain, exact):
    assert ours.dtype == plain.dtype
    assert torch.isfinite(ours).all()
    error, allowed = (ours.double() - exact).norm(), 2 * (plain.double() - exact).norm()
    allowed += torch.finfo(ours.dtype).eps * exact.norm()
    assert error <= allowed, f"{error:.2e}, allowed {allowed:.2e}"


def assert_accurate(kernels, case, window, atol):
    """Within the budget; in float32 to `atol`, as angles at far positions are off by up to 2^-12 in either version."""
    ours, dtype = gaussian(kernels, case, window, 64), case[0].dtype
    plain, exact = (literal(case, window, 64, kind) for kind in (dtype, torch.float64))
    if dtype == torch.float32:
        torch.testing.assert_close(ours.double(), exact, atol=atol, rtol=0)
    else:
        assert_within_budget(ours, plain, exact)


def softmax_case(kernels, positions, D, DV, *, H=2, slots=None, dtype=torch.float32):
    rows, positions = len(positions), torch.tensor(positions, device=kernels.device)
    slots = slots or int(positions.max()) + 1
    q, k = draw(kernels, rows, H, D, dtype=dtype), draw(kernels, rows, slots, H, D, seed=1, dtype=dtype)
    v = draw(kernels, rows, slots, H, DV, seed=2, dtype=dtype)
    seen = torch.arange(slots, device=kernels.device) <= positions[:, None]
    k[~seen], v[~seen] = torch.nan, torch.nan
    return q, k, v, positions, seen


def assert_rotated_as_by_torch(kernels, dtype, D, normed):
    dtype = kernels.dtype(dtype)
    x = draw(kernels, 2, 3, 2 * D, dtype=dtype)[..., :D]
    for positions in ([5, 900], [31]):
        tables = (torch.tensor(positions, device=kernels.device)[:, None] * frequencies(D, kernels.device))[:, None]
        y = rotate(x[:, None], (tables.cos()[:, None], tables.sin()[:, None]))[:, 0]
        expected = (norm(y) if normed else y).to(dtype)
        ours = decode.rotate_heads(x, tables.cos()[:, 0], tables.sin()[:, 0], backend=kernels.backend, normed=normed)
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
