"""The figures of a study show its numbers. They are read from the axes, and hardly any figure is rendered."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text
from study_fakes import grid_with, row

from nanogka.study.plan import Results

pytest.importorskip("pandas")
from nanogka.plots.style import DARK_STYLE, STYLE  # noqa: E402
from nanogka.study import lead, report  # noqa: E402
from nanogka.study.summary import Summary  # noqa: E402

SIZES = {
    "b": {"depth": 2, "budget": 1.6e10, "seeds": [1, 2, 3]},
    "a": {"depth": 2, "budget": 1e9, "seeds": [1, 2]},
    "c": {"depth": 3, "budget": 1e9, "seeds": [1]},
    "d": {"depth": 3, "budget": 4e9, "seeds": [1]},
}
FAMILIES = {
    "attention": {"label": "dot product", "flags": {"attention": "dot_product"}, "sizes": ["a", "b"], "time": 3},
    "gka": {"flags": {"attention": "gaussian"}, "time": 2},
    "mixed": {"flags": {"attention": "GD"}, "sizes": ["a"]},
}
LOSS = {"attention": 3.5, "gka": 3.2, "mixed": 3.9}
BELOW = {"a": 0, "b": 0.7, "c": 0.1, "d": 0.3}
NOISE = {1: 0.0, 2: 0.125, 3: -0.05}  # doubled for GKA
TOKENS = {"a": 1000, "b": 5000, "c": 900, "d": 1700}  # doubled for GKA


def summary_of(path, families=FAMILIES, **changes):
    grid = grid_with(path / "grid.yaml", sizes=SIZES, families=families, **changes)
    rows = []
    for name, family in grid.families.items():
        for size, seed in ((at, seed) for at in family.sizes for seed in grid.sizes[at].seeds):
            times = 2 if name == "gka" else 1
            flops = SIZES[size]["budget"] * (1 + seed / 100)
            facts = {"tokens": TOKENS[size] * times, "flops": flops, "parameters": 1_240_000}
            rows.append(row(grid.job(name, size, seed), LOSS[name] - BELOW[size] + NOISE[seed] * times, **facts))
    return Summary(grid, Results(rows))


@pytest.fixture
def saved(monkeypatch):
    """The figures by the name of their file."""
    kept = {}
    for module in (lead, report):
        monkeypatch.setattr(module, "save", lambda figure, path, **_: kept.setdefault(path.name, figure) and path)
    return kept


def points(axes, marker):
    """The lines of an axes with a marker, each as its x followed by its y."""
    lines = [line for line in axes.get_lines() if line.get_marker() == marker]
    return [[*line.get_xdata(), *line.get_ydata()] for line in lines]


def test_the_headline_is_the_grids_or_names_the_best_family_of_the_largest_budget(tmp_path):
    assert report.headline(summary_of(tmp_path)) == "b: “gka” has the lowest bits per byte, 0.275 below “dot product”"
    assert report.headline(summary_of(tmp_path, title="Ours")) == "Ours"
    assert report.rates_section(summary_of(tmp_path)) == []  # no size tries several learning rates
    three = summary_of(tmp_path)  # families, of which the next best counts
    three.sound = three.sound[three.sound["size"] == "a"]
    assert report.headline(three).startswith("a: “gka” has the lowest bits per byte, 0.23")
    assert report.headline(three).endswith(" below “dot product”")
    alone = {"gka": {"flags": {"attention": "gaussian"}, "sizes": ["a", "d"]}}
    assert report.headline(summary_of(tmp_path, alone)) == "d: “gka” has 2.900 bits per byte"


def test_the_headline_names_no_best_family_at_a_budget_that_one_family_has(tmp_path):
    families = {
        "gka": FAMILIES["gka"] | {"sizes": ["a"]},
        "attention": FAMILIES["attention"],
    }
    grid = summary_of(tmp_path, families)
    assert report.headline(grid).startswith("a: “gka” has the lowest bits per byte, 0.")


def test_a_size_has_a_row_per_family_a_dot_per_seed_and_a_mark_at_the_mean_of_several(tmp_path, saved):
    report.plot_sizes(summary_of(tmp_path), tmp_path / "sizes.png")
    b, a, c, d = saved["sizes.png"].axes
    assert saved["sizes.png"].get_size_inches()[1] == pytest.approx(1 + 4 * 0.8 + 7 * 0.3)  # 7 rows in 4 panels
    assert [axes.get_title(loc="left") for axes in (b, a, c)] == ["b: depth 2", "a: depth 2", "c: depth 3"]
    assert [text.get_text() for text in a.get_yticklabels()] == ["gka", "dot product", "mixed"]
    assert (a.get_ylim(), d.get_ylim()) == ((2.5, -0.5), (0.5, -0.5))
    np.testing.assert_allclose(points(b, "o"), [[2.5, 2.75, 2.4, 0, 0, 0], [2.8, 2.925, 2.75, 1, 1, 1]])
    np.testing.assert_allclose(points(b, "|"), [[2.55, 0], [2.825, 1]])
    np.testing.assert_allclose(points(a, "|"), [[3.325, 0], [3.5625, 1], [3.9625, 2]])
    assert (points(d, "o"), points(d, "|")) == ([[pytest.approx(2.9), 0]], [])


def test_lines_join_the_means_of_one_family_and_depth_over_its_budgets(tmp_path, saved):
    summary = summary_of(tmp_path)
    report.plot_lines(summary, "flops", tmp_path / "flops.png")
    axes = saved["flops.png"].axes[0]
    means, flops = points(axes, "None"), {"a": 1.015e9, "b": 1.632e10}
    np.testing.assert_allclose(means[0], [flops["a"], flops["b"], 3.5625, 2.825])
    np.testing.assert_allclose(means[1], [flops["a"], flops["b"], 3.325, 2.55])
    np.testing.assert_allclose(means[2], [1.01e9, 4.04e9, 3.1, 2.9])
    dots = np.sort(np.reshape(points(axes, "o")[0], (2, 5)))  # in the order of the sizes or of the seeds
    np.testing.assert_allclose(dots, [[*[flops["a"]] * 2, *[flops["b"]] * 3], [2.75, 2.8, 2.925, 3.5, 3.625]])
    assert {text.get_text() for text in axes.texts} == {"dot product, depth 2", "gka, depth 2", "gka, depth 3"}
    notes = saved["flops.png"].get_supxlabel().replace("\n", " ")
    assert notes.endswith("Not drawn, because they have one budget only: mixed.")
    assert saved["flops.png"].get_suptitle().startswith("b: “gka”")

    summary.sound = summary.sound[(summary.sound["depth"] == 2) & (summary.sound["family"] != "mixed")]
    report.plot_lines(summary, "tokens_per_parameter", tmp_path / "tokens.png")
    assert {text.get_text() for text in saved["tokens.png"].axes[0].texts} == {"dot product", "gka"}
    assert "Not drawn" not in saved["tokens.png"].get_supxlabel()
    assert saved["tokens.png"].get_suptitle() == "Bits per byte against tokens per parameter"
    summary.sound = summary.sound[summary.sound["size"] == "a"]
    assert report.plot_lines(summary, "flops", tmp_path / "none.png") is None


def test_no_text_of_a_figure_is_cut_even_with_one_panel_and_long_names(tmp_path, saved):
    families = {
        "attention": {"flags": {"attention": "dot_product"}, "label": "attention, shifted keys, scales, temperature"},
        "gka": {"flags": {"attention": "gaussian"}, "label": "successor with another long name"},
    }
    summary = summary_of(
        tmp_path, {name: {**family, "sizes": ["a"]} for name, family in families.items()}, subject="gka"
    )
    lead.plot_leads([summary], tmp_path / "lead.png")
    report.plot_sizes(summary, tmp_path / "sizes.png")
    assert [len(saved[name].axes) for name in ("lead.png", "sizes.png")] == [1, 1]
    for name, figure in saved.items():
        figure.canvas.draw()
        (axes,) = figure.axes
        ticks = [*axes.get_xticklabels(which="both"), *axes.get_yticklabels(which="both")]  # some are not drawn
        for text in figure.findobj(lambda one: isinstance(one, Text) and one.get_text() and one not in ticks):  # noqa: B023
            box = text.get_window_extent()
            inside = min(box.x0, box.y0) >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
            assert inside, (name, text.get_text(), box)


def test_leads_have_a_dot_per_seed_and_a_bar_from_three_seeds_on(tmp_path, saved):
    summary = summary_of(tmp_path, subject="gka")
    lead.plot_leads([summary], tmp_path / "one.png")
    panels = saved["one.png"].axes
    titles = [f"at equal {what}" for what in ("training FLOPs", "computed time", "training tokens")]
    assert [panel.get_title(loc="left") for panel in panels] == [*titles, "at equal tokens per parameter"]
    at = summary.sound.groupby(["family", "size"])["tokens_per_parameter"].first()
    gka, other = at["gka"], at["attention"]
    np.testing.assert_allclose(
        sorted(points(panels[0], "o")[0]), sorted([*[gka["a"]] * 2, *[gka["b"]] * 3, -0.3, -0.175, -0.3, -0.175, -0.35])
    )
    np.testing.assert_allclose(points(panels[0], "None")[0], [gka["a"], gka["b"], -0.2375, -0.275])
    assert points(panels[0], "None")[1] == [0, 1, 0, 0]  # across the whole panel at no difference
    across, bars = panels[0].collections
    expected = [[[other[size], mean], [gka[size], mean]] for size, mean in (("a", -0.2375), ("b", -0.275))]
    np.testing.assert_allclose(across.get_segments(), expected)
    half = 4.303 * 0.090139 / 3**0.5  # t of three seeds, and the standard deviation of -0.3, -0.175 and -0.35
    np.testing.assert_allclose(bars.get_segments(), [[[gka["b"], -0.275 - half], [gka["b"], -0.275 + half]]], rtol=1e-4)
    # After 7,500 tokens: the time of 5,000 of the control. Interpolated between 2,000 and 10,000, seed by seed.
    share = np.log(7.5 / 2) / np.log(5)
    losses = [3.2 - 0.7 * share, 3.45 - 0.7 * share]
    np.testing.assert_allclose(sorted(points(panels[1], "o")[0][2:]), sorted([losses[0] - 2.8, losses[1] - 2.925]))
    assert [text.get_text() for text in saved["one.png"].legends[0].get_texts()] == ["dot product"]
    lead.plot_leads([summary, summary], tmp_path / "two.png")
    labels = [text.get_text() for text in saved["two.png"].legends[0].get_texts()]
    assert labels == ["dot product (1.2 M parameters)"]


def test_one_seed_has_a_dot_and_no_bar_and_lighter_colors_on_a_dark_ground(tmp_path, saved):
    families = {
        "attention": {"flags": {"attention": "dot_product"}, "label": "dot product", "color": "#0072B2"},
        "gka": {"flags": {"attention": "gaussian"}},
    }
    summary = summary_of(
        tmp_path, {name: {**family, "sizes": ["d"]} for name, family in families.items()}, subject="gka"
    )
    for name, style in (("light.png", STYLE), ("dark.png", DARK_STYLE)):
        lead.plot_leads([summary], tmp_path / name, style)
        panel = saved[name].axes[0]
        assert [len(points(panel, "o")), len(panel.collections)] == [1, 2]
        assert [len(bars) for bars in panel.collections[1].get_segments()] == []
    colors = [to_hex(saved[name].axes[0].get_lines()[0].get_color()) for name in ("light.png", "dark.png")]
    mixed = [0.35 + 0.65 * part / 255 for part in (0x00, 0x72, 0xB2)]
    assert colors == ["#0072b2", to_hex(mixed)]
