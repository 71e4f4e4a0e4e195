"""The figures: drawn with what runs hold, not blank, and showing the numbers they should."""

import math

import numpy as np
import pytest
from full_disk import full_disk
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from run_fakes import BATCH, sigma, write_run

from nanogka.evaluate.intervals import Interval, share_interval
from nanogka.plots import figures, style
from nanogka.plots.style import label_ends, new_figure
from nanogka.plots.trained_run import TrainedRun


def assert_is_a_picture(path) -> None:
    pixels = imread(path)[..., :3]
    assert min(pixels.shape[:2]) > 300
    assert 0.005 < (pixels < 0.98).any(axis=-1).mean() < 0.5


@pytest.fixture
def saved(monkeypatch) -> list[Figure]:
    """The figures that were saved."""
    kept, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, *args: kept.append(figure) or save(figure, *args))
    return kept


@pytest.mark.parametrize("mixers", [("gaussian", "dot_product"), ("gaussian", "gaussian")])
def test_curves_of_two_runs_share_their_axes(tmp_path, saved, mixers):
    runs = [
        TrainedRun.open(write_run(tmp_path / f"run_{name}$", mixer, val_bpb=bpb))
        for name, mixer, bpb in zip("ab", mixers, (1.25, 1.5))
    ]
    path = figures.plot_curves(runs, tmp_path / "plots" / "curves.png", {"gzip -9": 4.0, "xz": 3.2})
    assert_is_a_picture(path)
    losses, validations = saved[0].axes
    smooth = losses.get_lines()[1::2]
    assert len({line.get_color() for line in smooth}) == 2
    for line, run in zip(smooth, runs, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), run.column("tokens"))
        np.testing.assert_array_equal(line.get_ydata(), run.column("smooth_loss"))
    for line, run in zip(losses.get_lines()[::2], runs, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), run.column("loss"))
    for line, run in zip(validations.get_lines(), runs):
        np.testing.assert_array_equal(line.get_ydata(), run.validation("val_bpb"))
    assert [line.get_ydata() for line in validations.get_lines()[2:]] == [[4.0, 4.0], [3.2, 3.2]]
    first, last = validations.get_lines()[0].get_xdata()[[0, -1]]
    assert (first, last) == (0, 5 * BATCH)
    assert {text.get_text() for text in validations.texts} == {"gzip -9", "xz", "run_a$", "run_b$"}
    assert saved[0].get_suptitle() == "run_a$ reaches 1.250 bits per byte during training (run_b$ 1.500)"


def test_a_run_without_validations_has_no_empty_panel(tmp_path, saved):
    run = TrainedRun.open(write_run(tmp_path / "run", val_bpb=None))
    figures.plot_curves([run], tmp_path / "curves.png", {})
    assert len(saved[0].axes) == 1


def test_labels_at_the_ends_do_not_overlap():
    figure = new_figure(8, 4, "")
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    label_ends(axes, [(1, y, f"line {y}", "#000000") for y in (0.5, 0.51, 0.99, 1.0)])
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in axes.texts), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:]))
    assert [text.get_text() for text in axes.texts] == ["line 0.5", "line 0.51", "line 0.99", "line 1.0"]


def test_labels_are_as_high_as_the_ends_of_their_lines():
    figure = new_figure(8, 4, "")
    axes = figure.subplots()  # the lines decide the limits of the axes
    ends = [(4e13, 1.53, "low", "#000000"), (4e13, 1.96, "high", "#000000")]
    for x, y, _, _ in ends:
        axes.plot([1e13, x], [2.0, y])
    label_ends(axes, ends)
    figure.draw_without_rendering()
    for (x, y, _, _), text in zip(ends, axes.texts, strict=True):
        box = Text.get_window_extent(text)
        assert box.y0 < axes.transData.transform((x, y))[1] < box.y1


@pytest.mark.parametrize(
    "mixer, layers, heads, panels", [("gaussian", [*range(4)], 2, 4), ("GGGD", [0, 1, 2, 4, 5, 6], 4, 10)]
)
def test_every_head_of_every_layer_has_its_line(tmp_path, saved, mixer, layers, heads, panels):
    run = TrainedRun.open(write_run(tmp_path / "run", mixer, depth=2 * heads))
    assert_is_a_picture(figures.plot_bandwidths(run, tmp_path / "bandwidth.png"))
    grid = [axes for axes in saved[0].axes if axes.get_label() != "<colorbar>"]
    assert len(grid) == panels
    for layer, axes in zip(layers, grid):
        drawn = [line.get_ydata() for line in axes.get_lines() if len(line.get_ydata()) == 5]
        expected = [[sigma(run.gpt_config, layer, head, step) for step in range(1, 6)] for head in range(heads)]
        np.testing.assert_allclose(drawn, expected)
        assert [run.bandwidth_start] * 2 in [list(line.get_ydata()) for line in axes.get_lines()]
        assert axes.get_title(loc="left").startswith(f"layer {layer} · ")


def test_a_skill_has_a_bar_its_interval_and_the_mark_of_the_best_constant_answer(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, *args: kept.append(figure))  # nothing is rendered
    skills = {"names": (share_interval(0.75, 40), 0.125), "limits": (Interval(0.5, math.nan, math.nan, 0), None)}
    figures.plot_skills(skills, tmp_path / "skills.png")
    for figure in kept:  # light and dark
        (axes,) = figure.axes
        assert [(bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in axes.patches] == [(0.75, 0), (0.5, 1)]
        # Wilson's interval of 30 of 40 is 0.598 to 0.858.
        interval, constant = (line for line in axes.get_lines() if len(line.get_xdata()))
        assert [*interval.get_xdata(), *interval.get_ydata()] == pytest.approx([0.598, 0.858, 0, 0], abs=5e-4)
        assert (*constant.get_xdata(), *constant.get_ydata(), constant.get_marker()) == (0.125, 0, "|")
        assert [text.get_text() for text in axes.texts] == ["75.0 % (59.8 to 85.8)", "50.0 %"]
        assert [text.get_text() for text in axes.get_yticklabels()] == ["names", "limits"]
        assert [text.get_text() for text in axes.get_xticklabels()] == [f"{part} %" for part in range(0, 101, 20)]
    assert len(kept) == 2


def test_a_figure_is_complete_or_the_old_one_stays(tmp_path):
    path = style.save(new_figure(4, 3, "small"), tmp_path / "figure.png")
    old = path.read_bytes()
    with full_disk(2000), pytest.raises(OSError, match=r"figure.png"):
        style.save(new_figure(8, 6, "a longer title"), path)
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["figure.png"]
