"""The Gaussian mixture mixer: its mathematics, its costs, what is observed of it."""

import pytest
import torch
import torch.nn.functional as F
from generate_models import small_model
from operators import literal_mixture
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from nanogka.model import model_costs
from nanogka.model.mixers.mixture import ROUTINGS


def model_of(routing="projected", pattern="M", **changes):
    options = {"sequence_len": 48, "mixture_components": 7, "mixture_routing": routing} | changes
    return small_model(pattern, **options)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_layer_is_its_formula(routing):
    model = model_of(routing, dtype=torch.float64)
    mixer, P = model.blocks[0].mixer, dict(model.blocks[0].mixer.named_parameters())
    x = torch.randn(2, 20, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def normed(s):
        return s / (s.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()

    if routing == "projected":
        q, k = (normed(F.linear(x, P[f"c_{n}.weight"]).view(2, 20, 2, 16)) for n in "qk")
        v = F.linear(x, P["c_v.weight"]).view(2, 20, 2, 32)
    else:
        v = x.view(2, 20, 2, 32)
        q = k = normed(v)
    if routing == "successor":
        k = torch.cat([torch.zeros_like(k[:, :1]), k[:, :-1]], 1)
    expected = F.linear(literal_mixture(q, k, v, mixer.components).flatten(2), P["c_proj.weight"])
    torch.testing.assert_close(mixer(x, None), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("components", [7, 80])
def test_flops_are_those_that_torch_counts(routing, components):
    model = model_of(routing, sequence_len=320, mixture_components=components)  # whole chunks of 64, and of 80
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 320, dtype=torch.int64))
    assert model_costs(model.config).flops_per_token * 320 == 3 * counter.get_total_flops()


def test_use_of_the_components_is_observed():
    model = model_of("features", "GM", n_layer=2, mixture_components=8)
    mixer = model.blocks[1].mixer
    with torch.no_grad():
        mixer.means.zero_()
        mixer.log_precisions.zero_()
        mixer.log_weights.zero_()
        mixer.log_weights[0, 0] = -1.0  # seldom used, but alive
        mixer.log_weights[1, 6:] = -50.0  # never
    model(torch.arange(96).view(2, 48))
    found = model.observations()
    assert list(found["bandwidth"]) == [0]
    expected = torch.distributions.Categorical(logits=mixer.log_weights.detach()).entropy()
    torch.testing.assert_close(found["component_entropy"][1], expected, rtol=0, atol=1e-4)
    assert found["dead_components"][1].tolist() == [0, 2]
    mixer.component_use[1] = torch.tensor([0.5, 0.4, 0.09, 0.0024, 0.00126, 0.00124, 0.0, 0.0])
    assert model.observations()["dead_components"][1].tolist() == [0, 3]  # of eight: below 0.00125


class NoFloat64(TorchFunctionMode):
    """Refuses what Apple's GPUs refuse: tensors in float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            raise TypeError(f"{function}: this device has no float64")
        return result


def test_training_needs_no_float64():
    model = model_of(pattern="M")
    ids = torch.arange(96).view(2, 48)
    with NoFloat64():
        model(ids, ids).backward()
        found = model.observations()
    assert {values.dtype for layer in found["component_entropy"].values() for values in [layer]} == {torch.float32}
