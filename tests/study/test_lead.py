"""The paired lead: against losses that are linear in log tokens, where interpolation is exact, and a convex one."""

import math

import numpy as np
import pandas as pd
import pytest
from study_fakes import grid_with, row

from nanogka.model import model_costs
from nanogka.study.plan import Results

pytest.importorskip("pandas")
from nanogka.study.lead import _at_tokens, find_leads, lead_section, plot_leads, summarize  # noqa: E402
from nanogka.study.report import size_table  # noqa: E402
from nanogka.study.summary import Summary, half_interval, half_interval_over_documents  # noqa: E402

BUDGETS = {"a": 1e9, "b": 4e9, "c": 1.6e10}
TOKENS = {"gka": {"a": 1000, "b": 4000, "c": 16000}, "baseline": {"a": 800, "b": 3200, "c": 12800}}
NOISE = {1: 0.0, 2: 0.3, 3: -0.2}  # what the text of a seed does to every family


def loss(family, tokens, seed):
    """Linear in log tokens; the lead falls by 0.05 per factor e, and differs by 0.01 times the seed."""
    lead = 0.0 if family == "baseline" else 0.01 * seed + 0.05 * math.log(tokens)
    return 5 - 0.4 * math.log(tokens) + NOISE[seed] + lead


@pytest.fixture
def study(tmp_path):
    """A grid of three sizes and seeds, and its rows."""
    sizes = {name: {"depth": 1, "budget": budget, "seeds": [1, 2, 3]} for name, budget in BUDGETS.items()}
    families = {
        "baseline": {"label": "dot product", "color": "#D55E00", "time": 5, "flags": {"attention": "dot_product"}},
        "gka": {"time": 4, "flags": {"attention": "gaussian"}},
    }
    grid = grid_with(tmp_path / "grid.yaml", sizes=sizes, families=families, subject="gka")
    rows = []
    for family, size, seed in ((f, s, n) for f in TOKENS for s in BUDGETS for n in NOISE):
        tokens = TOKENS[family][size]
        rows.append(row(grid.job(family, size, seed), loss(family, tokens, seed), tokens=tokens))
    return grid, rows


@pytest.fixture
def summary(study):
    grid, rows = study
    return Summary(grid, Results(rows))


def expected(axis, size, seed):
    """The difference where both losses are known in closed form; None where the subject has no run of this length."""
    control = TOKENS["baseline"][size]
    tokens = {"flops": TOKENS["gka"][size], "tokens": control, "time": control * 5 / 4}[axis]
    if not min(TOKENS["gka"].values()) <= tokens <= max(TOKENS["gka"].values()):
        return None
    return loss("gka", tokens, seed) - loss("baseline", control, seed)


def test_differences_are_paired_by_seed_and_interpolated_in_log_tokens(summary):
    leads = find_leads(summary)
    found = {(r.axis, r.size, r.seed): r.val_bpb for r in leads.itertuples() if r.axis != "horizon"}
    cases = [(axis, size, seed) for axis in ("flops", "tokens", "time") for size in BUDGETS for seed in NOISE]
    wanted = {case: value for case in cases if (value := expected(*case)) is not None}
    assert found == pytest.approx(wanted)
    assert len(found) == 9 + 6 + 9  # at equal tokens the smallest run of the control is too short


def test_a_subject_of_one_length_is_compared_with_the_control_between_its_runs(summary):
    summary.sound = summary.sound[(summary.sound["family"] == "baseline") | (summary.sound["size"] == "b")]
    found = {(r.axis, r.size, r.seed): r.val_bpb for r in find_leads(summary).itertuples() if r.axis != "horizon"}
    at = {"flops": 3200, "tokens": 4000, "time": 4000 * 4 / 5}  # tokens of the control
    cases = {
        (axis, "b", seed): loss("gka", 4000, seed) - loss("baseline", at[axis], seed) for axis in at for seed in NOISE
    }
    assert found == pytest.approx(cases)


def test_the_mean_and_its_interval_are_those_of_the_differences(summary):
    means = summarize(find_leads(summary)).set_index(["axis", "size"])
    row = means.loc[("flops", "b")]
    differences = [expected("flops", "b", seed) for seed in NOISE]
    assert row["val_bpb"] == pytest.approx(sum(differences) / 3)
    # Differences 0.01 apart have standard deviation 0.01; the t quantile of three seeds is 4.303.
    assert row["val_bpb_interval"] == pytest.approx(4.303 * 0.01 / math.sqrt(3))


