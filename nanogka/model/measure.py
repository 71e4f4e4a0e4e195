"""Measure what the mixers of a model declare: FLOPs, and the activations that they keep for the backward pass."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nanogka.attention.rotary import norm
from nanogka.model.config import GPTConfig
from nanogka.model.gpt import GPT, Block
from nanogka.model.layers import TokenContext

FLOPS_TOLERANCE = 0.02  # between declared and counted FLOPs
MEASURED_POSITIONS = 256  # whole chunks of a mixture layer, so that no padding is counted


@dataclass(frozen=True)
class MeasuredMixer:
    """Costs of one layer's mixer as declared and as measured, per token."""

    mixer: str
    layer: int
    declared_flops: int
    flops: float  # of the products of a forward pass, times 3
    declared_saved: float | None  # C-element tensors that the whole layer keeps for the backward pass, compiled
    saved: float  # the same without a compiler, in float32

    @property
    def deviation(self) -> float:
        """Counted FLOPs / declared FLOPs − 1."""
        return self.flops / self.declared_flops - 1 if self.declared_flops else float(self.flops > 0)


def measure_mixers(config: GPTConfig) -> list[MeasuredMixer]:
    """Measure two layers of each mixer of `config` on a CPU: few heads of the same size, 256 positions.

    FLOPs are those of matrix products and of torch's attention in a forward pass, times 3 as in `model_costs`.
    Element-wise work counts nowhere, as in the declared number. The layers see all positions: with a window, how many
    masked pairs are computed depends on the kernel, not on the mixer.
    """
    # Two layers of each, one after the other, because alternate layers have value embeddings.
    pattern = "".join(2 * letter for letter in dict.fromkeys(mixer.letter for mixer in config.mixers()))
    heads = min(config.n_head, max(2, -(-32 // config.head_dim)))  # no network is narrower than 32
    shape = {"n_head": heads, "n_embd": heads * config.head_dim, "n_layer": len(pattern), "mixer_pattern": pattern}
    small = replace(config, **shape, sequence_len=MEASURED_POSITIONS, vocab_size=64, window_pattern="L")
    model = GPT(small)
    ids = torch.arange(MEASURED_POSITIONS)[None] % small.vocab_size
    context = TokenContext(ids, (model.cos, model.sin))
    x = torch.randn(1, MEASURED_POSITIONS, small.n_embd, generator=torch.Generator().manual_seed(0))
    found = []
    for layer, block in enumerate(model.blocks):
        mixer = block.mixer
        parameters = mixer.named_parameters()
        multiplying = sum(p.numel() for name, p in parameters if mixer.parameter_group(name, p).is_matmul)
        declared = 6 * multiplying + mixer.flops_per_token()
        counted = 3 * forward_flops(lambda: mixer(norm(x), context)) / MEASURED_POSITIONS  # noqa: B023
        saved = saved_elements(block, x, context) / x.numel()
        found.append(MeasuredMixer(mixer.name, layer, declared, counted, mixer.saved_activations, saved))
    return found


def check_flops(config: GPTConfig) -> None:
    """Raise ValueError if a mixer's declared FLOPs and its counted ones are more than 2 % apart."""
    for one in measure_mixers(config):
        if abs(one.deviation) > FLOPS_TOLERANCE:
            raise ValueError(
                f"mixer {one.mixer}, layer {one.layer}: declares {one.declared_flops:,} FLOPs per token, but "
                f"{one.flops:,.0f} were counted ({one.deviation:+.1%}); expected at most {FLOPS_TOLERANCE:.0%} apart. "
                "Correct `flops_per_token`, or give the formula of an operator that torch does not count "
                "(torch.utils.flop_counter.register_flop_formula)"
            )


def forward_flops(forward: Callable[[], Tensor]) -> int:
    """FLOPs that torch's counter finds in a forward pass on a CPU."""
    from torch.utils import flop_counter  # takes a while to load

    def attention(q: torch.Size, k: torch.Size, v: torch.Size, *_: object, **__: object) -> int:
        return flop_counter.sdpa_flop_count(q, k, v)

    # The counter knows the fused kernels of GPUs only.
    fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
    with torch.no_grad(), flop_counter.FlopCounterMode(display=False, custom_mapping=fused) as counter:
        forward()
    return counter.get_total_flops()


def saved_elements(block: Block, x: Tensor, context: TokenContext) -> int:
    """Elements of the activations that a layer keeps for its backward pass. Weights and tables are not activations."""
    known = {t.untyped_storage().data_ptr() for t in (*block.parameters(), *context.cos_sin, context.ids)}
    kept: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in known:
            kept[t.untyped_storage().data_ptr()] = t  # views of one tensor are kept once
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = block(x.requires_grad_(), context)  # noqa: F841 until the end: what is freed would give its address away
    return sum(t.untyped_storage().nbytes() // t.element_size() for t in kept.values())
