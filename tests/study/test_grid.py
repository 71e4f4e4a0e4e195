"""Grids: what is wrong is said in a line with its place, and a job's identity is what decides its losses."""

import pytest
from study_fakes import GRID, grid_with, write_grid

from nanogka.study.grid import deciding_defaults, read_grid, settings_key

SIZE = {"depth": 1, "budget": 1e10, "seeds": [1]}


@pytest.mark.parametrize(
    "text, line",
    [
        ("", "got None, takes a mapping with data, tokenizer, sizes, families"),
        ("[1, 2]", "got [1, 2], takes a mapping"),
        ("sizes: [", "cannot be read as YAML"),
        ("data: text", "got 'no tokenizer, sizes, families', takes"),
    ],
)
def test_a_file_of_another_shape_is_one_line(tmp_path, text, line):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(ValueError) as error:
        read_grid(tmp_path / "grid.yaml")
    assert str(error.value).startswith(str(tmp_path / "grid.yaml"))
    assert line in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"sizes": {}}, "sizes: got {}, takes"),
        ({"extra": 1}, "grid.yaml: got 'extra', takes the keys data, "),
        ({"match": "steps"}, "match: got 'steps', takes flops or tokens"),
        ({"reference": "nobody"}, "reference: got 'nobody', takes a family: baseline, gka, wide"),
        ({"sizes": {"small": SIZE | {"depth": "deep"}}}, "sizes.small.depth: got 'deep', takes an integer"),
        ({"sizes": {"small": SIZE | {"budget": -1}}}, "sizes.small.budget: got -1, takes a number above 0"),
        ({"sizes": {"small": SIZE | {"seeds": 3}}}, "sizes.small.seeds: got 3, takes a list of integers"),
        ({"settings": {"sequence_length": 5}}, "settings: got 'sequence_length', takes flags of scripts.base_train"),
        ({"settings": {"seed": 5}}, "settings: got 'seed', takes other flags than those that the study decides"),
        ({"settings": {"sequence_len": "long"}}, "--sequence-len: got 'long', takes an integer"),
        ({"settings": {"sequence_len": [1]}}, "--sequence-len: got [1], takes a number or text"),
        ({"settings": {"activation_checkpointing": 1}}, "--activation-checkpointing: got 1, takes true or false"),
        ({"settings": {"packing": "worst"}}, "--packing: got 'worst', takes bestfit"),
        ({"families": {"a": {"flags": {}, "sweep_as": "b"}}}, "families.a.sweep_as: got 'b', takes a family"),
        ({"families": {"a": {"flags": {}, "sizes": ["huge"]}}}, "families.a.sizes: got 'huge', takes some of small"),
        ({"families": {"a": {"flags": {}, "color": "no color"}}}, "families.a.color: got 'no color', takes"),
        ({"sweep": {"size": "huge", "stages": [{"lr_scale": [1]}]}}, "sweep.size: got 'huge', takes a size: small"),
        ({"sweep": {"size": "small", "stages": [{"lr_scale": 1}]}}, "sweep.stages[0]: got 1, takes a list of values"),
        ({"sweep": {"size": "small", "stages": [{"lr_scale": ["high"]}]}}, "--lr-scale: got 'high', takes a finite"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, changes, line):
    sweep = {"sweep": None} if {"sizes", "families"} & set(changes) else {}
    with pytest.raises(ValueError) as error:
        grid_with(tmp_path / "grid.yaml", **sweep, **changes)
    assert line in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    with pytest.raises(ValueError) as error:
        grid_with(tmp_path / "grid.yaml", match="steps", keep="no", settings={"width": 1})
    assert len(str(error.value).splitlines()) == 3


def test_later_settings_win_and_yaml_is_read_as_it_is_meant(tmp_path):
    size = SIZE | {"settings": {"matrix_lr": 0.2, "scalar_lr": 0.2}}
    families = {"a": {"flags": {"matrix_lr": 0.3, "activation_checkpointing": True}}}
    settings = {"matrix_lr": 0.1, "scalar_lr": 0.1, "embedding_lr": 0.1, "compile": False}
    grid = grid_with(tmp_path / "grid.yaml", sweep=None, sizes={"s": size}, families=families, settings=settings)
    job = grid.job("a", "s", 4, {"warmup_ratio": "1e-1"})
    parsed = job.settings
    assert (parsed.embedding_lr, parsed.scalar_lr, parsed.matrix_lr, parsed.warmup_ratio) == (0.1, 0.2, 0.3, 0.1)
    assert (parsed.compile, parsed.activation_checkpointing, parsed.seed, parsed.depth) == ("off", True, 4, 1)
    assert parsed.target_flops == 1e10
    assert {"--activation-checkpointing", "--compile=off", "--target-flops=10000000000.0"} <= set(job.words)


def test_matched_tokens_are_steps(tmp_path):
    sizes = {"small": {"depth": 1, "tokens": 1000, "seeds": [1]}}
    grid = grid_with(tmp_path / "grid.yaml", match="tokens", sizes=sizes)
    assert grid.job("gka", "small", 1).settings.num_iterations == 8  # of 128 tokens


def test_the_identity_is_of_what_decides_the_losses(tmp_path):
    settings = GRID["settings"] | {"eval_every": 3, "device": "cpu", "matrix_lr": 0.02}  # the default, said
    one = grid_with(tmp_path / "one.yaml").job("gka", "small", 1)
    same = grid_with(tmp_path / "two.yaml", settings=settings).job("gka", "small", 1)
    assert one.identity("c", "t") == same.identity("c", "t")
    others = [one.identity("d", "t"), one.identity("c", "u")]
    grid = read_grid(write_grid(tmp_path / "one.yaml"))
    for place in [("gka", "small", 2), ("gka", "large", 1), ("wide", "small", 1), ("gka", "small", 1, {"lr_scale": 3})]:
        others.append(grid.job(*place).identity("c", "t"))
    assert len({one.identity("c", "t"), *others}) == 7


def test_a_result_keeps_the_defaults_of_its_time(tmp_path):
    grid = grid_with(tmp_path / "grid.yaml")
    now, slow = grid.job("gka", "small", 1), grid.job("gka", "small", 1, {"matrix_lr": 0.001})
    assert settings_key(now.deciding, {"matrix_lr": 0.001}) == slow.key != now.key
    without = {name: value for name, value in deciding_defaults().items() if name != "smear"}
    assert settings_key(now.deciding, without) == now.key, "a flag that was added since"
    assert settings_key(now.deciding, deciding_defaults() | {"gone": 1}) == now.key, "a flag that is gone"
    assert settings_key(now.deciding | {"gone": 2}, {}) != now.key, "one that had been set"
