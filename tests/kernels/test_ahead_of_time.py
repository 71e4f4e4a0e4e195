"""The Triton kernels compile for GPUs that are not here: within shared memory, on tensor cores, with few spills."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes that a block may have
MOST_STACK = 640  # bytes of a thread's registers that spill, in any configuration left to the autotuner
LEAST_STACK = {False: 128, True: 400}  # in the best one of a case, without and with keys of any norms


def check(tmp_path, *words):
    """What the script of this folder says of the kernels that it compiles; the number of cases."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, Path(__file__).with_name("ahead_of_time.py"), *words]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert outcome.returncode == 0, outcome.stderr
    cases = {}
    for k in map(json.loads, outcome.stdout.splitlines()):
        assert k["shared_memory"] <= SHARED_MEMORY[k["arch"]], k
        assert k["stack"] <= MOST_STACK, k
        if k["kernel"] != "_delta_kernel":
            assert k["products"] > 0, k
            case = tuple(k[name] for name in ("kernel", "arch", "D", "window", "biased", "shared"))
            cases[case] = min(k["stack"], cases.get(case, MOST_STACK))
    assert all(stack <= LEAST_STACK[case[4]] for case, stack in cases.items()), cases
    return len(cases)


def test_a_sample_for_sm_90(tmp_path):
    assert check(tmp_path, "90", "128", "sample") == 2


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["80", "90", "100"])
def test_every_configuration(tmp_path, arch):
    assert check(tmp_path, arch, "64,128") == 2 * 2 * 8
