"""The order of jobs, and learning rates of which each family takes its best at each size."""

from study_fakes import grid_with, row

from nanogka.study.plan import Results, plan_jobs


def follow(grid, loss):
    """All jobs in the order in which one worker would run them."""
    results = Results([], {})
    while ready := plan_jobs(grid, results.find).ready:
        results.add(row(ready[0], loss(ready[0])))
        yield ready[0]
    assert plan_jobs(grid, results.find).waiting == []


def test_rates_come_first_then_the_other_seeds_at_the_best_of_each_family_and_nothing_twice(tmp_path):
    grid = grid_with(tmp_path / "grid.yaml")
    best = {"baseline": 0.3, "gka": 0.1, "wide": 0.3}
    jobs = list(follow(grid, lambda job: 2 + abs((job.settings.lr_scale or 1) - best[job.family])))
    assert all(job.decisive != other.decisive for i, job in enumerate(jobs) for other in jobs[:i])
    places = [(job.size, job.seed, job.rate, job.family) for job in jobs]
    assert places == [
        *(("small", 1, "0.1", family) for family in ("baseline", "gka")),
        ("small", 1, "0.3", "wide"),  # its own rate alone
        *(("small", 1, rate, family) for rate in ("0.3", "1") for family in ("baseline", "gka")),
        *(("small", 2, f"{rate}", family) for family, rate in best.items()),
        *(("large", seed, rate, f) for seed in (1, 2) for f, rate in zip(best, ("default", "default", "0.3"))),
    ]


def test_some_families_and_sizes_alone(tmp_path):
    plan = plan_jobs(grid_with(tmp_path / "grid.yaml"), lambda settings: None, families=("gka",), sizes=("small",))
    assert [(job.family, job.size, job.seed) for job in plan.ready] == [("gka", "small", 1)] * 3
    assert [(job.family, job.size, job.seed) for job in plan.waiting] == [("gka", "small", 2)]


def test_a_rate_that_diverged_is_not_chosen_and_a_family_with_none_left_is_told(tmp_path):
    grid = grid_with(tmp_path / "grid.yaml")
    sound = plan_jobs(
        grid, lambda settings: {"val_bpb": 3.0 if settings["lr_scale"] == 1 else None}, ("gka",), ("small",)
    )
    assert [job.rate for job in sound.done if job.seed == 2] == ["1"]
    diverged = plan_jobs(grid, lambda settings: {"val_bpb": None}, ("baseline", "wide"), ("small",)).diverged
    assert diverged == ["baseline at small", "wide at small"]
