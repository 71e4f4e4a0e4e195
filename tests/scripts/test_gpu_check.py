"""The GPU check: its verdicts from given figures, the commands it runs, and what it says where there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanogka.generate.decoder import STEPS
from scripts import bench_attention, bench_generate, bench_train

ROOT = Path(__file__).parents[2]

# A Python that has a GPU: it answers the script's own questions itself, records the parts and prints given figures.
FAKE = """#!{python}
import json, os, pathlib, subprocess, sys

folder = pathlib.Path({folder!r})
given = json.loads((folder / "given.json").read_text())
arguments = sys.argv[1:]
if arguments[:2] == ["-", "probe"]:
    print(folder / "benchmarks" / "gpu_check")
elif arguments[:2] == ["-", "judge"]:
    sys.exit(subprocess.run([{python!r}, *arguments]).returncode)
else:
    with open(folder / "calls.jsonl", "a") as calls:
        print(json.dumps(arguments), file=calls)
    if "pytest" in arguments:
        print(given["tests"])
        sys.exit("failed" in given["tests"])
    if "scripts.bench_generate" in arguments:
        kinds = arguments[arguments.index("--steps") + 1].split(",")
        if "compiled" in kinds and "compiled" not in given["decode"]:
            sys.exit("no compiler")
        print("decoding on cuda, bfloat16, D=128: triton (agrees with the literal version)", file=sys.stderr)
        keys = ("mixer", "step", "token_seconds", "bandwidth")
        rows = [dict(zip(keys, [m, k, *given["decode"][k][m]])) for m in ("gaussian", "dot_product") for k in kinds]
        print(json.dumps({{"peak_bandwidth": 4e12, "results": rows}}))
    elif "scripts.bench_train" in arguments:
        if given["train"] is None:
            sys.exit("out of memory")
        print("a table")
        print(json.dumps({{"ratios": given["train"]}}))
    else:
        names = arguments[arguments.index("--contestants") + 1].split(",")
        part = arguments[arguments.index("--lengths") + 1] + ("w" if "--window" in arguments else "")
        print("attention on cuda, bfloat16: triton (fastest)", file=sys.stderr)
        rows = [dict(zip(("contestant", "forward_flops", "total_seconds"), [n, *given[part][n]])) for n in names]
        print(json.dumps({{"hardware": "a GPU", "measurements": rows}}))
