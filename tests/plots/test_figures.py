"""The figures: drawn with what runs hold, not blank, and showing the numbers they should."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from run_fakes import BATCH, sigma, write_run

from nanogka.plots import figures
from nanogka.plots.compression import Compression
from nanogka.plots.trained_run import TrainedRun


def assert_is_a_picture(path) -> None:
    pixels = imread(path)[..., :3]
    assert min(pixels.shape[:2]) > 300
    assert 0.005 < (pixels < 0.98).any(axis=-1).mean() < 0.5


@pytest.fixture
def saved(monkeypatch) -> list[Figure]:
    """The figures that were saved."""
    kept, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, path: kept.append(figure) or save(figure, path))
    return kept


@pytest.mark.parametrize("mixers", [("gaussian", "dot_product"), ("gaussian", "gaussian")])
def test_curves_of_two_runs_share_their_axes(tmp_path, saved, mixers):
    runs = [TrainedRun.open(write_run(tmp_path / f"run_{name}$", mixer)) for name, mixer in zip("ab", mixers)]
    path = figures.plot_curves(runs, tmp_path / "plots" / "curves.png", Compression(1000, True, 4.0, 3.2))
    assert_is_a_picture(path)
    loss_tokens, bpb_tokens, loss_flops, bpb_flops = saved[0].axes
    for axes, measure in ((loss_tokens, "tokens"), (loss_flops, "flops")):
        drawn = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
        assert len({line.get_color() for line in drawn}) == 2
        for line, run in zip(drawn, runs, strict=True):
            np.testing.assert_array_equal(line.get_xdata(), run.column(measure))
            np.testing.assert_array_equal(line.get_ydata(), run.column("smooth_loss"))
    assert bpb_flops.get_xscale() == "log"
    first, last = bpb_tokens.get_lines()[0].get_xdata()[[0, -1]]
    assert (first, last) == (0, 5 * BATCH)
    assert 0 not in bpb_flops.get_lines()[0].get_xdata(), "nothing spent has no place on a logarithmic axis"
    assert {text.get_text() for text in bpb_tokens.texts} == {"gzip -9", "xz"}
    figures.plot_curves(runs[:1], path)
    assert len(saved[1].axes) == 2, "of one run FLOPs are tokens on another scale"


@pytest.mark.parametrize(
    "mixer, layers, heads, panels", [("gaussian", [*range(4)], 2, 4), ("GGGD", [0, 1, 2, 4, 5, 6], 4, 10)]
)
def test_every_head_of_every_layer_has_its_line(tmp_path, saved, mixer, layers, heads, panels):
    run = TrainedRun.open(write_run(tmp_path / "run", mixer, depth=2 * heads))
    assert_is_a_picture(figures.plot_bandwidth_training(run, tmp_path / "training.png"))
    grid = [axes for axes in saved[0].axes if axes.get_label() != "<colorbar>"]
    assert len(grid) == panels
    for layer, axes in zip(layers, grid):
        drawn = [line.get_ydata() for line in axes.get_lines() if len(line.get_ydata()) == 5]
        expected = [[sigma(run.gpt_config, layer, head, step) for step in range(1, 6)] for head in range(heads)]
        np.testing.assert_allclose(drawn, expected)
        assert axes.get_title(loc="left").startswith(f"layer {layer} · ")
