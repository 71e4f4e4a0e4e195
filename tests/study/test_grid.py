"""Grids: each problem is one line with its place, and a job is known by what decides its losses."""

import pytest
from study_fakes import GRID, grid_with, row

from nanogka.study.plan import Results

SIZE = {"depth": 1, "budget": 1e10, "seeds": [1]}


@pytest.mark.parametrize(
    "changes, place",
    [
        ({"extra": 1}, "extra"),
        ({"sizes": {"small": {"depth": 1}}}, "sizes.small.seeds"),
        ({"reference": "nobody"}, "reference"),
        ({"sizes": {"small": SIZE | {"depth": "deep"}}}, "sizes.small.depth"),
        ({"sizes": {"small": SIZE | {"settings": {"num_iterations": 5}}}}, "--num-iterations and --target-flops"),
        ({"settings": {"sequence_length": 5}}, "sequence_length"),
        ({"settings": {"seed": 5}}, "seed"),
        ({"settings": {"sequence_len": "long"}}, "--sequence-len"),
        ({"settings": {"activation_checkpointing": 1}}, "--activation-checkpointing"),
        ({"families": {"a": {"flags": {}, "color": "no color"}}}, "families.a.color"),
        ({"families": {"a": {"flags": {}, "sizes": ["huge"]}}}, "families.a.sizes"),
        ({"sizes": {"small": SIZE | {"lr_scale": [0]}}}, "sizes.small.lr_scale.0"),
    ],
)
def test_a_problem_is_one_line_with_its_place(tmp_path, changes, place):
    with pytest.raises(ValueError) as error:
        grid_with(tmp_path / "grid.yaml", **changes)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{tmp_path / 'grid.yaml'}: ")
    assert f" {place}: " in line


def test_later_settings_win_and_yaml_is_read_as_written(tmp_path):
    size = SIZE | {"settings": {"matrix_lr": 0.2, "scalar_lr": 0.2}}
    families = {"a": {"flags": {"matrix_lr": 0.3, "activation_checkpointing": True}}}
    settings = {"matrix_lr": 0.1, "scalar_lr": 0.1, "embedding_lr": 0.1, "compile": "off"}
    grid = grid_with(tmp_path / "grid.yaml", sizes={"s": size}, families=families, settings=settings)
    parsed = grid.job("a", "s", 4, rate=0.4).settings
    assert (parsed.embedding_lr, parsed.scalar_lr, parsed.matrix_lr, parsed.lr_scale) == (0.1, 0.2, 0.3, 0.4)
    assert (parsed.compile, parsed.activation_checkpointing, parsed.seed, parsed.depth) == ("off", True, 4, 1)
    assert parsed.target_flops == 1e10


def test_a_size_without_a_budget_has_the_horizon_of_its_settings(tmp_path):
    sizes = {"small": {"depth": 1, "seeds": [1], "settings": {"num_iterations": 8}}}
    settings = grid_with(tmp_path / "grid.yaml", sizes=sizes).job("gka", "small", 1).settings
    assert (settings.num_iterations, settings.target_flops) == (8, None)


def test_a_job_is_known_by_what_decides_its_losses(tmp_path):
    settings = GRID["settings"] | {"eval_every": 3, "device": "cpu", "matrix_lr": 0.02}  # the last is the default
    grid = grid_with(tmp_path / "grid.yaml")
    one = grid.job("gka", "small", 1)
    assert one.decisive == grid_with(tmp_path / "two.yaml", settings=settings).job("gka", "small", 1).decisive
    places = [("gka", "small", 2), ("gka", "large", 1), ("wide", "small", 1), ("gka", "small", 1, 3.0)]
    jobs = [one, *(grid.job(*place) for place in places)]
    assert [job.decisive for job in jobs].count(one.decisive) == 1
    results = Results([row(job, float(i)) for i, job in enumerate(jobs)])
    assert [results.find(job.decisive)["val_bpb"] for job in jobs] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "settings, found",
    [
        ({}, True),
        ({"matrix_lr": 0.001}, False),  # another default at the time
        ({"gone": None}, True),  # a flag of the time
        ({"gone": False}, True),
        ({"gone": 2}, False),
        ({"smear": False}, False),  # unlike the mixer's own choice
    ],
)
def test_a_result_of_another_version_counts_if_its_settings_are_the_same(tmp_path, settings, found):
    job = grid_with(tmp_path / "grid.yaml").job("gka", "small", 1)
    old = row(job, 2.0) | {"settings": job.decisive | settings}
    for name in ("packing", "network", "warmup_steps"):  # flags that came later
        del old["settings"][name]
    assert (Results([old]).find(job.decisive) is not None) == found


def test_a_result_counts_for_its_own_data_and_measurement_only(tmp_path):
    job = grid_with(tmp_path / "grid.yaml").job("gka", "small", 1)
    mine = row(job, 2.0)
    protocol = {name: mine[name] for name in ("corpus", "tokenizer", "confirm", "measure_tokens")}
    assert Results([mine], protocol).find(job.decisive)
    for name in protocol:
        assert Results([mine], protocol | {name: "other"}).find(job.decisive) is None
    del mine["confirm"], mine["measure_tokens"]  # a row older than these fields
    assert Results([mine], protocol).find(job.decisive)
    assert Results([mine], protocol | {"validation_streams": 8}).find(job.decisive) is None  # it had 1
    assert Results([mine, mine | {"validation_streams": 8}]).others == 1  # the last row decides
