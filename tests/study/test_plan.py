"""The order of jobs, and a sweep that keeps the best value of each stage."""

from study_fakes import grid_with, row

from nanogka.study.plan import Results, plan_jobs, search_rates


def follow(grid, loss):
    """All jobs in the order in which one worker would run them."""
    results = Results([], {})
    while ready := plan_jobs(grid, results.find).ready:
        results.add(row(ready[0], loss(ready[0])))
        yield ready[0]
    assert plan_jobs(grid, results.find).waiting == []


def loss(job):
    """Best at lr_scale 0.3 for the baseline, 0.1 for all else, and at a low rate of σ."""
    best = 0.3 if job.family == "baseline" else 0.1
    return 2 + abs(job.settings.lr_scale - best) + job.settings.bandwidth_lr


def test_sweeps_come_first_then_sizes_then_seeds_then_families_and_nothing_twice(tmp_path):
    stages = [{"lr_scale": [0.1, 0.3]}, {"bandwidth_lr": [0.02, 0.01], "only": ["gka"]}]
    grid = grid_with(tmp_path / "grid.yaml", sweep={"size": "small", "stages": stages})
    jobs = list(follow(grid, loss))
    assert all(job.decisive != other.decisive for i, job in enumerate(jobs) for other in jobs[:i])
    swept = [(job.family, *job.swept.values()) for job in jobs[:5]]
    # 0.02 is the default: the second stage has measured it already
    assert swept == [("baseline", 0.1), ("gka", 0.1), ("baseline", 0.3), ("gka", 0.3), ("gka", 0.1, 0.01)]
    rest = [(job.size, job.seed, job.family) for job in jobs[5:]]
    assert rest == [
        ("small", 1, "wide"),  # the others' first seed was the sweep's
        *(("small", 2, family) for family in ("baseline", "gka", "wide")),
        *(("large", seed, family) for seed in (1, 2) for family in ("baseline", "gka", "wide")),
    ]
    rates = {job.family: job.swept for job in jobs[5:]}
    gka = {"lr_scale": 0.1, "bandwidth_lr": 0.01}
    assert rates == {"baseline": {"lr_scale": 0.3}, "gka": gka, "wide": gka}


def test_only_some_families_and_sizes_bring_the_sweep_that_they_need(tmp_path):
    grid = grid_with(tmp_path / "grid.yaml")
    now = plan_jobs(grid, lambda settings: None, families=("wide",), sizes=("large",))
    assert {(job.family, job.size) for job in now.ready} == {("gka", "small")}
    assert [(job.family, job.size) for job in now.waiting] == [("gka", "small"), ("wide", "large"), ("wide", "large")]


def test_a_rate_that_diverged_is_not_chosen_and_a_family_with_none_left_is_told(tmp_path):
    grid = grid_with(tmp_path / "grid.yaml")
    sound = search_rates(grid, "baseline", lambda settings: {"val_bpb": 3.0 if settings["lr_scale"] == 1 else None})
    assert sound.chosen == {"lr_scale": "1"}
    assert plan_jobs(grid, lambda settings: {"val_bpb": None}).diverged == ["baseline", "gka"]
