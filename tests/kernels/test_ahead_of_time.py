"""The Triton kernels compile for GPUs that are not here, within their shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes that a block may have


@pytest.mark.slow
@pytest.mark.parametrize("arch", SHARED_MEMORY)
def test_the_kernels_compile(tmp_path, arch):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, Path(__file__).with_name("ahead_of_time.py"), str(arch), "64,128"]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert outcome.returncode == 0, outcome.stderr
    kernels = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert len(kernels) == 3 * 2 * 2 * 2  # of forward, sums and backward; sizes of heads, windows, shared features
    assert all(k["shared_memory"] <= SHARED_MEMORY[arch] for k in kernels), kernels
