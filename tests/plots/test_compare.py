"""Which runs may stand side by side."""

import os

import pytest
from run_fakes import write_run

from nanogka.plots.compare import differing_settings, find_counterpart, speeds_compare
from nanogka.plots.runs import load_run


def test_the_other_mixer_with_the_same_settings_is_found_from_either_side(tmp_path):
    runs = [load_run(write_run(tmp_path / name, name)) for name in ("gaussian", "dot_product")]
    assert find_counterpart(runs[0], tmp_path).folder == runs[1].folder
    assert find_counterpart(runs[1], tmp_path).folder == runs[0].folder
    assert differing_settings(*runs) == {}


@pytest.mark.parametrize(
    "changes, setting",
    [
        ({"settings": {"seed": 2}}, "seed"),
        ({"settings": {"data": "elsewhere"}}, "data"),
        ({"settings": {"matrix_lr": 0.03}}, "matrix_lr"),
        ({"settings": {"packing": "new"}}, "packing"),
        ({"facts": {"total_batch_size": 2048}}, "total_batch_size"),
        ({"facts": {"num_iterations": 4}}, "num_iterations"),
        ({"depth": 3}, "n_layer"),
    ],
)
def test_a_run_of_other_settings_is_no_counterpart(tmp_path, changes, setting):
    run = load_run(write_run(tmp_path / "a"))
    other = load_run(write_run(tmp_path / "b", "dot_product", **changes))
    assert setting in differing_settings(run, other)
    assert find_counterpart(run, tmp_path) is None


def test_neither_is_an_unfinished_run_nor_one_of_the_same_mixer(tmp_path):
    run = load_run(write_run(tmp_path / "a"))
    write_run(tmp_path / "same", "gaussian")
    write_run(tmp_path / "stopped", "dot_product", steps=4)
    assert find_counterpart(run, tmp_path) is None


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_a_damaged_neighbour_is_passed_over(tmp_path, name):
    run = load_run(write_run(tmp_path / "a"))
    broken = write_run(tmp_path / "b", "dot_product")
    (broken / name).write_text("{")
    assert find_counterpart(run, tmp_path) is None
    write_run(tmp_path / "c", "dot_product")
    assert find_counterpart(run, tmp_path).tag == "c"


def test_of_several_the_newest_is_taken(tmp_path):
    run = load_run(write_run(tmp_path / "a"))
    for age, name in ((300, "old"), (100, "new"), (200, "older")):
        path = write_run(tmp_path / name, "dot_product") / "config.yaml"
        os.utime(path, (2e9 - age, 2e9 - age))
    assert find_counterpart(run, tmp_path).tag == "new"


def test_the_same_corpus_in_another_place_is_the_same_corpus(tmp_path):
    facts = {"corpus": "f" * 64}
    run = load_run(write_run(tmp_path / "a", facts=facts))
    other = load_run(write_run(tmp_path / "b", "dot_product", facts=facts, settings={"data": "moved"}))
    changed = load_run(write_run(tmp_path / "c", "dot_product", facts={"corpus": "e" * 64}))
    assert differing_settings(run, other) == {}
    assert "data" in differing_settings(run, changed)


def test_speeds_compare_only_on_the_same_machine(tmp_path):
    run = load_run(write_run(tmp_path / "a"))
    assert speeds_compare(run, load_run(write_run(tmp_path / "b", "dot_product")))
    for i, facts in enumerate(({"hardware": "Another CPU"}, {"world_size": 2}, {"compiled": True})):
        assert not speeds_compare(run, load_run(write_run(tmp_path / f"c{i}", "dot_product", facts=facts)))
