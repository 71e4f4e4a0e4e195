"""Launching the Triton kernels: tile sizes to try, one choice of them in the interpreter."""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor

INTERPRETER_TILES = (32, 32)  # the smallest shapes then already span several tiles
LARGEST_LOAD = 2**23  # BLOCK_M · BLOCK_N · head size · (bytes an element)²: what sm_90 compiles with little spilling


def tuned(kernel: object, choices: tuple[tuple[int, int, int, int], ...], key: list[str]) -> object:
    """The kernel behind an autotuner that tries each (BLOCK_M, BLOCK_N, warps, pipeline stages)."""
    configurations = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in choices
    ]
    return triton.autotune(configurations, key=key, prune_configs_by={"early_config_prune": _fitting})(kernel)


def _fitting(configurations: list[triton.Config], arguments: dict, **constants: object) -> list[triton.Config]:
    """Those whose tiles leave the compiler registers: float32 without tensor cores unrolls every product."""
    element = arguments["q"].element_size()

    def load(configuration: triton.Config) -> int:
        tile = configuration.kwargs["BLOCK_M"] * configuration.kwargs["BLOCK_N"]
        return tile * max(constants["BLOCK_D"], constants["BLOCK_DV"]) * element**2

    return [c for c in configurations if load(c) <= LARGEST_LOAD] or [min(configurations, key=load)]


def on_device(tensor: Tensor) -> AbstractContextManager:
    """Make the tensor's device the current one: Triton launches there."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def launch(
    kernel: object,
    autotuned: object,
    streams: int,
    length: int,
    window: int | None,
    tensors: tuple[Tensor, ...],
    strides: tuple[int, ...],
    constants: dict[str, int | bool],
) -> None:
    """Run one program for each tile of BLOCK_M positions of each of `streams` = B · H sequences of `length` T.

    Args:
        kernel: the plain kernel, run with `INTERPRETER_TILES` when Triton interprets.
        autotuned: the same behind the autotuner, which measures anew when the length or window doubles.
        window: None for none.
        tensors: the kernel's first arguments; `strides` its last ones before the constants.
        constants: compile-time arguments; the padded head sizes are added.
    """
    heads = tensors[3].shape[0]  # of the bandwidth
    blocks = {f"BLOCK_{name}": max(16, triton.next_power_of_2(constants[name])) for name in ("D", "DV")}
    tune_window = 0 if window is None else triton.next_power_of_2(max(1, window))
    sizes = (length, heads, window or 0, triton.next_power_of_2(length), tune_window)

    def grid(meta: dict) -> tuple[int]:
        return (triton.cdiv(length, meta["BLOCK_M"]) * streams,)

    options = {**constants, **blocks, "WINDOWED": window is not None}
    if not isinstance(kernel, triton.runtime.JITFunction):
        kernel[grid](*tensors, *sizes, *strides, **options, BLOCK_M=INTERPRETER_TILES[0], BLOCK_N=INTERPRETER_TILES[1])
        return
    with on_device(tensors[0]):
        autotuned[grid](*tensors, *sizes, *strides, **options)
