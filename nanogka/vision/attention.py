"""The paper's two attention layers for images and one of ours, as layers of timm's VisionTransformer.

There is neither rotary nor a norm per head. LayerNorm in front of the layer gives all C features of a token one norm
(up to its gain), the D of a head not. So keys have different norms, and the kernel's factor exp(−‖k_j‖² / 2σ²) does not
cancel: `gaussian_attention` carries it as a bias of each key.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogka.attention import gaussian_attention, gaussian_reference


class ImageAttention(nn.Module):
    """Heads, output projection, and the arguments that timm hands to every attention layer."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
        norm_layer: type[nn.Module] | None = None,  # not used
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **lacking: object,  # qk_norm, scale_norm, attn_drop
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads: got {num_heads}, expected a divisor of the width {dim}")
        for name, value in lacking.items():
            if value:
                raise ValueError(f"{name}: got {value}, expected {type(value)(0)}: {type(self).__name__} has none")
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self._project_inputs(dim, qkv_bias, {"device": device, "dtype": dtype})
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def _project_inputs(self, dim: int, bias: bool, place: dict) -> None: ...

    def attend(self, x: Tensor) -> Tensor:
        """(B, T, H, D): what each token takes of all, from normalized activations x (B, T, C)."""

    def weights(self, x: Tensor) -> Tensor:
        """A (B, H, T, T), row-stochastic, of normalized activations x (B, T, C): for looking at, not for training."""

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(B, T, C) of normalized activations x (B, T, C). Raises ValueError if asked for a mask."""
        if attn_mask is not None or is_causal:
            raise ValueError("attn_mask, is_causal: got a mask, expected none: every token sees every token")
        return self.proj_drop(self.proj(self.attend(x).flatten(2)))


class GaussianAttention(ImageAttention):
    """Gaussian Kernel Attention: y = W_O · concat_h(A_h x_h) + b, A_h the row-normalized kernel of the distances.

        A_ij ∝ exp(−‖x_i − x_j‖² / 2σ²) within a head, x_h the head's part of the normalized activations

    (the paper's equations 3 to 5 and 7). `qkv_bias` has nothing to act on. σ begins at D^¼: the temperature √D of
    ordinary attention on features of norm √D.
    """

    def _project_inputs(self, dim: int, bias: bool, place: dict) -> None:
        start = torch.full((self.num_heads,), math.log(self.head_dim) / 4, **place)
        self.log_bandwidth = nn.Parameter(start)  # a vector: timm's optimizers decay no vectors

    @property
    def bandwidth(self) -> Tensor:
        return self.log_bandwidth.exp()

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both (B, T, C), of normalized activations x (B, T, C)."""
        return x, x

    def attend(self, x: Tensor) -> Tensor:
        # LayerNorm gives float32 under autocast, which would round the bias of the keys where no rest can make it good.
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        q, k, v = map(self.heads, (*self.queries_and_keys(x), x))
        return gaussian_attention(q, k, v, self.bandwidth, causal=False)

    def weights(self, x: Tensor) -> Tensor:
        q, k = map(self.heads, self.queries_and_keys(x))
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[None, :, None].expand(*q.shape[:3], -1)
        return gaussian_reference(q, k, identity, self.bandwidth, causal=False).transpose(1, 2)


class AffineGaussianAttention(GaussianAttention):
    """GKA with queries a ∘ x + b and keys c ∘ x + d: scales and shifts per channel, as the mixer `successor`."""

    def _project_inputs(self, dim: int, bias: bool, place: dict) -> None:
        super()._project_inputs(dim, bias, place)
        self.q_scale, self.k_scale = (nn.Parameter(torch.ones(dim, **place)) for _ in "qk")
        self.q_shift, self.k_shift = (nn.Parameter(torch.zeros(dim, **place)) for _ in "qk")

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c, d = (v.to(x.dtype) for v in (self.q_scale, self.q_shift, self.k_scale, self.k_shift))
        return a * x + b, c * x + d


class ValuelessAttention(ImageAttention):
    """Softmax attention with queries and keys but without a value projection: v = x_h + b, b learned."""

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
