"""Compile the Triton kernels of attention for NVIDIA GPUs, on a machine without one: a JSON line for each.

    python tests/kernels/ahead_of_time.py 90,100 64,128

The project's own launch code runs over CPU tensors of the real shapes. Only Triton's driver is a fake that says which
GPU there is, and what would launch a kernel compiles it.
"""

import itertools
import json
import sys
from pathlib import Path

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

T, H = 2048, 10


class FakeDriver:
    """Says that the GPU is one of compute capability `arch`."""

    arch = 90

    def get_current_target(self):
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self):
        return self.arch  # the key of the kernels' caches

    def get_current_stream(self, device):
        return 0


def compile_instead(self, *args, grid=None, warmup=False, **kwargs):
    kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
    print(json.dumps({"kernel": self.fn.__name__, **case, "shared_memory": kernel.metadata.shared}), flush=True)


def first_configuration(self, *args, **kwargs):
    self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    arches, dims = ([int(number) for number in word.split(",")] for word in sys.argv[1:3])
    case = {}
    driver.set_active(FakeDriver())
    run, JITFunction.run, Autotuner.run = JITFunction.run, compile_instead, first_configuration
    from nanogka.kernels import triton_backward, triton_forward

    for FakeDriver.arch, D in itertools.product(arches, dims):
        q, k, v, dy = (torch.empty(1, T, H, D, dtype=torch.bfloat16) for _ in range(4))
        for window, shared in itertools.product((None, 1024), (True, False)):
            case.update(D=D, window=window, shared=shared)
            y, lse = triton_forward.attend(q, q if shared else k, v, torch.ones(H), window)
            triton_backward.attend_backward(dy, q, None if shared else k, v, torch.ones(H), y, lse, window)
