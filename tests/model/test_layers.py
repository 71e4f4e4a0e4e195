"""The linear map: the same product however many rows there are."""

import pytest
import torch

from nanogka.dispatch import FEW_ROWS
from nanogka.model.layers import Linear


@pytest.mark.parametrize("shape", [(1,), (3, 7), (FEW_ROWS,), (FEW_ROWS + 1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_and_many_give_the_product(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    linear = Linear(24, 40)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(40, 24, generator=generator))
        x = torch.randn(*shape, 48, generator=generator).to(dtype)[..., ::2]
        y = linear(x)
    exact = torch.einsum("...i,oi->...o", x.double(), linear.weight.to(dtype).double())
    assert y.shape == (*shape, 40)
    torch.testing.assert_close(y.double(), exact, atol=1e-5 if dtype == torch.float32 else 0.1, rtol=0)
    with_gradient = linear(x)
    torch.testing.assert_close(y, with_gradient.detach(), atol=1e-5 if dtype == torch.float32 else 0.1, rtol=0)
    assert with_gradient.requires_grad
