"""Attention layers for timm's VisionTransformer: the paper's two, and GKA with scales and biases.

There is no rotary embedding and no norm per head. The LayerNorm before the layer normalizes all C features of a token,
not the D features of one head. So keys differ in norm, and the kernel's factor exp(−‖k_j‖² / 2σ²) does not cancel.
`gaussian_attention` adds it to the logits.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogka.attention import gaussian_attention, gaussian_reference


class ImageAttention(nn.Module):
    """Base class: splits into heads, projects the output, and accepts the arguments that timm passes to attention."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
        norm_layer: type[nn.Module] | None = None,  # unused
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unsupported: object,  # qk_norm, scale_norm, attn_drop
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads: got {num_heads}, expected a divisor of the width {dim}")
        for name, value in unsupported.items():
            if value:
                raise ValueError(
                    f"{name}: got {value}, expected {type(value)(0)}: {type(self).__name__} does not support it"
                )
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self._project_inputs(dim, qkv_bias, {"device": device, "dtype": dtype})
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def _project_inputs(self, dim: int, bias: bool, place: dict) -> None:
        """Create the parameters that make queries, keys and values."""

    def attend(self, x: Tensor) -> Tensor:
        """The weighted sums of values, (B, T, H, D), for normalized activations x (B, T, C)."""

    def weights(self, x: Tensor) -> Tensor:
        """The attention matrix A (B, H, T, T) for activations x (B, T, C). For figures; training never builds it."""

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, C) as (B, T, H, D)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Mix normalized activations x (B, T, C); returns (B, T, C). Raises ValueError for a mask."""
        if attn_mask is not None or is_causal:
            raise ValueError("attn_mask, is_causal: got a mask, expected none: every token sees every token")
        return self.proj_drop(self.proj(self.attend(x).flatten(2)))


class GaussianAttention(ImageAttention):
    """Gaussian Kernel Attention: y = W_O · concat_h(A_h x_h) + b (the paper's equations 3 to 5 and 7).

        A_ij ∝ exp(−‖x_i − x_j‖² / 2σ²)      x_h: the head's slice of the normalized activations

    `qkv_bias` has no effect. σ starts at D^¼, so that τ = σ² is √D, the temperature of dot-product attention.
    """

    def _project_inputs(self, dim: int, bias: bool, place: dict) -> None:
        # Learned in log space: σ stays positive, and a step changes it by a factor.
        start = torch.full((self.num_heads,), math.log(self.head_dim) / 4, **place)
        self.log_bandwidth = nn.Parameter(start)  # timm's optimizers never decay a vector

    @property
    def bandwidth(self) -> Tensor:
        """(H,) σ of each head."""
        return self.log_bandwidth.exp()

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, each (B, T, C), from normalized activations x (B, T, C)."""
        return x, x

    def attend(self, x: Tensor) -> Tensor:
        # Under autocast LayerNorm returns float32. Casting all operands at once keeps ‖k‖² consistent with q·k;
        # casting them one by one inside the products would round the two differently.
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        q, k, v = map(self.heads, (*self.queries_and_keys(x), x))
        return gaussian_attention(q, k, v, self.bandwidth, causal=False)

    def weights(self, x: Tensor) -> Tensor:
        q, k = map(self.heads, self.queries_and_keys(x))
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[None, :, None].expand(*q.shape[:3], -1)
        return gaussian_reference(q, k, identity, self.bandwidth, causal=False).transpose(1, 2)


class AffineGaussianAttention(GaussianAttention):
    """GKA with queries a ∘ x + b and keys c ∘ x + d: per-channel scales and biases, as in the mixer `successor`."""

    def _project_inputs(self, dim: int, bias: bool, place: dict) -> None:
        super()._project_inputs(dim, bias, place)
        self.q_scale, self.k_scale = (nn.Parameter(torch.ones(dim, **place)) for _ in "qk")
        self.q_shift, self.k_shift = (nn.Parameter(torch.zeros(dim, **place)) for _ in "qk")

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c, d = (v.to(x.dtype) for v in (self.q_scale, self.q_shift, self.k_scale, self.k_shift))
        return a * x + b, c * x + d


class ValuelessAttention(ImageAttention):
    """The paper's VLT: softmax attention with query and key projections, but values v = x_h + b with a learned b."""

    def _project_inputs(self, dim: int, bias: bool, place: dict) -> None:
        self.qk = nn.Linear(dim, 2 * dim, bias=bias, **place)
        self.value_bias = nn.Parameter(torch.zeros(dim, **place)) if bias else None

    def attend(self, x: Tensor) -> Tensor:
        q, k = map(self.heads, self.qk(x).chunk(2, dim=-1))
        v = self.heads(x if self.value_bias is None else x + self.value_bias).to(q.dtype)
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        return y.transpose(1, 2)

    def weights(self, x: Tensor) -> Tensor:
        q, k = map(self.heads, self.qk(x).chunk(2, dim=-1))
        return (torch.einsum("bihd,bjhd->bhij", q, k) * self.head_dim**-0.5).softmax(-1)


def attention_weights(layer: nn.Module, x: Tensor) -> Tensor:
    """The attention matrix A (B, H, T, T) of one of our layers or timm's `Attention`, for its input x (B, T, C)."""
    if isinstance(layer, ImageAttention):
        return layer.weights(x)
    q, k, _ = layer.qkv(x).unflatten(-1, (3, layer.num_heads, layer.head_dim)).permute(2, 0, 3, 1, 4)
    return (layer.q_norm(q) @ layer.k_norm(k).transpose(-2, -1) * layer.scale).softmax(-1)
