"""Dispatch: the one module that knows `nanogka.kernels`, our code that is not plain torch, and decides who computes.

An operation that has a kernel asks here; it gets the kernel, or None, which means torch. Kernels are probed once per
device and dtype: a small problem, forward and backward, must agree with float64. If one does not, or cannot be built,
the log says why and torch computes. Everything also works with the folder `nanogka/kernels` deleted.

| operation | kernel | where |
|---|---|---|
| `gaussian_attention`, `dot_product_attention` | Triton, forward and backward | CUDA, 16 bits |
| loss: soft cap and cross entropy of a chunk of logits | Triton | CUDA |
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from nanogka.common.errors import in_one_line

log = logging.getLogger(__name__)

GPU = "cuda"  # type of the device on which the Triton kernels are used; a test lets a CPU pass for it

# Reason each kernel is disabled (None: enabled), by name, device type and dtype. A plain dictionary, because
# torch.compile reads it while tracing. A missing key then means: use torch.
_reasons: dict[tuple[str, str, torch.dtype], str | None] = {}
allowed = True  # False: everything is left to torch


def prepare(device: torch.device, dtype: torch.dtype, training: bool = False) -> dict[str, str]:
    """Probe all kernels that a model may use; who computes each operation: "Triton", or "torch" with the reason.

    torch.compile cannot probe while it traces: a kernel that is not probed by then is left out of the graph.
    """
    kernels = {"attention": "Triton", "loss": "Triton"} if device.type == GPU else {}
    reasons = {name: _reason(name, device, dtype) for name in kernels}
    return {name: f"torch ({reason})" if reason else kernels[name] for name, reason in reasons.items()}


def attention_kernel(backend: str, device: torch.device, dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """The kernel that computes `gaussian_attention`, None for torch's fused attention."""
    if backend == "softmax" or (backend == "auto" and not (device.type == GPU and allowed)):
        return None
    reason = _reason("attention", device, dtype)
    if reason is None:
        from nanogka.kernels.triton_attention import triton_attention

        return triton_attention
    if backend != "auto":
        raise ValueError(f"backend: {backend!r} cannot run on {device} in {dtype}: {reason}")
    return None


def attention_tuners() -> tuple[object, object]:
    """The autotuners of forward and backward, whose `configs` they choose from: for measuring each of these."""
    from nanogka.kernels import triton_backward, triton_forward

    return triton_forward._tuned_forward, triton_backward._tuned_backward


def loss_kernel(device: torch.device, dtype: torch.dtype) -> Callable[..., None] | None:
    """The kernel that scores a chunk of logits in place (see `nanogka.model.loss`), None for torch."""
    if device.type != GPU or not allowed or _reason("loss", device, dtype) is not None:
        return None
    from nanogka.kernels.triton_loss import score

    return score


def _reason(kernel: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why that kernel is not used there, None if it is."""
    key = (kernel, device.type, dtype)
    if key in _reasons:
        return _reasons[key]
    if torch.compiler.is_compiling():
        return "not probed before the graph was traced"
    try:
        # In a thread of its own: `no_grad`, `inference_mode` and the inside of a custom operator, whence the loss asks,
        # are states of the caller's thread, and under them the probe's gradients would fail.
        with ThreadPoolExecutor(1) as executor:
            reason = executor.submit(_probe, kernel, device, dtype).result()
    except Exception as error:  # imports, compilers and drivers fail in many types
        reason = in_one_line(error)
    _reasons[key] = reason
    kind = str(dtype).removeprefix("torch.")
    log.info("%s on %s in %s: %s", kernel, device.type, kind, f"torch ({reason})" if reason else "our kernel")
    return reason


def _probe(kernel: str, device: torch.device, dtype: torch.dtype) -> str | None:
    from nanogka.kernels import probes

    return probes.PROBES[kernel](device, dtype)
