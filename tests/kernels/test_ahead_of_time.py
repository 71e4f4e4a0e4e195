"""The Triton kernel of the loss compiles for GPUs that are not here, within their shared memory.

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
import json, sys
import torch
from triton.backends.compiler import GPUTarget
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
from nanogka.kernels import triton_loss

targets, losses = torch.zeros(4, dtype=torch.int64), torch.zeros(4)
for weights in (None, losses):
    triton_loss.score(torch.empty(4, 32768, dtype=torch.bfloat16), targets, 15.0, losses, weights)
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
    assert len(kernels) == 2  # without and with the gradient
    assert all(shared <= SHARED_MEMORY[arch] for _, shared in kernels), kernels
