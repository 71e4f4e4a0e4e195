"""Compile the Triton kernels of attention for NVIDIA GPUs, on a machine without one: a JSON line for each.

    python tests/kernels/ahead_of_time.py 90,100 64,128 [sample]

The project's own launch code runs over CPU tensors of the real shapes; only Triton's driver is a fake that says which
GPU there is, and what would launch a kernel compiles it. `sample`: the first configuration, with equal norms and shared
keys, of a causal layer with a window.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

T, H = 2048, 10
CUOBJDUMP = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"


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
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    blocks = [kwargs.get(name) for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")]
    result = {"kernel": self.fn.__name__, "arch": FakeDriver.arch, "configuration": blocks, **case}
    result |= {name.lower(): int(re.search(rf"\b{name}:(\d+)", usage)[1]) for name in ("REG", "STACK")}
    ptx = kernel.asm["ptx"]
    result["products"] = sum(ptx.count(name) for name in ("wgmma.mma_async", "mma.sync", "tcgen05.mma"))
    print(json.dumps(result | {"shared_memory": kernel.metadata.shared}), flush=True)


def every_configuration(self, *args, **kwargs):
    self.nargs = dict(zip(self.arg_names, args))
    configurations = self.prune_configs({name: value for name, value in kwargs.items() if name != "grid"})
    for configuration in configurations[:1] if sample else configurations:
        self.fn.run(*args, **kwargs, **configuration.all_kwargs())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    arches, dims = ([int(number) for number in word.split(",")] for word in sys.argv[1:3])
    sample, case = sys.argv[3:] == ["sample"], {}
    driver.set_active(FakeDriver())
    run, JITFunction.run, Autotuner.run = JITFunction.run, compile_instead, every_configuration
    from nanogka.kernels import triton_backward, triton_forward

    for FakeDriver.arch, D in itertools.product(arches, dims):
        q, k, v, dy = (torch.empty(1, T, H, D, dtype=torch.bfloat16) for _ in range(4))
        for window, biased, shared in [(1024, False, True)] if sample else itertools.product(
            (None, 1024), (False, True), (True, False)
        ):  # fmt: skip
            case.update(D=D, window=window, biased=biased, shared=shared)
            y, lse = triton_forward.attend(q, q if shared else k, v, torch.ones(H), True, window, biased)
            inputs = (dy, q, None if shared else k, v, torch.ones(H), y, lse)
            triton_backward.attend_backward(*inputs, True, window, biased)
