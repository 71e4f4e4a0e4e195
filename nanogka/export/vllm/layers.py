"""The token mixers in vLLM: what `remote_code/mixers_nanogka.py` computes, over vLLM's paged cache.

With tensor parallelism every rank computes the heads of its share, and the output projection adds the shares up.
Shapes: N tokens of all requests, C width, H heads of this rank, D features per head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm.model_executor.model_loader.weight_utils import sharded_weight_loader

from nanogka.export.remote_code.attention_nanogka import norm, rotate, vector

SCORE = 200.0  # of the position that is fetched; the others have 0, and exp(−200) is 0 in float32


@dataclass
class Tokens:
    """The tokens of a step, for all layers."""

    ids: Tensor  # (N,)
    positions: Tensor  # (N,)
    cos: Tensor  # (N, 1, D / 2) of the rotary angles
    sin: Tensor

    def features(self, x: Tensor) -> Tensor:
        """z = norm(rope(x)) of x (N, H, D)."""
        return norm(rotate(x.float(), self.cos, self.sin)).to(x.dtype)


def sharded(parameter: nn.Parameter, axis: int) -> nn.Parameter:
    """Let every rank load its part of `parameter` along `axis`."""
    parameter.weight_loader = sharded_weight_loader(axis)
    return parameter


class Fetch(nn.Module):
    """Vectors of earlier positions, fetched from the paged cache by attention itself.

    Position j stores the value x_j under the key onehot(j mod s + 1), s being the farthest step back. In the window of
    the last s + 1 positions each key occurs once, so the query 200 · onehot(i − t mod s + 1) returns x_{i − t} exactly.
    The layer itself has no state. Prefix caching, chunked prefill and speculative decoding therefore work as with
    any attention layer.
    """

    def __init__(self, steps: int, n_head: int, head_dim: int, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        if steps >= head_dim:
            raise ValueError(f"short_conv: got width {steps + 1}, expected at most the head size, {head_dim}")
        self.steps, self.head_dim = steps, head_dim
        self.attn = Attention(
            n_head * steps,  # several queries per value
            head_dim,
            1.0,
            num_kv_heads=n_head,
            cache_config=vllm_config.cache_config,
            per_layer_sliding_window=steps + 1,
            prefix=f"{prefix}.attn",
        )

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(N, H, s, D): x (N, H, D) of 1 to s positions before.

        Before a text starts the values mean nothing, except that position 0 with s = 1 gets its own value.
        """
        channels = torch.arange(self.head_dim, device=x.device)
        back = torch.arange(1, self.steps + 1, device=x.device)
        key = positions[:, None, None] % (self.steps + 1) == channels
        query = ((positions[:, None] - back) % (self.steps + 1))[:, None, :, None] == channels
        key = key.to(x.dtype).expand_as(x)
        query = (query.to(x.dtype) * SCORE).expand(-1, x.shape[1], -1, -1)
        return self.attn(query.flatten(1), key.flatten(1), x.flatten(1)).view(query.shape)


class ChannelAffine(nn.Module):
    """a ∘ x + b of features (N, H, D)."""

    def __init__(self, n_head: int, head_dim: int) -> None:
        super().__init__()
        self.scale, self.shift = sharded(vector(n_head, head_dim), 0), sharded(vector(n_head, head_dim), 0)

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, D) to (N, H, D)."""
        return x * self.scale.to(x.dtype) + self.shift.to(x.dtype)


class ShortConvolution(nn.Module):
    """Σ_t w_t ∘ x_{i−t}, each channel separately."""

    def __init__(self, width: int, n_head: int, head_dim: int, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.weight = sharded(nn.Parameter(torch.zeros(width, n_head * head_dim)), 1)
        self.fetch = Fetch(width - 1, n_head, head_dim, vllm_config, prefix) if width > 1 else None

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(N, H, D) to (N, H, D)."""
        taps = self.weight.to(x.dtype).unflatten(1, x.shape[1:])
        total = taps[0] * x
        if self.fetch is None:
            return total
        earlier = self.fetch(x, positions)
        for steps, tap in enumerate(taps[1:], 1):
            total = total + tap * earlier[:, :, steps - 1] * (positions >= steps)[:, None, None]
        return total


class ValueEmbedding(nn.Module):
    """A second embedding of each token, added to the values through a gate per head."""

    def __init__(self, config, n_head: int, head_dim: int) -> None:
        super().__init__()
        self.features, self.most = config.value_gate
        self.table = nn.Embedding(config.vocab_size, n_head * head_dim)
        self.gates = nn.Linear(self.features, n_head, bias=False)
        sharded(self.table.weight, 1)
        sharded(self.gates.weight, 0)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        """(N, H, D) for the values of tokens (N,) with activations x (N, C)."""
        gate = self.most * torch.sigmoid(self.gates(x[:, : self.features]))
        return gate[..., None] * self.table(ids).unflatten(1, (gate.shape[1], -1))


