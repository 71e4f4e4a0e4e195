"""The accounting against the paper's Table 8 (every digit) and against models that are really built."""

import pytest
import torch

from nanogka.model import GPT, GPTConfig, activation_bytes, model_costs
from nanogka.model.layers import Linear, ShortConvolution
from nanogka.model.measure import MeasuredMixer, check_flops, measure_mixers
from nanogka.model.mixers.gaussian import GaussianMixer

COMMON = {"embedding": 41_943_040, "lm_head": 41_943_040, "resid_lambdas": 20, "x0_lambdas": 20}
GAUSSIAN = COMMON | {"matrix": 294_912_000, "bandwidth": 200}
DOT_PRODUCT = COMMON | {"value_embedding": 419_430_400, "matrix": 393_219_200}
JULY = DOT_PRODUCT | {"matrix": 393_217_200, "smear_gate": 24, "smear_lambda": 1, "backout_lambda": 1}


@pytest.mark.parametrize(
    "attention, network, groups, total, flops",
    [
        ("gaussian", "february", GAUSSIAN, 378_798_320, 2_414_346_240),
        ("dot_product", "february", DOT_PRODUCT, 896_535_720, 3_004_189_440),
        ("dot_product", "july", JULY, 896_533_746, 2_886_212_784),
    ],
)
def test_depth_20_costs_what_the_paper_and_nanochats_code_say_in_every_digit(attention, network, groups, total, flops):
    accounting = model_costs(GPTConfig.from_depth(20, attention, network=network))
    assert accounting.parameters == groups
    assert accounting.total_parameters == total
    assert accounting.flops_per_token == flops
    assert accounting.scaling_parameters == groups["matrix"] + groups["lm_head"]


CASES = [("gaussian", {}), ("successor", {}), ("GDV", {})]
CASES += [("GDV", {"short_conv": 3, "value_embeddings": True, "smear": True}), ("SDV", {"network": "july"})]


@pytest.mark.parametrize("attention, options", CASES)
def test_counts_equal_those_of_a_model_that_is_built(attention, options):
    config = GPTConfig.from_depth(3, attention, vocab_size=50, sequence_len=16, **options)
    accounting, model = model_costs(config), GPT(config)
    assert accounting.total_parameters == sum(p.numel() for p in model.parameters())
    names = [name for group in model.parameter_groups().values() for name in group]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters()), "every parameter in one group"
    matrices = [module.weight.numel() for module in model.blocks.modules() if isinstance(module, Linear)]
    assert accounting.parameters["matrix"] == sum(matrices)
    convolutions = [c.weight.numel() for c in model.modules() if isinstance(c, ShortConvolution)]
    july = config.network == "july"  # windows longer than the context, and the smear's gate
    attended = sum(12 * config.n_embd * seen for seen in ((16, 16, 16) if july else (8, 8, 16))) + 6 * 24 * july
    assert accounting.flops_per_token == 6 * (sum(matrices) + 50 * config.n_embd + sum(convolutions)) + attended


def test_a_layer_caches_its_window_and_the_token_itself():
    config = GPTConfig.from_depth(4, vocab_size=100, sequence_len=64)  # windows 32, 32, 32, all
    accounting = model_costs(config)
    assert accounting.cache_bytes(10) == 10 * accounting.cache_bytes_per_token
    for context in (33, 64, 1000):
        assert accounting.cache_bytes(context) == (3 * 33 + context) * config.n_embd * 2 * 2
    baseline = model_costs(GPTConfig.from_depth(4, "dot_product"))
    assert baseline.cache_bytes_per_token == accounting.cache_bytes_per_token


@pytest.mark.parametrize("letter,tensors", [("G", 12.2), ("S", 15.2), ("D", 15.8), ("V", 14.3), ("M", 11.5)])
def test_a_layer_keeps_the_counted_tensors_for_the_backward_pass(letter, tensors):
    """The counts decide the micro-batch; tests/kernels/test_plan.py traces them."""
    config = GPTConfig.from_depth(3, letter, vocab_size=50, sequence_len=16)
    assert activation_bytes(config, 700, 2) == round(3 * tensors * 700 * config.n_embd * 2)
    assert activation_bytes(config, 700, 4, checkpointing=True) == round((3 + tensors) * 700 * config.n_embd * 4)


def test_counting_builds_no_weights(monkeypatch):
    def refuse(self, seed=0):
        raise AssertionError("weights were made")

    monkeypatch.setattr(GPT, "init_weights", refuse)
    assert model_costs(GPTConfig.from_depth(40, "dot_product")).total_parameters > 4.9e9
    with torch.device("meta"):
        assert GPT(GPTConfig.from_depth(2)).device.type == "meta"


@pytest.mark.parametrize(
    "attention, options",
    [
        ("GSDVM", {}),
        ("SDV", {"network": "july"}),
        ("D", {"short_conv": 3}),  # its taps are element-wise: declared, not counted, 0.6 %
        ("M", {"mixture_routing": "successor", "mixture_components": 256}),
        ("M", {"mixture_routing": "features"}),
    ],
)
def test_declared_flops_are_those_of_the_products_that_torch_counts(attention, options):
    measured = measure_mixers(GPTConfig.from_depth(len(attention), attention, **options))
    assert len({one.mixer for one in measured}) == len(attention)
    for one in measured:
        assert abs(one.deviation) < (0.01 if "short_conv" in options else 1e-12), one
        # Declared for a compiled step, see tests/kernels/test_plan.py. Eager norms keep less on a CPU.
        assert options or 0.6 < one.saved / one.declared_saved < 1.15, one


def test_small_heads_are_measured_at_the_smallest_width_of_a_network():
    config = GPTConfig(n_layer=1, n_head=8, n_embd=64, vocab_size=50)
    assert {one.declared_flops for one in measure_mixers(config)} == {6 * 32**2 + 12 * 32 * 256}


@pytest.mark.parametrize("declared, counted, deviation", [(0, 0.0, 0.0), (0, 7.0, 1.0), (40, 50.0, 0.25)])
def test_a_deviation_is_a_share_of_the_declared_flops(declared, counted, deviation):
    assert MeasuredMixer("toy", 0, declared, counted, None, 1.0).deviation == deviation


@pytest.mark.parametrize("percent, deviation", [(95, r"\+3\.4%"), (105, r"-3\.2%")])
def test_a_mixer_that_declares_other_flops_than_it_computes_is_refused(monkeypatch, percent, deviation):
    check_flops(GPTConfig.from_depth(4, "DG", sequence_len=64))
    full = GaussianMixer.flops_per_token
    monkeypatch.setattr(GaussianMixer, "flops_per_token", lambda self: full(self) * percent // 100)
    with pytest.raises(ValueError, match=rf"mixer gaussian, layer 2: declares .*\({deviation}\); expected at most 2%"):
        check_flops(GPTConfig.from_depth(4, "DG", sequence_len=64))
