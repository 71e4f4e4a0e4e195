"""A new idea fits without surgery: a mixer, and a parameter of the network, defined here and nowhere else.

The toy mixer has a vector gate, a causal convolution, a tensor cached per position, a running state and two options. It
must train, count, decode as it computes uncached, and appear in the report.
"""

import json
import random
import re
from pathlib import Path

import pytest
import torch
from generate_models import assert_decodes, small_model
from torch import nn
from training import losses
from world import make_text, make_tokenizer

from nanogka.attention import softmax_attention
from nanogka.export.config import network_config
from nanogka.model import GPT, MIXERS, GPTConfig, Mixer, Option, model_costs, register_mixer
from nanogka.model.layers import Linear, prepend_history
from nanogka.model.measure import check_flops
from nanogka.study.grid import read_grid
from scripts import base_train, model_info, report

ROOT = Path(__file__).parents[1]


class ToyMixer(Mixer):
    """y = W_O (g ∘ conv(x) + running mean of x + attention of x over itself), each causal."""

    name, letter, label, color = "toy", "T", "Toy mixer", "#117733"
    tokens_per_parameter = 3.0
    exported = "toy"
    options = {
        "toy_width": Option(3, "width of the toy's convolution", ge=1, le=7),
        "toy_mean": Option("running", "what the toy adds", choices=("running", "none")),
    }

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.gate = nn.Parameter(torch.empty(config.n_embd))
        self.taps = nn.Parameter(torch.empty(self.option("toy_width"), 1, config.n_embd))  # of the convolution
        self.c_proj = Linear(config.n_embd, config.n_embd)

    def init_weights(self, init):
        self.gate.fill_(1.0)
        init.normal(self.taps, 0.5)
        self.c_proj.weight.zero_()

    def flops_per_token(self):
        return super().flops_per_token() + 6 * self.taps.numel()

    def state_bytes(self, element_bytes):
        return (len(self.taps) * self.config.n_embd + 1) * element_bytes

    def forward(self, x, context, cache=None):
        width, taps = len(self.taps), self.taps.to(x.dtype)
        joined = prepend_history(x, width - 1, context, cache, "convolution")
        convolved = sum(taps[t] * joined[:, width - 1 - t : joined.shape[1] - t] for t in range(width))
        heads = self.split_heads(x)
        if cache is None:
            attended = softmax_attention(heads, heads, heads, scale=0.1, window=self.window)
        else:
            attended = cache.attend(heads, heads, heads, scale=0.1)
        gated = self.gate.to(x.dtype) * convolved
        mean = self.running_mean(x, context, cache) if self.option("toy_mean") == "running" else 0
        return self.c_proj(gated + mean + attended.flatten(2))

    def running_mean(self, x, context, cache):
        real = torch.ones_like(x[..., :1]) if context.valid is None else context.valid[..., None].to(x.dtype)
        total, number = (x * real).cumsum(1), real.cumsum(1)
        if cache is not None:
            total = total + cache.state("total", torch.zeros_like(x[:, 0]))[:, None]
            number = number + cache.state("number", torch.zeros_like(real[:, 0]))[:, None]
            cache.set_state("total", total[:, -1])
            cache.set_state("number", number[:, -1])
        return total / number


@pytest.fixture(autouse=True)
def toy():
    register_mixer(ToyMixer)
    yield
    del MIXERS["toy"]


@pytest.mark.parametrize("pattern", ["T", "GTD"])
def test_it_decodes_as_it_computes_uncached(pattern):
    model = small_model(pattern, windows="SL", sequence_len=40)
    assert_decodes(model, lengths=[30, 7], chunk=11, steps=5)


def test_the_kernel_in_the_documentation_decodes_and_costs_what_it_declares():
    page = (ROOT / "docs/new-mixer.md").read_text(encoding="utf-8")
    space = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, space)
    register_mixer(space["CauchyMixer"])
    try:
        assert_decodes(small_model("Y", windows="SL", sequence_len=40), lengths=[30, 7, 1], chunk=11, steps=5)
        check_flops(GPTConfig.from_depth(2, "cauchy"))
    finally:
        del MIXERS["cauchy"]


