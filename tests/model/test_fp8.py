"""Products in 8 bits: values, gradients, which layers, and that evaluation, weights and the graph stay what they were.

torch's CPU kernel of these products computes 12 million multiply-adds per second, so the shapes are small.
"""

from dataclasses import replace

import pytest
import torch

from nanogka.common.distributed import Ranks
from nanogka.common.runtime import Hardware
from nanogka.model import GPT, GPTConfig, fp8
from nanogka.train.plan import Machine
from nanogka.train.run import check_fp8

CONFIG = GPTConfig.from_depth(2, "successor", vocab_size=97, sequence_len=4)  # width 128, the smallest that fits


def model_in(fp8_on, dtype=torch.float32):
    model = GPT(CONFIG, compute_dtype=dtype)
    with torch.no_grad():  # else the blocks add nothing at the start
        for name, p in model.named_parameters():
            if name.endswith("c_proj.weight"):
                p.normal_(0, 0.02, generator=torch.Generator().manual_seed(1))
    if fp8_on:
        model.use_fp8()
    return model


@pytest.mark.parametrize("dtype, bits", [(fp8.E4M3, 4), (fp8.E5M2, 3)])
def test_the_largest_element_is_exact_and_others_are_rounded(dtype, bits):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    rounded, scale = fp8.quantize(x, dtype)
    back = rounded.float() * scale
    assert back.abs().max() == pytest.approx(x.abs().max().item(), rel=1e-6)
    normal = x.abs() > x.abs().max() * 1e-2
    assert ((back - x).abs() <= x.abs() * 2.0**-bits * 1.001)[normal].all()
    assert fp8.quantize(torch.zeros(4), dtype)[0].float().tolist() == [0.0] * 4


def test_a_product_is_that_of_the_rounded_operands_and_gradients_are_near():
    generator = torch.Generator().manual_seed(0)
    x, w, dy = (torch.randn(n, m, generator=generator) for n, m in ((16, 32), (48, 32), (16, 48)))
    leaves = [t.clone().requires_grad_() for t in (x.bfloat16(), w)]
    y = fp8.FP8Product.apply(*leaves)
    (x8, a), (w8, b) = fp8.quantize(x.bfloat16(), fp8.E4M3), fp8.quantize(w, fp8.E4M3)
    torch.testing.assert_close(y, ((x8.double() * a) @ (w8.double() * b).T).bfloat16(), rtol=0.01, atol=0.01)
    y.backward(dy.bfloat16())
    assert leaves[1].grad.dtype == torch.float32
    for leaf, exact in zip(leaves, (dy @ w, dy.T @ x)):
        assert 0.02 < (leaf.grad - exact).norm() / exact.norm() < 0.08


def test_squared_relu_follows_from_its_8_bit_values():
    generator = torch.Generator().manual_seed(0)
    x, w, dy = (torch.randn(n, m, generator=generator) for n, m in ((16, 32), (48, 32), (16, 48)))
    leaves = [t.clone().requires_grad_() for t in (x, w)]
    y = fp8.FP8SquaredReLUProduct.apply(*leaves)
    (r8, a), (w8, b) = fp8.quantize(x.relu().square(), fp8.E4M3), fp8.quantize(w, fp8.E4M3)
    torch.testing.assert_close(y.double(), (r8.double() * a) @ (w8.double() * b).T, rtol=0.01, atol=0.01)
    kept = [t.dtype for t in y.grad_fn.saved_tensors if t.numel() == x.numel()]
    assert kept == [fp8.E4M3], "one copy, of one byte an element"
    y.backward(dy)
    exact = (2 * x.relu() * (dy @ w), dy.T @ x.relu().square())
    for leaf, gradient in zip(leaves, exact):
        assert 0.02 < (leaf.grad - gradient).norm() / gradient.norm() < 0.1
    assert (leaves[0].grad[x < 0] == 0).all()


@pytest.mark.parametrize("row_len, device, words", [
    (24, "cpu", "rows of 24 tokens"),
    (32, "meta", "products in 8 bits do not work here"),
    (32, "cuda", "without torch.compile"),
])  # fmt: skip
def test_training_refuses_what_cannot_or_should_not_be_in_8_bits(row_len, device, words, monkeypatch):
    machine = Machine(Ranks(), torch.device("cpu"), torch.bfloat16, Hardware("a CPU"), False, "", fp8=True)
    check_fp8(machine, 32)
    if device == "cuda":
        monkeypatch.setattr(fp8, "product_fault", lambda device: None)
        check_fp8(replace(machine, device=torch.device(device)), 32, dry_run=True)
    with pytest.raises(ValueError, match="^fp8: got True, .*" + words):
        check_fp8(replace(machine, device=torch.device(device)), row_len)


def test_a_nan_stays_one():
    x = torch.ones(16, 32).index_fill(0, torch.tensor(3), torch.nan)
    assert fp8.FP8Product.apply(x, torch.ones(48, 32)).isnan().any()


def test_matrices_of_the_blocks_are_chosen_and_nothing_else():
    with torch.device("meta"):
        model = GPT(GPTConfig.from_depth(4, "dot_product", vocab_size=512))
    names = {layer: name for name, layer in model.named_modules()}
    ends = {".".join(names[layer].split(".")[-2:]) for layer in model.fp8_layers()}
    assert ends == {f"mixer.c_{x}" for x in ("q", "k", "v", "proj")} | {"mlp.c_fc", "mlp.c_proj"}


def test_training_changes_a_little_and_evaluation_not_at_all():
    ids = torch.arange(8).reshape(2, 4)
    plain, ours = model_in(False), model_in(True)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(ours(ids), plain(ids))
    losses = [model(ids, ids) for model in (plain, ours)]
    assert 0 < abs(losses[0] - losses[1]) < 0.02
    gradients = [
        torch.autograd.grad(loss, model.fp8_layers()[0].weight)[0] for loss, model in zip(losses, (plain, ours))
    ]
    assert (gradients[1] - gradients[0]).norm() < 0.15 * gradients[0].norm()


@pytest.mark.slow  # traces a network
def test_the_step_is_one_graph():
    ids = torch.arange(8).reshape(2, 4)
    model = model_in(True, torch.bfloat16)
    torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)(ids, ids).backward()
    assert model.fp8_layers()[0].weight.grad.isfinite().all()
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "shape, fits", [((128, 128), True), ((144, 4096), True), ((112, 1024), False), ((1024, 112), False)]
    + [((136, 1024), False), ((1024, 130), False)]
)  # fmt: skip
def test_matrices_in_8_bits_have_sides_of_at_least_128_in_steps_of_16(shape, fits):
    assert fp8.fits(torch.empty(shape, device="meta")) is fits
