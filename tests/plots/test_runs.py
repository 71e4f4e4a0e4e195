"""Reading a run's folder."""

import json

import numpy as np
import pytest
import yaml
from run_fakes import BATCH, evaluation, sigma, write_run

from nanogka.plots.runs import load_run


def test_a_run_says_what_it_was_and_how_it_went(tmp_path):
    run = load_run(write_run(tmp_path / "d2", evaluation=evaluation()))
    assert (run.tag, run.attention, run.depth, run.finished) == ("d2", "gaussian", 2, True)
    assert run.tokens_per_second == 3100.0, "the median, not the mean"
    assert run.training_seconds == 150.0
    assert run.last("tokens") == 5 * BATCH
    assert run.validation_bpb == 1.2345, "the evaluation's, not the loop's"
    assert run.last_validation == 1.25
    tokens, values, layers = run.bandwidths
    assert values.shape == (5, 2, 1)
    assert layers == [0, 1]
    assert tokens[-1] == 5 * BATCH
    assert values[-1, 1, 0] == pytest.approx(sigma(run.gpt_config, 1, 0, 5))
    assert run.bandwidth_start == pytest.approx(128**0.25)


def test_lines_may_lie_in_any_order(tmp_path):
    folder = write_run(tmp_path / "d2")
    path = folder / "metrics.jsonl"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert load_run(folder).last("tokens") == 5 * BATCH


def test_utilisation_is_of_all_devices_and_none_where_the_peak_is_not_known(tmp_path):
    assert load_run(write_run(tmp_path / "cpu")).model_flops_utilisation is None
    run = load_run(write_run(tmp_path / "gpu", facts={"peak_flops": 1e12, "world_size": 8}))
    assert run.model_flops_utilisation == pytest.approx(3100.0 * run.flops_per_token / 8e12)
    named = load_run(write_run(tmp_path / "named", facts={"hardware": "NVIDIA H100 80GB HBM3"}))
    assert named.model_flops_utilisation == pytest.approx(3100.0 * run.flops_per_token / 989e12)


def test_a_last_line_cut_short_is_left_out(tmp_path):
    folder = write_run(tmp_path / "d2")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert len(load_run(folder).train) == 5


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("metrics.jsonl", "", "no training lines"),
        ("metrics.jsonl", '{"kind": "run", "step": 0}\n', "no training lines"),
        ("metrics.jsonl", '{"kind": \n{"kind": "train", "step": 1}\n', "line 1"),
        ("metrics.jsonl", '{"kind": "train"}\n', "line 1"),
        ("metrics.jsonl", "[1]\n", "line 1"),
        ("config.yaml", "a: [", "damaged"),
        ("config.yaml", "just text", "takes a mapping"),
        ("evaluation.json", "{", "damaged"),
        ("evaluation.json", "[]", "takes a mapping"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, text, says):
    folder = write_run(tmp_path / "d2")
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        load_run(folder)
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml"])
def test_a_missing_file_is_named(tmp_path, name):
    folder = write_run(tmp_path / "d2")
    (folder / name).unlink()
    with pytest.raises(ValueError, match=name):
        load_run(folder)


def test_bandwidths_that_change_shape_are_named(tmp_path):
    folder = write_run(tmp_path / "d2")
    line = {"kind": "train", "step": 6, "bandwidth": [[1.0]], "bandwidth_layers": [0]}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    run = load_run(folder)
    with pytest.raises(ValueError, match="metrics.jsonl"):
        _ = run.bandwidths


def test_a_configuration_without_a_model_leaves_what_is_recorded(tmp_path):
    folder = write_run(tmp_path / "d2")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    del config["model"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run = load_run(folder)
    assert run.gpt_config is None
    assert run.bandwidth_start is None
    assert run.parameters == config["run"]["parameters"]
    assert run.attention == "gaussian"
    assert np.isfinite(run.bandwidths[1]).all()
