"""The figures show the numbers they are given, for any text."""

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from nanogka.plots import style
from nanogka.plots.style import drawable, save
from nanogka.visualize import figures
from nanogka.visualize.figures import token_label

LABELS = ["<|bos|>", "a $b", "$ \n", "😀", "\\xf0", "\n\n", "e\u0301", "中文", "\t", "x" * 130]
T = len(LABELS)
WEIGHTS = torch.rand(3, T, T, generator=torch.Generator().manual_seed(0)).tril().add(torch.eye(T))
WEIGHTS = WEIGHTS / WEIGHTS.sum(-1, keepdim=True)
HEADS = np.array([[1.0, 2.0], [3.0, np.nan]])
DRAWN = {
    "heads": lambda: figures.plot_heads("t", {"σ": HEADS, "reach": HEADS}, "a note"),
    "matrices": lambda: figures.plot_matrices("t", WEIGHTS, LABELS, ["a", "b", "c"]),
}


def images(figure) -> list:
    """The pictures in the panels of a figure, those of color bars left out."""
    return [axes.images[0] for axes in figure.axes if axes.images]


@pytest.mark.filterwarnings("error")  # a missing glyph, a scale of no width
@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_drawn_of_any_text(name, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "DPI", 40)
    pixels = imread(save(DRAWN[name](), tmp_path / "new" / "d4.5-run.png"))[..., :3]
    assert 0.005 < (pixels < 0.98).any(axis=-1).mean() < 0.9


def test_matrices_show_the_weights_and_below_them_the_weights_without_the_diagonal():
    raw_and_off = images(figures.plot_matrices("t", WEIGHTS, LABELS, ["a", "b", "c"]))
    raw, off = raw_and_off[:3], raw_and_off[3:]
    np.testing.assert_array_equal([picture.get_array() for picture in raw], WEIGHTS)
    rest = WEIGHTS.masked_fill(torch.eye(T).bool(), 0)
    np.testing.assert_array_equal([picture.get_array().filled(0) for picture in off], rest)
    assert {picture.norm.vmax for picture in raw} == {1}
    assert {picture.norm.vmax for picture in off} == {float(rest.max())}


def test_a_long_text_is_subsampled_evenly_and_keeps_both_ends():
    length = 1000
    weights = torch.arange(length * length).view(1, length, length) / length**2
    figure = figures.plot_matrices("t", weights, [str(i) for i in range(length)], ["a"])
    shown = images(figure)[0].get_array()
    assert shown.shape == (256, 256)
    rows = (shown[:, 0] * length).round().astype(int)
    assert (rows[0], rows[-1]) == (0, 999)
    assert set(np.diff(rows).tolist()) == {3, 4}
    ticks = [int(tick.get_text()) for tick in figure.axes[0].get_yticklabels()]
    assert ticks == rows[::8].tolist()  # 32 of them
    assert "256 of 1000 positions" in figure.get_supxlabel().replace("\n", " ")


def test_labels_are_one_cell_a_character():
    assert drawable("e\u0301😀\n\t") == "e□□↵→"
    assert token_label(" a long label indeed") == "·a·long·lab…"
