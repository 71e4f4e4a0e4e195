"""The plugin of vLLM computes what we compute, and what stock vLLM asks of an exported folder is there.

These tests need no vLLM, apart from the contract, which is vLLM's own code. `test_vllm_engine.py` runs its engine.
"""

import math
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import remote
import torch
from generate_models import random_prompt, small_model
from test_modeling import CASES, exported, pair
from vllm_world import plugin, settings

from nanogka.export.config import network_config, network_weights
from nanogka.export.vllm import TESTED, register

SERVED = [case for case in CASES if "M" not in CASES[case]["pattern"]]
EXACT = {"rtol": 0, "atol": 2e-5}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", SERVED)
@torch.no_grad()
def test_the_plugin_loads_an_export_and_computes_our_logits(case, ranks, monkeypatch):
    """Longer than the windows, with the heads on one rank or divided over two."""
    ours, _ = pair(case)
    world, module = plugin(monkeypatch, ranks)
    ids = random_prompt(32, 1)

    def on_rank():
        model = module.NanogkaForCausalLM(vllm_config=settings(remote.NanogkaConfig(**network_config(ours))))
        assert model.load_weights(network_weights(ours).items()) == {name for name, _ in model.named_parameters()}
        return model.compute_logits(model(torch.tensor(ids), torch.arange(32)))

    for logits in world.run(on_rank):
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, ours(torch.tensor([ids]))[0], **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [1, 3, 7])
@torch.no_grad()
def test_a_fetch_returns_earlier_positions_exactly(steps, dtype, monkeypatch):
    _, module = plugin(monkeypatch)
    fetch = module.Fetch(steps, 2, 8, settings(None), "fetch")
    assert fetch.attn.window == steps + 1
    x = torch.randn(40, 2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = fetch(x, torch.arange(40))
    for back in range(1, steps + 1):
        assert found[back:, :, back - 1].equal(x[:-back])
    if steps == 1:
        assert found[0, :, 0].equal(x[0])
    with pytest.raises(ValueError, match="short_conv: "):
        module.Fetch(8, 2, 8, settings(None), "fetch")


def test_vectors_stay_in_float32_and_caches_are_told_apart(monkeypatch):
    """Each attention layer has a name with one number, by which vLLM groups its caches."""
    _, module = plugin(monkeypatch)
    config = remote.NanogkaConfig(**network_config(small_model(**CASES["july"])))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = module.NanogkaForCausalLM(vllm_config=settings(config))
    finally:
        torch.set_default_dtype(before)
    assert all((p.dtype == torch.bfloat16) == name.endswith(".weight") for name, p in model.named_parameters())
    names = [part.prefix for part in model.modules() if hasattr(part, "prefix")]
    assert len(set(names)) == len(names) == 3 + 1 + 1  # three mixers, one of them with successor keys, a gated smear
    assert all(sum(part.isdigit() for part in name.split(".")) == 1 for name in names)


@pytest.mark.parametrize("case", ["gaussian", "value_less", "successor", "shift", "mixture", "full"])
def test_stock_vllm_serves_layers_without_history_and_refuses_others_with_a_hint(case, monkeypatch):
    monkeypatch.setitem(remote.transformers.AttentionInterface._global_mapping, "vllm", None)
    config = remote.NanogkaConfig(**network_config(small_model(**CASES[case])))
    config._attn_implementation = "vllm"
    if case in ("gaussian", "value_less"):
        remote.NanogkaModel._from_config(config)
    else:
        with pytest.raises(ValueError, match="attn_implementation: got vllm") as refusal:
            remote.NanogkaModel._from_config(config)
        served = "vLLM serves this model if nanogka is installed" in str(refusal.value)
        assert served == (case != "mixture")  # which the plugin does not serve either
        assert ("mixture layers" in str(refusal.value)) == (case == "mixture")


def test_the_plugin_names_a_mixer_that_it_does_not_serve_and_weights_that_do_not_fit(monkeypatch):
    _, module = plugin(monkeypatch)
    mixture = remote.NanogkaConfig(**network_config(small_model(**CASES["mixture"])))
    with pytest.raises(ValueError, match="layer 0: got the mixer mixture, expected one that vLLM serves: "):
        module.NanogkaForCausalLM(vllm_config=settings(mixture))
    ours, _ = pair("gaussian")
    model = module.NanogkaForCausalLM(vllm_config=settings(remote.NanogkaConfig(**network_config(ours))))
    with pytest.raises(ValueError, match="model.safetensors: blocks.7.mlp has no place in this model"):
        model.load_weights([("blocks.7.mlp", torch.zeros(1))])


@pytest.mark.parametrize("version,warnings", [(f"{TESTED[0]}+cpu", 0), ("0.99.1", 1)])
def test_another_version_of_vllm_is_served_with_a_warning_that_names_both(version, warnings, monkeypatch):
    registry, logger, parsers = Mock(), Mock(), Mock()
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version, ModelRegistry=registry))
    monkeypatch.setitem(sys.modules, "vllm.tool_parsers", SimpleNamespace(ToolParserManager=parsers))
    monkeypatch.setitem(sys.modules, "vllm.logger", SimpleNamespace(init_logger=lambda name: logger))
    register()
    registry.register_model.assert_called_once_with(
        "NanogkaForCausalLM", "nanogka.export.vllm.model:NanogkaForCausalLM"
    )
    parsers.register_lazy_module.assert_called_once_with("nanogka", "nanogka.export.vllm.tools", "CalculatorToolParser")
    said = [call.args[0] % call.args[1:] for call in logger.warning.call_args_list]
    assert len(said) == warnings
    assert all(text in line for line in said for text in (version, *TESTED))


@pytest.mark.parametrize("case,scaling", [("gaussian", 1.0), ("dot_product", 32**-0.5), ("value_less", 32**-0.5)])
def test_stock_vllm_reads_the_scaling_from_the_source(case, scaling):
    """The Transformers back-end parses `forward`; it would silently take D^-½ if it found no scaling."""
    vllm = pytest.importorskip("vllm")
    from vllm.model_executor.models.transformers.fusers.attention import AttentionFuser

    assert vllm.__version__.split("+")[0] in TESTED, "run with a vLLM that nanogka.export.vllm names"
    for block in exported(small_model(**CASES[case])).model.blocks:
        fuser = AttentionFuser.match(None, block.mixer)
        assert math.isclose(fuser.scale(block.mixer), scaling)
