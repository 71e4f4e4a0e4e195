"""Muon, parameter groups and schedules."""

import pytest
import torch

from nanogka.model import GPT, GPTConfig, ParameterGroup
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import (
    Rates,
    Schedule,
    build_optimizers,
    optimizer_state_bytes,
    orthogonalise,
)


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 32)])
def test_orthogonalised_updates_have_singular_values_near_one(shape):
    updates = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(updates, torch.float32))
    assert values.min() > 0.7
    assert values.max() < 1.2


def test_schedule_is_flat_then_linear_to_the_final_fraction():
    schedule = Schedule(num_iterations=100, warmup_ratio=0.1, warmdown_ratio=0.5, final_fraction=0.2)
    assert [schedule.lr_scale(step) for step in (0, 4, 9, 10, 49, 50)] == pytest.approx([0.1, 0.5, 1, 1, 1, 1])
    assert schedule.lr_scale(75) == pytest.approx(0.2 + 0.8 * 0.5)
    assert schedule.lr_scale(100) == pytest.approx(0.2)
    assert Schedule(100).lr_scale(99) == pytest.approx(1 / 50)
    assert Schedule(100).weight_decay_scale(25) == pytest.approx(0.75)
    assert [Schedule(1000).momentum(step) for step in (0, 150, 300, 900)] == pytest.approx([0.85, 0.9, 0.95, 0.95])


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
    assert build_optimizers(model, Rates(scale=3.0), horizon)[1].param_groups[0]["lr"] == pytest.approx(0.03)
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
