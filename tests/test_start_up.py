"""What a start computes again: torch's compiler finds the graphs of earlier starts in its caches."""

import os

import pytest
import torch
import torch._functorch.config as functorch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

import scripts  # noqa: F401 (sets the variable)
from nanogka.model.gpt import SquaredReLU

VARIABLE = "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD"


class Doubled(SquaredReLU):
    """The same forward pass with another backward pass."""

    @staticmethod
    def backward(ctx, *gradients):
        (y,) = ctx.saved_tensors
        return 4 * y.sqrt() * gradients[0]


def start(function):
    """Compile and run a step as a new process does; what the cache did, and the gradient."""
    torch._dynamo.reset()
    counters.clear()
    x = torch.arange(-2.0, 4.0, requires_grad=True)
    torch.compile(lambda x: function.apply(x).sum())(x).backward()
    kinds = ("autograd_cache_bypass", "autograd_cache_miss", "autograd_cache_hit")
    return [counters["aot_autograd"][kind] for kind in kinds], x.grad.tolist()


@pytest.mark.slow  # three compilations
def test_a_start_finds_the_traced_graph_of_the_last_one_unless_the_backward_pass_has_changed():
    assert os.environ[VARIABLE] == "1"
    with fresh_cache(), functorch.patch(autograd_cache_allow_custom_autograd_functions=True):
        gradient = [0.0, 0.0, 0.0, 2.0, 4.0, 6.0]
        assert start(SquaredReLU) == ([0, 1, 0], gradient)
        assert start(SquaredReLU) == ([0, 0, 1], gradient)
        assert start(Doubled) == ([0, 1, 0], [2 * g for g in gradient])
    torch._dynamo.reset()
