"""torch's attention in the layout (B, T, H, D), with heads of two sizes."""

import pytest
import torch

from nanogka.attention.softmax import sdpa


@pytest.mark.parametrize("width,values", [(12, 5), (5, 12), (8, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_of_two_sizes_give_the_float64_formula(width, values, masked):
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 7, 3, size, generator=generator) for size in (width, width, values))
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    if masked:
        seen = seen.triu(-2)  # each position and the two before it
    scores = 0.3 * torch.einsum("bthd,bshd->bhts", q.double(), k.double())
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshd->bthd", weights, v.double())
    found = sdpa(q, k, v, 0.3, mask=seen) if masked else sdpa(q, k, v, 0.3, causal=True)
    assert found.shape == (2, 7, 3, values)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)