def test_it_is_counted():
    config = GPTConfig.from_depth(2, "toy", vocab_size=50, sequence_len=16)
    accounting, C = model_costs(config), config.n_embd
    assert accounting.parameters["vector"] == 2 * 4 * C
    assert accounting.parameters["matrix"] == 2 * 9 * C * C
    attention = accounting.flops_per_token - 6 * accounting.scaling_parameters
    assert attention == 12 * C * (8 + 16) + 2 * 6 * 3 * C
    model = GPT(config)
    cache = model.new_cache(1, 16)
    with torch.no_grad():
        model(torch.zeros(1, 16, dtype=torch.int64), cache=cache)
    assert cache.bytes() == accounting.cache_bytes(16, element_bytes=4)
    groups = {name: group for group, members in model.parameter_groups().items() for name in members}
    vectors = [groups[name].optimizer for name in ("blocks.0.mixer.gate", "blocks.1.mixer.taps")]
    assert vectors == ["adamw"] * 2


def test_its_options_are_flags_with_help_bounds_and_choices(capsys):
    with pytest.raises(SystemExit):
        model_info.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--toy-width INT width of the toy's convolution (default: toy 3)" in text
    assert model_info.main(["--attention", "toy", "--toy-width", "8", "--toy-mean", "some"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert ["--toy-width: got '8'" in lines[0], "--toy-mean: got 'some'" in lines[1]] == [True, True]
    assert model_info.main(["--attention", "toy", "--depth", "2", "--toy-width", "5"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["parameters"]["vector"] == 2 * (5 + 1) * 128


def test_a_study_and_an_export_know_its_options(tmp_path):
    (tmp_path / "grid.yaml").write_text("""
data: embedded
tokenizer: toy
sizes: {small: {depth: 2, budget: 1e12, seeds: [1]}}
families:
  five: {flags: {attention: toy, toy_width: 5, toy_mean: none}}
""")
    settings = read_grid(tmp_path / "grid.yaml").job("five", "small", 1).settings
    assert settings.options == {"toy_width": 5, "toy_mean": "none"}
    model = GPT(GPTConfig.from_depth(1, "toy", vocab_size=50, toy_width=5))
    expected = {"kind": "toy", "window": None, "toy_width": 5, "toy_mean": "running"}
    assert network_config(model)["mixers"] == [expected]


def test_only_the_registry_imports_a_mixer():
    """So a mixer can be deleted with its line there."""
    sources = [path for room in ("nanogka", "scripts", "tasks") for path in (ROOT / room).rglob("*.py")]
    importers = {str(path.relative_to(ROOT)) for path in sources if "nanogka.model.mixers." in path.read_text()}
    assert importers == {"nanogka/model/mixers/__init__.py"}


FLAGS = [
    "--attention", "TG", "--depth", "2", "--sequence-len", "64", "--tokenizer", "tiny", "--num-iterations", "4",
    "--total-batch-size", "512", "--eval-tokens", "512", "--compile", "off", "--dtype", "float32", "--device", "cpu",
    "--toy-width", "2",
]  # fmt: skip


def test_it_trains_resumes_with_its_options_alone_and_appears_in_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    runs = tmp_path / "runs"
    make_text(tmp_path / "text", random.Random(0), 60, 200)
    make_tokenizer(tmp_path)
    flags = [*FLAGS, "--data", str(tmp_path / "text")]
    assert base_train.main([*flags, "--run", "whole"]) == 0
    whole = losses(runs / "whole")
    assert whole[3] < whole[0]

    again = [*flags, "--run", "whole", "--resume", "auto"]
    assert base_train.main([*again, "--toy-width", "4", "--toy-mean", "none"]) == 2
    refused = capsys.readouterr().err
    assert "--toy-width: got 4" in refused
    assert "--toy-mean: got 'none'" in refused
    assert report.main(["--run", "whole"]) == 0
    assert "TG" in (runs / "whole/report.md").read_text()