"""
GIVEN = {  # FLOP/s forward, seconds of forward and backward
    "2048": {"ours": (330e12, 1.0), "triton": (320e12, 1.1), "sdpa": (310e12, 1.0)},
    "8192": {"ours": (390e12, 3.0), "triton": (390e12, 3.0), "sdpa": (380e12, 3.3)},
    "8192w": {"ours": (300e12, 0.9), "triton": (300e12, 0.9), "flex": (200e12, 1.5)},
    "train": {"tokens_per_second": 1.25, "peak_bytes": 0.6},
    "decode": {  # seconds, bytes a second
        "growing": {"gaussian": (8e-3, 1e11), "dot_product": (9e-3, 1e11)},
        "graph": {"gaussian": (0.9e-3, 1e12), "dot_product": (1.1e-3, 1.1e12)},
        "compiled": {"gaussian": (0.5e-3, 1.8e12), "dot_product": (1.2e-3, 1.0e12)},
    },
    "tests": "60 passed, 900 deselected in 40 s",
}


def run(tmp_path, **changes):
    """Exit code, output and the recorded calls of a check that measures `GIVEN` with changes."""
    (tmp_path / "given.json").write_text(json.dumps(GIVEN | changes))
    fake = tmp_path / "python"
    fake.write_text(FAKE.format(python=sys.executable, folder=str(tmp_path)))
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", "scripts/gpu_check.sh"],
        cwd=ROOT,
        env=os.environ | {"PYTHON": str(fake)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, [json.loads(line) for line in (tmp_path / "calls.jsonl").open()]


def verdicts(output):
    return {line[6:].split(":")[0]: line[:4] for line in output.splitlines() if line[:4] in ("PASS", "FAIL")}


def test_all_targets_met(tmp_path):
    code, output, _ = run(tmp_path)
    assert code == 0
    assert list(verdicts(output).values()) == ["PASS"] * 9
    assert "PASS  forward at T = 2048, TFLOP/s: 330.00, wanted >= 320" in output
    assert "attention on cuda, bfloat16: triton (fastest)" in output
    summary = json.loads(output.splitlines()[-1])
    assert summary == json.loads((tmp_path / "benchmarks" / "gpu_check.json").read_text())
    assert summary["passed"]
    assert summary["figures"]["our kernels alone, forward at T = 2048, TFLOP/s"] == 320
    assert "PASS  decoding at depth 20, 8192 tokens, one stream, ms a token: 0.50, wanted <= 1" in output
    assert summary["figures"]["decoding, GKA: bandwidth in % of the peak"] == pytest.approx(45)
    assert summary["figures"]["decoding, baseline: ms a token"] == pytest.approx(1.1)
    assert "decoding on cuda, bfloat16, D=128: triton (agrees with the literal version)" in output


def test_without_a_compiled_step_the_recorded_one_counts(tmp_path):
    decode = {kind: GIVEN["decode"][kind] for kind in ("growing", "graph")}
    code, output, _ = run(tmp_path, decode=decode)
    assert code == 0
    assert "ms a token: 0.90, wanted <= 1" in output
    assert "decoding, GKA, compiled and recorded: ms a token: not measured" in output
    decode["graph"] = {**decode["graph"], "gaussian": (1.01e-3, 1e12)}
    code, output, _ = run(tmp_path, decode=decode)
    assert code == 1
    assert "FAIL  decoding at depth 20, 8192 tokens, one stream, ms a token: 1.01" in output


@pytest.mark.parametrize(
    "changes,missed",
    [
        ({"2048": {**GIVEN["2048"], "ours": (319e12, 1.0)}}, "forward at T = 2048, TFLOP/s"),
        ({"8192w": {**GIVEN["8192w"], "ours": (1.0, 1.1)}}, "window 1024 at T = 8192, speed over dense"),
        ({"train": {"tokens_per_second": 1.25, "peak_bytes": 0.71}}, "depth-20 step, peak memory over the baseline's"),
    ],
)
def test_a_missed_target_fails_alone(tmp_path, changes, missed):
    code, output, _ = run(tmp_path, **changes)
    assert code == 1
    assert [name for name, verdict in verdicts(output).items() if verdict == "FAIL"] == [missed]
    assert not json.loads(output.splitlines()[-1])["passed"]


def test_a_part_that_fails_is_named_and_an_earlier_figure_does_not_stand_for_it(tmp_path):
    run(tmp_path)
    code, output, _ = run(tmp_path, train=None, tests="1 failed, 59 passed")
    assert code == 1
    assert "depth-20 step, tokens/s over the baseline's: not measured" in output
    assert "FAIL  parts that did not finish: train-d20, tests" in output
    assert verdicts(output)["gpu tests passed, none failed"] == "FAIL"
    assert verdicts(output)["forward at T = 8192, TFLOP/s"] == "PASS"


def test_its_commands_are_ones_that_the_scripts_take(tmp_path):
    _, _, calls = run(tmp_path)
    scripts = {f"scripts.{m.__name__.rpartition('.')[2]}": m for m in (bench_attention, bench_train, bench_generate)}
    names = ["bench_attention", "bench_attention", "bench_attention", "bench_train", "bench_generate"]
    assert [call[1] for call in calls] == [f"scripts.{name}" for name in names] + ["pytest", "scripts.bench_generate"]
    tests = calls.pop(-2)
    for call in calls:
        if call[1] == "scripts.bench_generate":
            assert set(call[call.index("--steps") + 1].split(",")) <= set(STEPS)
        arguments = scripts[call[1]].parse_arguments(call[2:])
        assert arguments.device == "cuda"
    assert all((ROOT / argument).exists() for argument in tests if argument.startswith("tests/"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_it_says_so_and_creates_nothing(tmp_path):
    environment = os.environ | {"PYTHON": sys.executable, "NANOGKA_BASE_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "scripts/gpu_check.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3
    assert "sees no CUDA device; nothing was checked" in done.stderr
    assert not list(tmp_path.iterdir())
