"""`python -m scripts.model_info`: the paper's costs in every digit, as a table and as JSON."""

import json
import os
import subprocess
import sys

import pytest

from scripts import model_info

EXPECTED = {
    "gaussian": {
        "parameters": 378_798_320,
        "flops_per_token": 2_414_346_240,
        "tokens": 2_778_726_400,
        "steps": 2650,
        "total_training_flops": 2_414_346_240 * 2_778_726_400,
        "cache_bytes_per_token": 51_200,
    },
    "dot_product": {
        "parameters": 896_535_720,
        "flops_per_token": 3_004_189_440,
        "tokens": 4_568_645_632,
        "steps": 4357,
        "total_training_flops": 3_004_189_440 * 4_568_645_632,
        "cache_bytes_per_token": 102_400,
    },
}
PRINTED = {
    "gaussian": ["378,798,320", "2.4143e9", "2.7787e9", "6.7088e18", "41.94 M", "294.91 M", "2,650"],
    "dot_product": ["896,535,720", "3.0042e9", "4.5686e9", "1.3725e19", "41.94 M", "419.43 M", "393.22 M", "4,357"],
}


def run(capsys, *flags: str) -> tuple[str, dict]:
    """The table and the document that the script prints."""
    assert model_info.main(list(flags)) == 0
    table, _, last = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    return table, json.loads(last)


@pytest.mark.parametrize("attention", EXPECTED)
def test_depth_20_costs_what_the_paper_says(attention, capsys):
    table, info = run(capsys, "--depth", "20", "--attention", attention)
    found = {**info, "parameters": info["parameters"]["total"]}
    assert {key: found[key] for key in EXPECTED[attention]} == EXPECTED[attention]
    groups = {key: value for key, value in info["parameters"].items() if key != "total"}
    assert sum(groups.values()) == info["parameters"]["total"]
    assert info["total_batch_size"] == 1_048_576
    for text in PRINTED[attention]:
        assert text in table


def test_the_four_ratios_of_the_paper(capsys):
    gaussian, baseline = (run(capsys, "--depth", "20", "--attention", name)[1] for name in EXPECTED)
    ratios = [gaussian["parameters"]["total"] / baseline["parameters"]["total"]]
    ratios += [gaussian[key] / baseline[key] for key in ("flops_per_token", "tokens", "total_training_flops")]
    assert [round(ratio, 2) for ratio in ratios] == [0.42, 0.80, 0.61, 0.49]


def test_cache_is_given_at_the_training_context_and_at_8192(capsys):
    _, info = run(capsys, "--depth", "20", "--sequence-len", "1024", "--window-pattern", "L")
    assert info["cache_bytes"] == {"1024": 1024 * 51_200, "8192": 8192 * 51_200}
    assert info["config"]["window_pattern"] == "L"


def test_flags_reach_the_horizon(capsys):
    flags = ["--depth", "4", "--vocab-size", "4096", "--target-param-data-ratio", "2", "--total-batch-size", "16384"]
    _, info = run(capsys, *flags)
    scaling = info["parameters"]["matrix"] + info["parameters"]["lm_head"]
    assert info["steps"] == 2 * scaling // 16384
    assert info["tokens"] == info["steps"] * 16384


def test_every_bad_flag_is_named_at_once(capsys):
    flags = ["--depth", "1e12", "--attention", "cosine", "--sequence-len", "1", "--window-pattern", "SX"]
    flags += ["--vocab-size", "0", "--target-param-data-ratio", "-1", "--total-batch-size", "-3"]
    assert model_info.main(flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    complaints = captured.err.replace("-", "_")
    for flag in flags[::2]:
        assert f"{flag.lstrip('-').replace('-', '_')}: got" in complaints


def test_a_batch_beyond_the_horizon_is_named(capsys):
    assert model_info.main(["--depth", "1", "--total-batch-size", str(10**12)]) == 2
    assert "--total-batch-size: got" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak memory from Linux's /proc")
def test_depth_40_takes_seconds_and_under_one_gib():
    # Not from getrusage: there Linux hands the peak of the process that started this one on to it.
    code = (
        "import re, time; begin = time.time()\n"
        "from scripts.model_info import main; main(['--depth', '40', '--attention', 'dot_product'])\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1], time.time() - begin)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kib, seconds = map(float, done.stdout.splitlines()[-1].split())
    assert kib < 2**20
    assert seconds < 60
