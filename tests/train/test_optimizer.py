"""Muon, parameter groups and schedules."""

import pytest
import torch

from nanogka.model import GPT, GPTConfig, ParameterGroup
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import (
    Muon,
    Rates,
    Schedule,
    build_optimizers,
    optimizer_state_bytes,
    orthogonalise,
    reduce_variance,
)


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 32)])
def test_orthogonalised_updates_have_singular_values_near_one(shape):
    updates = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(updates, torch.float32))
    assert values.min() > 0.7
    assert values.max() < 1.2


def test_orthogonalised_update_is_the_polar_factor():
    update = torch.randn(1, 24, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, _, vt = torch.linalg.svd(update, full_matrices=False)
    ours = orthogonalise(update, torch.float64)
    cosine = (ours * (u @ vt)).sum() / (ours.norm() * (u @ vt).norm())
    assert cosine > 0.99


def test_matrices_of_one_shape_are_updated_as_if_alone():
    generator = torch.Generator().manual_seed(3)
    together = [torch.nn.Parameter(torch.randn(8, 8, generator=generator)) for _ in range(3)]
    alone = [torch.nn.Parameter(p.detach().clone()) for p in together]
    for p, q in zip(together, alone, strict=True):
        p.grad = torch.randn(8, 8, generator=generator)
        q.grad = p.grad.clone()
    Muon(together, dtype=torch.float32).step()
    for q in alone:
        Muon([q], dtype=torch.float32).step()
    for p, q in zip(together, alone, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 4), (3, 4, 8), (3, 4, 4)])
def test_variance_reduction_evens_out_neurons_and_keeps_the_norm(shape):
    updates = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    along = -1 if shape[1] >= shape[2] else -2
    averages = torch.zeros(updates.mean(along, keepdim=True).shape)
    reduced = reduce_variance(updates, averages, 0.9)
    torch.testing.assert_close(reduced.norm(dim=(1, 2)), updates.norm(dim=(1, 2)))
    sizes = reduced.square().mean(along)  # at the first step the average is this update's own
    torch.testing.assert_close(sizes, sizes.mean(-1, keepdim=True).expand_as(sizes))
    torch.testing.assert_close(averages, 0.1 * updates.square().mean(along, keepdim=True))


@pytest.mark.parametrize("attention", ["gaussian", "dot_product", "GD"])
def test_every_parameter_is_in_exactly_one_optimiser_group(attention):
    config = GPTConfig.from_depth(2, attention, vocab_size=300, sequence_len=16)
    model = GPT(config)
    optimizers = build_optimizers(model, Rates(), plan_horizon(config, num_iterations=10, total_batch_size=64))
    held = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


def test_rates_scale_with_width_and_batch_and_bandwidth_never_decays():
    config = GPTConfig.from_depth(2, vocab_size=300, sequence_len=16)
    horizon = plan_horizon(config, num_iterations=10, total_batch_size=2**17)
    adam, muon = build_optimizers(GPT(config), Rates(), horizon)
    rate = {group["name"]: group["lr"] for group in adam.param_groups}
    width = (128 / 768) ** -0.5
    assert rate["embedding"] == pytest.approx(0.3 * width / 2)
    assert rate["lm_head"] == pytest.approx(0.004 * width / 2)
    assert rate["x0_lambdas"] == pytest.approx(0.5 / 2)
    assert rate["resid_lambdas"] == pytest.approx(0.005 / 2)
    assert muon.param_groups[0]["lr"] == pytest.approx(0.02 / 2)
    assert {group["name"]: group["weight_decay"] for group in adam.param_groups}["bandwidth"] == 0
    assert build_optimizers(GPT(config), Rates(scale=1.0), horizon)[1].param_groups[0]["lr"] == pytest.approx(0.02)


def test_schedule_is_flat_then_linear_to_the_final_fraction():
    schedule = Schedule(num_iterations=100, warmup_ratio=0.1, warmdown_ratio=0.5, final_fraction=0.2)
    assert [schedule.lr_scale(step) for step in (0, 4, 9, 10, 49, 50)] == pytest.approx([0.1, 0.5, 1, 1, 1, 1])
    assert schedule.lr_scale(75) == pytest.approx(0.2 + 0.8 * 0.5)
    assert schedule.lr_scale(100) == pytest.approx(0.2)
    assert Schedule(100).lr_scale(99) == pytest.approx(1 / 50)
    assert Schedule(100).weight_decay_scale(25) == pytest.approx(0.75)
    assert [Schedule(1000).momentum(step) for step in (0, 150, 300, 900)] == pytest.approx([0.85, 0.9, 0.95, 0.95])


def test_muon_learns_a_linear_map():
    generator = torch.Generator().manual_seed(4)
    wanted, x = torch.randn(8, 8, generator=generator), torch.randn(256, 8, generator=generator)
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    muon = Muon([weight], lr=0.1, dtype=torch.float32)
    for step in range(200):
        loss = (x @ weight.T - x @ wanted.T).square().mean()
        muon.zero_grad()
        loss.backward()
        muon.param_groups[0]["lr"] = 0.1 * (1 - step / 200)
        muon.step()
    assert loss < 1e-2


class Described(torch.nn.Module):
    """A model that is nothing but its parameter groups."""

    def __init__(self, groups):
        super().__init__()
        self.config, self.device, self.groups = GPTConfig(n_embd=192, n_head=1), torch.device("cpu"), {}
        for group, shape in groups:
            self.register_parameter(group.name, torch.nn.Parameter(torch.ones(shape)))
            self.groups[group] = {group.name: getattr(self, group.name)}

    def parameter_groups(self):
        return self.groups


def test_a_new_parameter_is_updated_as_its_group_says():
    vector = ParameterGroup("gate", rate="scalar", factor=0.1, betas=(0.9, 0.99))
    table = ParameterGroup("table", rate="embedding", scales_with_width=True)
    matrix = ParameterGroup("matrix", optimizer="muon", rate="matrix", factor=0.5)
    horizon = plan_horizon(GPTConfig.from_depth(1), num_iterations=10, total_batch_size=2**19)
    model = Described([(vector, (3,)), (table, (4, 5)), (matrix, (4, 4))])
    adamw, muon = build_optimizers(model, Rates(), horizon)
    first, second = adamw.param_groups
    assert (first["lr"], first["betas"]) == (pytest.approx(0.05), (0.9, 0.99))
    assert second["lr"] == pytest.approx(0.6)  # 192 is a quarter of 768
    assert [group["lr"] for group in muon.param_groups] == [pytest.approx(0.01)]
    with pytest.raises(ValueError, match=r"shape \(3,\) for Muon, takes matrices"):
        build_optimizers(Described([(vector, (3,)), (matrix, (3,))]), Rates(), horizon)


def test_the_expected_optimiser_state_is_what_a_step_makes():
    config = GPTConfig.from_depth(2, "dot_product", vocab_size=300, sequence_len=16)
    model = GPT(config)
    optimizers = build_optimizers(model, Rates(), plan_horizon(config, num_iterations=9, total_batch_size=64))
    model(torch.zeros(1, 16, dtype=torch.int64), torch.zeros(1, 16, dtype=torch.int64)).backward()
    for optimizer in optimizers:
        optimizer.step()
    held = [v for o in optimizers for state in o.state.values() for name, v in state.items() if name != "step"]
    assert optimizer_state_bytes(model) == sum(v.numel() * v.element_size() for v in held)
