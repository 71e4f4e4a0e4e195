"""Linear map, soft cap and cross entropy without storing (N, V) float32 logits in the forward or backward pass.

    l = h Wᵀ,   c = cap · tanh(l / cap),   loss_i = log Σ_v exp(c_iv) − c_i,target
    ∂loss_i / ∂l_iv = (softmax(c)_iv − [v = target]) · (1 − tanh²(l_iv / cap))

The logits exist for a chunk of rows at a time. The mean weights every row alike, so its gradients of hidden states and
weights are computed in the forward pass, while the chunk is there, and only scaled in the backward pass: three matrix
products, as many as the plain version.

The cap keeps logits within ±cap, so that no single logit, and no exponential of one, can grow without bound. Training
is then stable at high learning rates and in bfloat16 (Gemma 2 and nanochat do the same).

Shapes: N rows (B · T positions), C width, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka import backends

IGNORED = -1  # a target that is not scored: padding, and the prompts of conversations
SPARSE_TARGETS = 0.9  # share of scored rows up to which only these pass the head
SMALL_VOCABULARY = 512  # up to here the plain version compiles to something as fast, and all its logits are small
CHUNK_ELEMENTS = {
    "cpu": 2**23,
    "cuda": 2**27,
}  # logits that exist at a time, few for memory and enough for fast products
# float32 intermediates that exist at a time without a kernel. On a CPU they stay in the core's cache. On a GPU each
# operation is a launch, and few rows would mean hundreds of thousands of launches.
SCRATCH_ELEMENTS = {"cpu": 2**17, "cuda": 2**27}
LARGEST_SAFE_CAP = 40.0  # exp(±cap), and its sum over any vocabulary, are normal float32 numbers


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """cap · tanh(logits / cap), in (−cap, cap); the fused versions below and in the kernel compute the same."""
    return cap * torch.tanh(logits / cap)


def capped_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, cap: float, reduction: str = "mean"
) -> Tensor:
    """Cross entropy in nats of softly capped logits: the `mean` of the scored rows, or `none`: all rows, (N,).

    hidden (N, C) is in the compute dtype, in which the matrix products run. The gradient of weight (V, C) is
    accumulated in float32 at least. A target of −1 is not scored: its loss and gradient are 0. The result is float32
    (float64 for float64 inputs). With gradients, `none` stores all (N, V) logits. Reinforcement learning uses that on
    short batches, to weight each row.
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction: got {reduction!r}, expected mean or none")
    if reduction == "mean" and not torch.compiler.is_compiling():
        # Fine-tuning scores a part of the rows: only those are multiplied. Compiled code keeps all rows, because their
        # number would be a new shape in every step. Below the limit, the copy costs less than the rows that it saves.
        scored = (targets != IGNORED).nonzero()[:, 0]
        if 0 < len(scored) < SPARSE_TARGETS * len(targets):
            hidden, targets = hidden[scored], targets[scored]
    needs_gradients = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    if weight.shape[0] <= SMALL_VOCABULARY or (reduction == "none" and needs_gradients):
        return plain_cross_entropy(hidden, weight, targets, cap=cap, reduction=reduction)
    if needs_gradients:
        return _mean(hidden, weight, targets, cap)[0]
    # Without a compiler the operator would do the same, and import the compiler, which takes seconds.
    losses = (_rows if torch.compiler.is_compiling() else _by_rows)(hidden, weight, targets, cap)
    return losses if reduction == "none" else losses.sum() / (targets != IGNORED).sum()


def plain_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, cap: float, reduction: str = "mean"
) -> Tensor:
    """`capped_cross_entropy` with all (N, V) logits at once: the oracle, and the faster way for a small vocabulary."""
    logits = F.linear(hidden, weight.to(hidden.dtype))
    logits = logits.to(_wide(logits.dtype))
    return F.cross_entropy(soft_cap(logits, cap), targets, ignore_index=IGNORED, reduction=reduction)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _by_rows(hidden: Tensor, weight: Tensor, targets: Tensor, cap: float) -> Tensor:
    return _by_chunks(hidden, weight, targets, cap, None)[0]


_rows = torch.library.custom_op("nanogka::cross_entropy_rows", _by_rows, mutates_args=())