def test_a_convex_loss_of_three_unequal_lengths_and_four_seeds_gives_these_rows(tmp_path):
    sizes = {name: {"depth": 1, "budget": budget, "seeds": [1, 2, 3, 4]} for name, budget in BUDGETS.items()}
    families = {"baseline": {"flags": {"attention": "dot_product"}, "sizes": ["b", "c"]}}
    families["gka"] = {"flags": {"attention": "gaussian"}}
    grid = grid_with(tmp_path / "grid.yaml", sizes=sizes, families=families, subject="gka")
    # Width 128 and 1,024 ids: W_O and an MLP are 9 · 128² parameters, W_Q, W_K and W_V 3 · 128², lm_head 1,024 · 128.
    # So 278,528 of GKA's parameters count, and 327,680 of the baseline's.
    tokens = {"gka": {"a": 278_528, "b": 1_114_112, "c": 8_912_896}, "baseline": {"b": 557_056, "c": 8_355_840}}
    losses = {"gka": {"a": 5.0, "b": 4.2, "c": 3.8}, "baseline": {"b": 4.9, "c": 4.0}}
    noise = {1: 0.0, 2: 0.02, 3: -0.01, 4: 0.03}  # of GKA: mean 0.01, standard deviation √(0.001 / 3)
    rows = []
    for family in tokens:
        for size, seed in ((size, seed) for size in tokens[family] for seed in noise):
            job = grid.job(family, size, seed)
            parameters = model_costs(job.settings.config(1024)).total_parameters
            facts = {"tokens": tokens[family][size], "parameters": parameters}
            rows.append(row(job, losses[family][size] + (noise[seed] if family == "gka" else 0.0), **facts))
    table = lead_section(Summary(grid, Results(rows)))[2]
    # The quantile of four seeds is 3.182, so half of each interval is 3.182 · √(0.001 / 3) / 2 = 0.0290.
    # At the baseline's 557,056 tokens, GKA has the mean of its first two losses, because 2 is the root of 4.
    for cells in (
        "equal training FLOPs | baseline | b | 4.00 | 1.70 | 4 | -0.6900",
        "equal training FLOPs | baseline | c | 32.00 | 25.50 | 4 | -0.1900",
        "equal training tokens | baseline | b | 2.00 | 1.70 | 4 | -0.2900",
        "equal training tokens | baseline | c | 30.00 | 25.50 | 4 | -0.1776",  # 4.2 − 0.4 · log 7.5 / log 8 − 4 + 0.01
        "equal tokens per parameter | baseline | b | 1.70 | 1.70 | 4 | -0.1962",  # 5 − 0.8 · log 1.7 / log 4 − …
        "equal tokens per parameter | baseline | c | 25.50 | 25.50 | 4 | -0.1463",  # 4.2 − 0.4 · log 6.375 / log 8 − …
    ):
        assert f"| {cells} ± 0.0290 |" in table


def test_eleven_seeds_have_an_interval():
    losses = pd.DataFrame({"one": [float(i) for i in range(11)]})  # standard deviation √11, and t of 10 is 2.228
    assert half_interval(losses)["one"] == pytest.approx(2.228, abs=1e-3)
    assert half_interval(losses[:1]).isna().all()


def test_over_documents_one_pair_has_the_interval_of_equal_pairs():
    sums = np.random.default_rng(0).uniform(1, 9, (40, 2))  # nats and bytes
    assert half_interval_over_documents([sums]) == pytest.approx(half_interval_over_documents([sums] * 3))
    nats, size = sums.T
    spread = np.std(nats - nats.sum() / size.sum() * size, ddof=1) * 40**0.5 / size.sum() / np.log(2)
    assert half_interval_over_documents([sums]) == pytest.approx(1.96 * spread, rel=0.05)  # Student's quantile is 2.02


