"""Components, seen: the responsibilities of a text, what each collects, the figure and the report's section."""

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from nanogka.model import GPT, GPTConfig
from nanogka.plots.mixture import collected_tokens, plot_responsibilities, report_components, token_responsibilities
from nanogka.plots.runs import Run


def test_components_collect_the_tokens_that_lie_at_their_means(tmp_path):
    config = GPTConfig.from_depth(1, "M", vocab_size=5, mixture_components=3, mixture_routing="features")
    model, ids = GPT(config), [0, 1, 2, 1, 1]
    mixer = model.blocks[0].mixer
    with torch.no_grad():
        tokens = torch.nn.functional.rms_norm(model.embedding.weight[:3], (128,))
        mixer.means.copy_(tokens[None])
        mixer.log_precisions.zero_()
    r = token_responsibilities(model, ids, layer=0)[:, 0]
    np.testing.assert_allclose(r, np.eye(3)[ids], atol=1e-5)
    found = collected_tokens([f"token {i}" for i in ids], r, most=1)
    assert [name for ((name, _),) in found] == ["token 0", "token 1", "token 2"]
    assert [share for ((_, share),) in found] == pytest.approx([1, 3, 1], abs=1e-4)
    picture = imread(plot_responsibilities(["a", "\n", "$x$", "b", "b"], r, tmp_path / "r.png", "layer 0, head 0"))
    assert picture.std() > 0.05


def test_a_layer_without_components_is_refused():
    with pytest.raises(ValueError, match="layer: got 0, whose mixer is gaussian"):
        token_responsibilities(GPT(GPTConfig.from_depth(1, "G", vocab_size=5)), [0], 0)


def test_the_report_names_dead_components(tmp_path):
    line = {"kind": "train", "step": 1, "component_entropy_layers": [2], "component_entropy": [[np.log(4.0), 0.0]]}
    run = Run(tmp_path, {"model": {"mixture_components": 8}})
    run.__dict__["train"] = [line | {"dead_components": [[0, 7]]}]
    assert "| 2 | 4.0, 1.0 | 0, 7 |" in report_components(run)[-1]
    run.__dict__["train"] = [{"kind": "train", "step": 1, "component_entropy_layers": []}]
    assert report_components(run) == []
