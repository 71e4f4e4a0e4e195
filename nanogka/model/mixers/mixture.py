"""Gaussian Mixture Attention (arXiv 2606.18283): positions write into K slots and read from them; linear in length.

A head's queries and keys are routed to K learned Gaussian components, see `nanogka.attention.mixture`. Three ways to
make their features (`mixture_routing`), each RMS-normed and none rotated, so that nothing depends on the position:

* projected: W_q x and W_k x, of `mixture_routing_dim` features per head; values W_v x. The paper's form;
* features: the first features of the head itself, as query and key; values are the head's features. No projection;
* successor: as features, but position j is found by the features of position j − 1: what followed them is read.

A layer sees its whole past whatever the window pattern says: its memory costs the same with it as without.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanogka.attention import attention_mask
from nanogka.attention.mixture import FLOOR, Components, chunk_size, mixture_attention, responsibilities
from nanogka.attention.rotary import norm
from nanogka.model.config import GPTConfig
from nanogka.model.kv_cache import LayerCache
from nanogka.model.layers import (
    AttentionInputs,
    Initializer,
    Linear,
    Mixer,
    ParameterGroup,
    TokenContext,
    shift_with_history,
)
from nanogka.model.spec import Option

ROUTINGS = ("projected", "features", "successor")
MOST_COMPONENTS = 4096  # the memory is K × (D + 1) per head and chunk of positions
COMPONENTS = ParameterGroup("components", row="bandwidth")
SHARPNESS = 2.0  # of the first precisions: a feature's log densities differ by about 1.2 times this between components


@dataclass(frozen=True)
class MixtureInputs(AttentionInputs):
    """Responsibilities as q and k (B, T, H, K). An attention weight is q·k; the logit is its logarithm."""

    def logits(self) -> Tensor:
        affinity = torch.einsum("bihk,bjhk->bhij", self.q, self.k + FLOOR)
        positions = torch.arange(affinity.shape[-1], device=affinity.device)
        return affinity.log().masked_fill(~attention_mask(positions, positions, None), -torch.inf)


class GaussianMixtureMixer(Mixer):
    """y = W_O · concat_h(Σ_j a_ij v_j / Σ_j a_ij), j ≤ i, a_ij the overlap of i's and j's responsibilities."""

    name, letter = "mixture", "M"
    label, color = "Gaussian Mixture Attention", "#882255"
    kv_tensors_per_token = 0
    saved_activations = 11.5
    exported = "mixture"
    options = {
        "mixture_components": Option(64, "number of Gaussian components per head", ge=1, le=MOST_COMPONENTS),
        "mixture_routing": Option("projected", "source of the routing features of a mixture layer", ROUTINGS),
        "mixture_routing_dim": Option(
            None,
            "number of routing features per head (default: 16 if projected, else the head size)",
            ge=1,
            kind=int,
            at_most="head_dim",
        ),
    }

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.window = None  # a memory of K slots holds any past, so a window would save nothing
        self.routing = self.option("mixture_routing")
        usual = min(16, self.head_dim) if self.routing == "projected" else self.head_dim
        d = self.option("mixture_routing_dim") or usual
        C, H, K = config.n_embd, config.n_head, self.option("mixture_components")
        self.means = nn.Parameter(torch.empty(H, K, d))
        self.log_precisions = nn.Parameter(torch.empty(H, K, d))
        self.log_weights = nn.Parameter(torch.empty(H, K))
        if self.routing == "projected":
            self.c_q, self.c_k, self.c_v = Linear(C, H * d), Linear(C, H * d), Linear(C, C)
        self.c_proj = Linear(C, C)
        self.register_buffer("component_use", torch.zeros(H, K), persistent=False)

    def init_weights(self, init: Initializer) -> None:
        init.normal(self.means, 1.0)
        # Between features and means of norm √d, squared distances spread as √d over the components.
        self.log_precisions.fill_(math.log(SHARPNESS) - math.log(self.means.shape[-1]) / 2)
        self.log_weights.zero_()
        if self.routing == "projected":
            for matrix in (self.c_q, self.c_k, self.c_v):
                init.uniform(matrix.weight, (3 / self.config.n_embd) ** 0.5)  # standard deviation 1 / √C
        self.c_proj.weight.zero_()

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        return COMPONENTS if name in Components._fields else super().parameter_group(name, parameter)

    def flops_per_token(self) -> int:
        """Three times the products of forward: densities of q and k, affinities in a chunk, writes and reads."""
        H, K, d = self.means.shape
        chunk, columns = min(chunk_size(K), self.config.sequence_len), self.head_dim + 1
        routed = 1 if self.routing == "features" else 2
        return 3 * 2 * H * (routed * 2 * d * K + chunk * (K + columns) + 2 * K * columns)

    def state_bytes(self, element_bytes: int) -> int:
        memory = 4 * self.log_weights.numel() * (self.head_dim + 1)  # float32
        # Successor keys are computed from the routing features of the position before.
        return memory + (self.means[:, 0].numel() * element_bytes if self.routing == "successor" else 0)

    def exported_options(self) -> dict[str, object]:
        return super().exported_options() | {"mixture_routing_dim": self.means.shape[-1]}

    @property
    def components(self) -> Components:
        return Components(self.means, self.log_precisions, self.log_weights)

    def observations(self) -> dict[str, Tensor]:
        """Use of the components by the keys of the last micro-batch.

        `component_entropy`, in nats, is that of the mean responsibilities: log K where all are used alike.
        `dead_components` is how many collect less than a hundredth of an even share.
        """
        use = self.component_use.float()  # Apple's GPUs have no float64
        entropy = torch.special.entr(use).sum(-1)
        return {"component_entropy": entropy, "dead_components": (use < 0.01 / use.shape[-1]).sum(-1)}

    def routes(
        self, x: Tensor, context: TokenContext, cache: LayerCache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Routing features of queries and keys (B, T, H, d), one tensor if they are the same; values (B, T, H, D)."""
        heads, d = (self.n_head, -1), self.means.shape[-1]
        if self.routing == "projected":
            q, k = (norm(matrix(x).unflatten(-1, heads)) for matrix in (self.c_q, self.c_k))
            return q, k, self.split_heads(self.c_v(x))
        v = self.split_heads(x)
        q = norm(v[..., :d])
        if self.routing == "features":
            return q, q, v
        return q, shift_with_history(q, context, cache, "before"), v

    def attention_inputs(self, x: Tensor, context: TokenContext, cache: LayerCache | None = None) -> MixtureInputs:
        q, k, v = self.routes(x, context)
        return MixtureInputs(responsibilities(q, self.components), responsibilities(k, self.components), v)

    def forward(self, x: Tensor, context: TokenContext, cache: LayerCache | None = None) -> Tensor:
        q, k, v = self.routes(x, context, cache)
        if cache is None:
            y, memory = mixture_attention(q, k, v, self.components)
            if torch.is_grad_enabled():
                # The last column of the memory counts what each component has collected: no extra pass over the keys.
                written = memory.detach()[..., -1].mean(0)
                self.component_use.copy_(written / written.sum(-1, keepdim=True))
        else:
            empty = v.new_zeros(len(v), *self.log_weights.shape, self.head_dim + 1, dtype=torch.float32)
            memory = cache.state("memory", empty)
            y, memory = mixture_attention(q, k, v, self.components, memory, context.valid)
            cache.set_state("memory", memory)
        return self.c_proj(y.flatten(2))
