"""Choose the implementation of attention and of the loss. Only this module imports `nanogka.kernels`.

| operation | on CUDA | elsewhere |
|---|---|---|
| causal attention of whole sequences | torch's FlashAttention (FA4 or FA3 if installed, else FA2), in 16 bits | torch |
| loss: soft cap and cross entropy of a chunk of logits | our Triton kernel | torch |

Everything also works without the folder `nanogka/kernels`.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn import attention as torch_attention

from nanogka.common.errors import in_one_line

log = logging.getLogger(__name__)

GPU = "cuda"  # type of the devices with kernels; a test lets a CPU pass for one
MAX_HEAD_DIM = 128  # of FA4
FLASH_VERSIONS = ("FA4", "FA3")  # the fastest first; each is a package that torch can activate

# Reason why the kernel of the loss is disabled (None: enabled), by device type and dtype. A plain dictionary, because
# torch.compile reads it while tracing. A missing key then means: use torch.
_disabled: dict[tuple[str, torch.dtype], str | None] = {}


def select_kernels(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """Choose the kernels for a device; {operation: implementation}, with the reason in brackets where one is missing.

    Call it before torch.compile traces the model: a kernel cannot be tried while it traces.
    """
    if device.type != GPU:
        return {}
    attention = "torch"
    if device.type == "cuda":
        attention = _activate_flash_attention()
        if dtype not in (torch.bfloat16, torch.float16):
            attention = f"torch (FlashAttention computes in bfloat16 or float16, not in {dtype})"
    reason = _loss_disabled(device, dtype)
    return {"attention": attention, "loss": f"torch ({reason})" if reason else "Triton"}


def _activate_flash_attention() -> str:
    """Make torch use the newest FlashAttention that is installed; its name."""
    if (active := torch_attention.current_flash_attention_impl()) is not None:
        return active
    for version in FLASH_VERSIONS:
        try:
            torch_attention.activate_flash_attention_impl(version)
        except Exception as error:  # not installed, of another version, or for another GPU: many types
            log.info("%s is not used: %s", version, in_one_line(error))
        else:
            return version
    return "FA2"


def use_flash_attention(q: Tensor, v: Tensor) -> bool:
    """True if torch's FlashAttention computes causal attention of q and v (B, T, H, D)."""
    fits = q.shape[-1] == v.shape[-1] <= MAX_HEAD_DIM and q.shape[-1] % 8 == 0
    return q.device.type == GPU and q.dtype in (torch.bfloat16, torch.float16) and fits


def loss_kernel(device: torch.device, dtype: torch.dtype) -> Callable[..., None] | None:
    """The kernel that scores a chunk of logits in place (see `nanogka.model.loss`), None for torch."""
    if device.type != GPU or _loss_disabled(device, dtype) is not None:
        return None
    from nanogka.kernels.triton_loss import score

    return score


def _loss_disabled(device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why the kernel of the loss is not used there, None if it is. Found by a small problem, once."""
    key = (device.type, dtype)
    if key in _disabled:
        return _disabled[key]
    if torch.compiler.is_compiling():
        return "not tried before the graph was traced"
    try:
        # Probe in a separate thread. Grad mode is thread-local: if the caller is inside no_grad, inference_mode or a
        # custom operator, the probe's backward pass would fail.
        with ThreadPoolExecutor(1) as executor:
            _disabled[key] = executor.submit(_probe, device, dtype).result()
    except Exception as error:  # imports, compilers and drivers fail in many types
        _disabled[key] = in_one_line(error)
    return _disabled[key]


def _probe(device: torch.device, dtype: torch.dtype) -> str | None:
    from nanogka.kernels import triton_loss

    return triton_loss.probe(device, dtype)
