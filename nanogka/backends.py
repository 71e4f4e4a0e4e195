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
import torch.nn.functional as F
from torch import Tensor
from torch.nn import attention as torch_attention

from nanogka.common.errors import in_one_line

log = logging.getLogger(__name__)

GPU = "cuda"  # type of the devices with kernels; a test lets a CPU pass for one
MAX_HEAD_DIM = 128  # of FA4
FLASH_VERSIONS = ("FA4", "FA3", "FA2")  # the fastest first; FA2 is part of torch, the others are packages
HALF = (torch.bfloat16, torch.float16)

# The version of FlashAttention that works ("": none), and what is told of the choice. Read while tracing, as below.
_attention: dict[torch.dtype, tuple[str, str]] = {}

# Reason why the kernel of the loss is disabled (None: enabled), by device type and dtype. A plain dictionary, because
# torch.compile reads it while tracing. A missing key then means: use torch.
_disabled: dict[tuple[str, torch.dtype], str | None] = {}


def select_kernels(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """Choose the kernels for a device; {operation: implementation}, with the reason where a better one does not work.

    Call it before torch.compile traces the model: a kernel cannot be tried while it traces.
    """
    if device.type != GPU:
        return {}
    reason = _loss_disabled(device, dtype)
    return {"attention": _choose_attention(device, dtype), "loss": f"torch ({reason})" if reason else "Triton"}


def _choose_attention(device: torch.device, dtype: torch.dtype) -> str:
    """Make torch use the fastest FlashAttention that is installed and right; its name, and why others are not used."""
    key = dtype
    if dtype not in HALF and device.type == "cpu":
        return "torch"  # a rehearsal
    if dtype not in HALF:
        return f"torch (FlashAttention computes in bfloat16 or float16, not in {dtype})"
    if key not in _attention:
        failed: list[str] = []
        for version in FLASH_VERSIONS:
            try:
                _use(version)
            except Exception as error:  # not installed, or of another version: many types
                log.info("%s is not used: %s", version, in_one_line(error))
                continue
            try:
                fault = _in_thread(_probe_attention, device, dtype)
            except Exception as error:  # not for this GPU, or not in this build of torch
                fault = in_one_line(error)
            if fault is None:
                _attention[key] = version, "; ".join([version, *failed])
                break
            failed.append(f"{version} does not work here: {fault}")
        else:
            _attention[key] = "", f"torch ({'; '.join(failed)})"
    version, told = _attention[key]
    if version:
        _use(version)
    return told


def _use(version: str) -> None:
    """Make torch use a version of FlashAttention. FA2 is its own."""
    active = torch_attention.current_flash_attention_impl()
    if active is not None and active != version:
        torch_attention.restore_flash_attention_impl()
    if version not in ("FA2", active):
        torch_attention.activate_flash_attention_impl(version)


def _probe_attention(device: torch.device, dtype: torch.dtype) -> str | None:
    """Compare FlashAttention and its gradients with float64, dense and windowed. Return the fault, or None."""
    B, T, H, D = 2, 64, 2, MAX_HEAD_DIM
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(B, T, H, D, generator=generator).to(dtype) for _ in range(3)]
    distance = torch.arange(T)[:, None] - torch.arange(T)
    for window in (None, 16):
        seen = (distance >= 0) & (distance <= (T if window is None else window))
        results = []
        for leaves in ([t.double() for t in inputs], [t.to(device) for t in inputs]):
            q, k, v = (t.requires_grad_() for t in leaves)
            if results:
                y = flash_attention(q, k, v, D**-0.5, window)
            else:
                y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=seen).transpose(
                    1, 2
                )
            results.append([y, *torch.autograd.grad(y.double().square().sum(), (q, k, v))])
        for name, exact, ours in zip(("values", "q", "k", "v"), *results):
            if not (ours.cpu().double() - exact).norm() <= 4 * torch.finfo(dtype).eps * exact.norm():
                what = name if name == "values" else f"gradients of {name}"
                return f"{what} disagree with float64{'' if window is None else ' in a window'}"
    return None


def flash_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """Causal attention of B sequences of one length, packed one after the other into (B · T, H, D)."""
    # Imported here because it loads torch's compiler, which doubles the start-up time of a process.
    from torch.nn.attention.varlen import varlen_attn

    B, T = q.shape[:2]
    starts = torch.arange(0, (B + 1) * T, T, dtype=torch.int32, device=q.device)
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    past = (-1 if window is None else window, 0)  # (positions before, positions after) that are seen, −1 for all
    y = varlen_attn(q, k, v, starts, starts, T, T, scale=scale, window_size=past)
    assert isinstance(y, Tensor)  # not a tuple, which it is with auxiliary outputs
    return y.unflatten(0, (B, T))


def use_flash_attention(q: Tensor, v: Tensor) -> bool:
    """True if torch's FlashAttention computes causal attention of q and v (B, T, H, D)."""
    fits = q.shape[-1] == v.shape[-1] <= MAX_HEAD_DIM and q.shape[-1] % 8 == 0
    works = _attention.get(q.dtype, ("FA2", ""))[0] != ""  # not tried: yes
    return q.device.type == GPU and q.dtype in HALF and fits and works


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
        _disabled[key] = _in_thread(_probe, device, dtype)
    except Exception as error:  # imports, compilers and drivers fail in many types
        _disabled[key] = in_one_line(error)
    return _disabled[key]


def _in_thread(probe: Callable[..., str | None], device: torch.device, dtype: torch.dtype) -> str | None:
    """Run a probe in a separate thread.

    Grad mode is thread-local: if the caller is inside no_grad, inference_mode or a custom operator, the probe's
    backward pass would fail.
    """
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(probe, device, dtype).result()


def _probe(device: torch.device, dtype: torch.dtype) -> str | None:
    from nanogka.kernels import triton_loss

    return triton_loss.probe(device, dtype)