@torch.library.custom_op("nanogka::cross_entropy_mean", mutates_args=())
def _mean(hidden: Tensor, weight: Tensor, targets: Tensor, cap: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean of the losses of scored rows, and its gradients of hidden and weight."""
    scored = (targets != IGNORED).sum().to(_wide(hidden.dtype))
    row_weight = scored.reciprocal().expand(targets.shape)
    losses, hidden_gradient, weight_gradient = _by_chunks(hidden, weight, targets, cap, row_weight)
    return losses.sum() / scored, hidden_gradient, weight_gradient


@_rows.register_fake
def _(hidden, weight, targets, cap):
    return hidden.new_empty(targets.shape, dtype=_wide(hidden.dtype))


@_mean.register_fake
def _(hidden, weight, targets, cap):
    gradients = torch.empty_like(hidden, memory_format=torch.contiguous_format), torch.empty_like(weight)
    return hidden.new_empty((), dtype=_wide(hidden.dtype)), *gradients


def _mean_setup(ctx, inputs, output):
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _mean_backward(ctx, gradient, *_):
    return *((saved * gradient).to(saved.dtype) for saved in ctx.saved_tensors), None, None


_mean.register_autograd(_mean_backward, setup_context=_mean_setup)


def _by_chunks(
    hidden: Tensor, weight: Tensor, targets: Tensor, cap: float, row_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (N,), and the gradients of Σ row_weight · losses (empty where there is no row_weight (N,))."""
    (rows, width), vocabulary = hidden.shape, weight.shape[0]
    targets = targets.contiguous()  # as the Triton kernel reads them
    losses = torch.empty(rows, dtype=_wide(hidden.dtype), device=hidden.device)
    if row_weight is None:
        hidden_gradient, weight_gradient = hidden.new_empty(0), weight.new_empty(0)
    else:
        hidden_gradient = torch.empty((rows, width), dtype=hidden.dtype, device=hidden.device)
        # A sum over many chunks: in 16 bits the later, small terms would be rounded away.
        weight_gradient = torch.zeros((vocabulary, width), dtype=_wide(weight.dtype), device=weight.device)
        row_weight = torch.where(targets == IGNORED, 0, row_weight.to(losses.dtype))
    weight_used = weight.to(hidden.dtype)
    step = max(1, _elements(CHUNK_ELEMENTS, hidden.device) // vocabulary)
    chunk = torch.empty((min(step, rows), vocabulary), dtype=hidden.dtype, device=hidden.device)
    score = backends.loss_kernel(hidden.device, hidden.dtype) or _score
    for start in range(0, rows, step):
        # One buffer serves every chunk: torch.mm writes logits into it, score turns them into ∂loss/∂logits in place.
        part = slice(start, min(start + step, rows))
        logits = torch.mm(hidden[part], weight_used.T, out=chunk[: part.stop - start])
        score(logits, targets[part], cap, losses[part], None if row_weight is None else row_weight[part])
        if row_weight is not None:  # l = h Wᵀ: ∂h = ∂l W, and ∂W = Σ over chunks of ∂lᵀ h, in float32 at least
            torch.mm(logits, weight_used, out=hidden_gradient[part])
            if logits.dtype == weight_gradient.dtype:
                weight_gradient.addmm_(logits.T, hidden[part])
            else:
                weight_gradient += logits.T @ hidden[part]
    return losses, hidden_gradient, weight_gradient.to(weight.dtype)


def _elements(table: dict[str, int], device: torch.device) -> int:
    return table.get(device.type, table["cuda"])


def _score(logits: Tensor, targets: Tensor, cap: float, losses: Tensor, row_weight: Tensor | None) -> None:
    """Fill `losses` (rows,) from `logits` (rows, V); with row weights, turn `logits` into their gradient in place."""
    vocabulary = logits.shape[1]
    step = min(max(1, _elements(SCRATCH_ELEMENTS, logits.device) // vocabulary), logits.shape[0])
    tanh, probs = (torch.empty((step, vocabulary), dtype=losses.dtype, device=logits.device) for _ in range(2))
    for start in range(0, logits.shape[0], step):
        part = slice(start, min(start + step, logits.shape[0]))
        rows = logits[part]
        t, p = tanh[: rows.shape[0]], probs[: rows.shape[0]]
        t.copy_(rows).div_(cap).tanh_()
        scored = targets[part] != IGNORED
        chosen = targets[part].clamp_min(0)[:, None]
        torch.mul(t, cap, out=p)  # the capped logits
        # exp(±cap) fits float32 for the usual caps; only larger ones need the maximum taken out first.
        largest = p.amax(1, keepdim=True) if cap > LARGEST_SAFE_CAP else t.new_zeros(())
        if cap > LARGEST_SAFE_CAP:
            p.sub_(largest)
        total = p.exp_().sum(1, keepdim=True)
        loss = (total.log() + largest - cap * t.gather(1, chosen))[:, 0]
        losses[part] = torch.where(scored, loss, 0)
        if row_weight is not None:
            # weight · (softmax − one-hot of the target), times the cap's derivative 1 − tanh²
            factor = row_weight[part][:, None]
            p.mul_(factor / total).scatter_add_(1, chosen, -factor)
            rows.copy_(p.addcmul_(p, t.square_(), value=-1))
