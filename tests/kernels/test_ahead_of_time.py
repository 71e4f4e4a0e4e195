"""The Triton kernels compile for GPUs that are not here, within their shared memory.

The project's own launch code runs over CPU tensors of the real shapes. Only Triton's driver is a fake that says which
GPU there is, and a launch compiles instead.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes that a block may have
COMPILE = """
import itertools, json, sys
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

class Driver:
    get_current_target = lambda self: GPUTarget("cuda", int(sys.argv[1]), 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0

def compile_instead(self, *args, grid=None, warmup=False, **options):
    kernel = run(self, *args, grid=grid, warmup=True, **options)
    print(json.dumps([self.fn.__name__, kernel.metadata.shared]), flush=True)

driver.set_active(Driver())
run, JITFunction.run = JITFunction.run, compile_instead
Autotuner.run = lambda self, *args, **options: self.fn.run(*args, **options, **self.configs[0].all_kwargs())
from nanogka.kernels import triton_backward, triton_forward, triton_loss

targets, losses = torch.zeros(4, dtype=torch.int64), torch.zeros(4)
for weights in (None, losses):
    triton_loss.score(torch.empty(4, 32768, dtype=torch.bfloat16), targets, 15.0, losses, weights)
for D, window, shared in itertools.product((64, 128), (None, 1024), (True, False)):
    q, k, v, dy = (torch.empty(1, 2048, 10, D, dtype=torch.bfloat16) for _ in range(4))
    y, lse = triton_forward.attend(q, q if shared else k, v, torch.ones(10), window)
    triton_backward.attend_backward(dy, q, None if shared else k, v, torch.ones(10), y, lse, window)
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", SHARED_MEMORY)
def test_the_kernels_compile(tmp_path, arch):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    (tmp_path / "compile.py").write_text(COMPILE)
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, tmp_path / "compile.py", str(arch)]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert outcome.returncode == 0, outcome.stderr
    kernels = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert len(kernels) == 2 + 3 * 2 * 2 * 2  # loss; forward, sums and backward by head size, window, shared features
    assert all(shared <= SHARED_MEMORY[arch] for _, shared in kernels), kernels