class Mixer(nn.Module):
    """Base of the token mixers. `option` holds the options of the layer."""

    scaling = 1.0  # of the scores q·k

    def __init__(self, vllm_config: VllmConfig, layer: int, prefix: str) -> None:
        super().__init__()
        self.config = config = vllm_config.model_config.hf_config
        self.option, C, D = config.mixers[layer], config.hidden_size, config.head_dim
        self.n_head = n_head = config.num_attention_heads // get_tensor_model_parallel_world_size()
        self.first = get_tensor_model_parallel_rank() * n_head * D  # channel of the first head of this rank
        self.c_proj = RowParallelLinear(C, C, bias=False, prefix=f"{prefix}.c_proj")
        self.value_embeddings = ValueEmbedding(config, n_head, D) if self.option.get("value_embeddings") else None
        affine = self.option.get("qk_affine")
        self.affine_q, self.affine_k = (ChannelAffine(n_head, D) if affine else None for _ in "qk")
        successor = self.option.get("successor_keys")
        self.fetch = Fetch(1, n_head, D, vllm_config, f"{prefix}.fetch") if successor else None
        window = self.option["window"]
        self.attn = Attention(
            n_head,
            D,
            self.scaling,
            cache_config=vllm_config.cache_config,
            per_layer_sliding_window=None if window is None else window + 1,  # vLLM counts the position itself
            prefix=f"{prefix}.attn",
        )

    def heads(self, x: Tensor) -> Tensor:
        """(N, H, D): the heads of this rank of activations x (N, C)."""
        share = x[:, self.first : self.first + self.n_head * self.config.head_dim]
        return share.unflatten(1, (self.n_head, -1))

    def operands(self, x: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v (N, H, D) of normalized activations x (N, C)."""
        raise NotImplementedError

    def divided(self, q: Tensor) -> Tensor:
        """q / σ² of q (N, H, D), so that attention with the scale 1 computes softmax(q·k / σ²)."""
        return (q.float() / torch.exp(2 * self.log_bandwidth)[:, None]).to(q.dtype)

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """(N, C) to (N, C)."""
        q, k, v = self.operands(x, tokens)
        if self.fetch is not None:  # a successor key is the key of the position before; position 0 keeps its own
            k = self.fetch(k, tokens.positions)[:, :, 0]
        if self.value_embeddings is not None:
            v = v + self.value_embeddings(tokens.ids, x)
        return self.c_proj(self.attn(q.flatten(1), k.flatten(1), v.flatten(1)))[0]


class GaussianMixer(Mixer):
    """Gaussian Kernel Attention: nanogka's mixer `gaussian` and, with the options, `successor`.

    vLLM's cache stores keys and values separately, so GKA's advantage of a half-size cache is lost here.
    """

    def __init__(self, vllm_config: VllmConfig, layer: int, prefix: str) -> None:
        super().__init__(vllm_config, layer, prefix)
        self.log_bandwidth = sharded(vector(self.n_head), 0)  # log σ

    def operands(self, x: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.heads(x)
        q = tokens.features(heads if self.affine_q is None else self.affine_q(heads))
        k = tokens.features(heads if self.affine_k is None else self.affine_k(heads))
        return self.divided(q), k, heads  # z_i·z_j / σ² = (z_i / σ²)·z_j


class SoftmaxMixer(Mixer):
    """softmax(q·k / √D) attention: nanogka's baseline `dot_product`, and `value_less`, which has no W_V."""

    def __init__(self, vllm_config: VllmConfig, layer: int, prefix: str) -> None:
        config = vllm_config.model_config.hf_config
        learned = config.mixers[layer].get("learned_temperature")
        self.scaling = 1.0 if learned else config.qk_scale**2 * config.head_dim**-0.5
        super().__init__(vllm_config, layer, prefix)
        self.log_bandwidth = sharded(vector(self.n_head), 0) if learned else None  # log √τ
        C, width = config.hidden_size, self.option["short_conv"]
        for name in "qkv":
            matrix = convolution = None
            if name != "v" or self.option["value_matrix"]:
                matrix = ColumnParallelLinear(C, C, bias=False, prefix=f"{prefix}.c_{name}")
            if width:
                place = f"{prefix}.conv_{name}"
                convolution = ShortConvolution(width, self.n_head, config.head_dim, vllm_config, place)
            self.add_module(f"c_{name}", matrix)
            self.add_module(f"conv_{name}", convolution)

    def operands(self, x: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        def project(matrix, convolution):
            y = self.heads(x) if matrix is None else matrix(x)[0].unflatten(1, (self.n_head, -1))
            return y if convolution is None else convolution(y, tokens.positions)

        q, k, v = (project(getattr(self, f"c_{name}"), getattr(self, f"conv_{name}")) for name in "qkv")
        if self.affine_q is not None:
            q, k = self.affine_q(q), self.affine_k(k)
        q, k = tokens.features(q), tokens.features(k)
        return q if self.log_bandwidth is None else self.divided(q), k, v


MIXERS = {"gaussian": GaussianMixer, "softmax": SoftmaxMixer}