def test_an_interval_over_documents_is_that_of_the_mean_difference_where_every_run_has_sums(tmp_path):
    sizes = {name: {"depth": 1, "budget": budget, "seeds": [1, 2]} for name, budget in (("b", 4e9), ("c", 1.6e10))}
    families = {"baseline": {"flags": {"attention": "dot_product"}, "sizes": ["b"]}}
    families["gka"] = {"flags": {"attention": "gaussian"}}
    grid = grid_with(tmp_path / "grid.yaml", sizes=sizes, families=families, subject="gka")
    rng = np.random.default_rng(5)
    size = rng.integers(20, 900, 30).astype(float)
    nats, rows = {}, []
    for family, name in (("baseline", "b"), ("gka", "b"), ("gka", "c")):
        for seed in (1, 2):
            nats[family, name, seed] = size * rng.normal(1.1, 0.2, 30)
            documents = {"nats": nats[family, name, seed].tolist(), "bytes": size.astype(int).tolist()}
            total = nats[family, name, seed].sum() / math.log(2) / size.sum()
            tokens = {"b": 1000, "c": 8000}[name] * (2 if family == "baseline" else 1)
            facts = {"tokens": tokens, "val_documents": documents}
            rows.append(row(grid.job(family, name, seed), total, **facts))

    def half(differences):
        """Half the interval of Σ differences / Σ bytes in bits, of residuals; t of 29 degrees of freedom is 2.045."""
        residuals = differences - differences.sum() / size.sum() * size
        return 2.0452 * residuals.std(ddof=1) * math.sqrt(30) / size.sum() / math.log(2)

    gka = {name: (nats["gka", name, 1] + nats["gka", name, 2]) / 2 for name in "bc"}
    control = (nats["baseline", "b", 1] + nats["baseline", "b", 2]) / 2
    at_tokens = gka["b"] + (gka["c"] - gka["b"]) / 3  # 2,000 tokens are one of three doublings from 1,000 to 8,000
    summary = Summary(grid, Results(rows))
    means = summarize(find_leads(summary)).set_index("axis")
    assert means["val_bpb_over_documents"].loc[["flops", "tokens"]].tolist() == pytest.approx(
        [half(gka["b"] - control), half(at_tokens - control)], rel=1e-4
    )
    heading, text, table = lead_section(summary)
    assert table.count("± over documents") == 1  # not for the second corpus, of which there are no sums
    assert f"| ± {half(gka['b'] - control):.4f} |" in table
    assert f"| ± {half(gka['b'] - control):.4f} |" in size_table(summary, "b")

    fewer = {"nats": [1.0] * 29, "bytes": [9] * 29}  # of other documents
    for changed in (None, fewer):  # None: a line of an earlier version
        summary = Summary(grid, Results([*rows[:2], rows[2] | {"val_documents": changed}, *rows[3:]]))
        assert "over documents" not in lead_section(summary)[2] + size_table(summary, "b")


def test_the_report_and_the_figure_show_the_lead_only_where_a_subject_is_named(summary, tmp_path):
    heading, _, table = lead_section(summary)
    assert heading == "## Lead of gka"
    assert table.count("equal computed time") == 3
    assert plot_leads([summary], tmp_path / "lead.png").stat().st_size > 3000
    summary.grid.subject = ""
    assert lead_section(summary) == []
    assert plot_leads([summary], tmp_path / "none.png") is None


@pytest.mark.parametrize("seeds, bars", [(2, 0), (3, 3)])
def test_the_figure_has_an_interval_from_three_seeds_on(study, tmp_path, monkeypatch, seeds, bars):
    from matplotlib.axes import Axes

    grid, rows = study
    drawn, errorbar = [], Axes.errorbar
    monkeypatch.setattr(Axes, "errorbar", lambda *of, **how: drawn.append(len(of[1])) or errorbar(*of, **how))
    few = [one for one in rows if one["seed"] <= seeds]
    plot_leads([Summary(grid, Results(few))], tmp_path / "lead.png")
    assert max(drawn) == bars  # sizes


def test_tokens_that_differ_by_less_than_one_percent_are_equal():
    facts = {"val_bpb": [3.0, 2.0], "confirm_bpb": [3.5, 2.5], "val_documents": None, "confirm_documents": None}
    runs = pd.DataFrame({"tokens": [1000, 4000], "tokens_per_parameter": [2.0, 8.0], **facts})
    assert _at_tokens(runs, 1010)["val_bpb"] == 3.0
    assert _at_tokens(runs, 1010.5)["val_bpb"] == pytest.approx(3 - math.log(1.0105) / math.log(4))
    assert _at_tokens(runs, 4039)["val_bpb"] == 2.0
    assert _at_tokens(runs, 4041) is None
