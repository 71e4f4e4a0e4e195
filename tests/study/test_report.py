"""The report: its numbers against sums by hand, what it warns of, its plots."""

import math

import pytest
from study_fakes import finish, grid_with, row

from nanogka.study.grid import Family
from nanogka.study.plan import Results
from nanogka.study.report import family_colors, write_report


def loss(job):
    """Two seeds that differ by 0.02; GKA is 0.1 behind, in seed 2 0.14; the best rate is 0.3, or the highest."""
    best = 1 if job.size == "large" or job.family == "gka" else 0.3
    rates = abs((job.settings.lr_scale or 1) - best)
    behind = 0 if job.family == "baseline" else 0.1 if job.seed == 1 else 0.14
    return 3 - (job.size == "large") + 0.02 * (job.seed - 1) + behind + rates


@pytest.fixture
def grid(tmp_path):
    return grid_with(tmp_path / "grid.yaml")


def report(grid, rows, tmp_path):
    """The paths and the text of a report."""
    written = write_report(grid, Results(rows), tmp_path / "grid.md")
    return written, written[0].read_text(encoding="utf-8")


def test_the_report_has_the_tables_and_the_plots(grid, tmp_path):
    written, text = report(grid, finish(grid, loss), tmp_path)
    assert "Bits per byte are of the first 4,096 tokens of the validation split" in text
    # 3.00 and 3.02: mean, and 0.02 / √2; for GKA the gaps are 0.1 and 0.14: 0.04 / √2 / √2
    assert "| dot product | 1,000 | 6000 | 1,280 | 1.0000e10 | 2 | 3.0100 ± 0.0141 | — | 3.5100 ± 0.0141 |" in text
    assert "| gka | 1,000 | 6000 | 1,280 | 1.0000e10 | 2 | 3.1300 ± 0.0424 | +0.1200 ± 0.0200 |" in text
    assert "| small | dot product | 0.1: 3.2000 · **0.3: 3.0000** · 1: 3.7000 |  |" in text
    assert "| small | gka | 0.1: 4.0000 · 0.3: 3.8000 · **1: 3.1000** | the highest |" in text
    assert "| small | wide | **0.3: 3.1000** | the only one |" in text
    assert [path.name for path in written[1:]] == ["costs.png", "curves.png", "bandwidth.png"]
    assert all(f"](grid/{path.name})" in text and path.stat().st_size > 10_000 for path in written[1:])


def test_an_unfinished_study_is_reported_as_far_as_it_goes(grid, tmp_path):
    rows = [r for r in finish(grid, loss) if (r["family"], r["size"], r["seed"]) != ("wide", "large", 2)]
    rows = [r | {"val_bpb": None} if (r["family"], r["size"], r["seed"]) == ("gka", "large", 2) else r for r in rows]
    _, text = report(grid, [rows[0] | {"corpus": "new", "val_bpb": 1.0}, *rows], tmp_path)
    assert "1 results of another corpus, tokenizer or measurement are left out." in text
    assert "1 runs of these tables are missing." in text
    assert "1 runs diverged and are in no mean." in text
    with pytest.raises(ValueError, match="none for a table of this grid"):
        report(grid, [row(grid.job("gka", "small", 3), 2.0)], tmp_path)


def test_losses_and_gaps_on_a_line_give_that_line(tmp_path):
    sizes = {f"{budget:g}": {"depth": 1, "budget": budget, "seeds": [1, 2]} for budget in (1e9, 1e10, 1e11)}
    grid = grid_with(tmp_path / "grid.yaml", sizes=sizes)
    gap = {"baseline": lambda x: 0, "gka": lambda x: -0.5 + 0.1 * x, "wide": lambda x: -0.01 - 0.1 * x}

    def loss(job):
        tenfolds = math.log10(job.settings.target_flops) - 9
        return 4 * 10 ** (-0.25 * tenfolds) + gap[job.family](tenfolds)

    _, text = report(grid, finish(grid, loss), tmp_path)
    # −0.5, −0.4, −0.3 at 1e9 … 1e11: −0.2 at 1e12, zero at 1e14
    assert "| 1 | dot product | -0.2500 ± 0.0000 | — | — | — | — |" in text
    assert " | +0.1000 ± 0.0000 | -0.2000 ± 0.0000 | 1.0000e12 | 1.0000e14, × or ÷ 1 |" in text
    assert " | -0.1000 ± 0.0000 | -0.3100 ± 0.0000 | 1.0000e12 | — |" in text


def test_every_family_has_a_color_however_many_there_are():
    own = [Family(name=f"own{i}", flags={}, color=color) for i, color in enumerate(("#0072B2", "#D55E00", "#009E73"))]
    others = [Family(name=f"other{i}", flags={}) for i in range(30)]
    colors = family_colors([*own, *others])
    assert len(set(colors.values())) == 33
