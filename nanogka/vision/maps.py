"""Attention of a vision transformer: A of every layer, caught while images go through.

Shapes: L layers.
"""

import timm.layers
import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from nanogka.vision.attention import ImageAttention


def attention_weights(layer: nn.Module, x: Tensor) -> Tensor:
    """A (B, H, T, T) of an attention layer, ours or timm's, from its input x (B, T, C), in the dtype of x."""
    if isinstance(layer, ImageAttention):
        return layer.weights(x)
    if not isinstance(layer, timm.layers.Attention):
        raise ValueError(f"attention: got {type(layer).__name__}, takes a layer of ours or timm's Attention")
    q, k, _ = layer.qkv(x).unflatten(-1, (3, layer.num_heads, layer.head_dim)).permute(2, 0, 3, 1, 4)
    return (layer.q_norm(q) @ layer.k_norm(k).transpose(-2, -1) * layer.scale).softmax(-1)


@torch.no_grad()
def capture_attention(model: VisionTransformer, images: Tensor) -> Tensor:
    """A (L, B, H, T, T), float32 on the CPU, of images (B, channels, height, width) as the model takes them."""
    caught: list[Tensor] = []

    def catch(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(attention_weights(layer, inputs[0].float()).cpu())

    handles = [block.attn.register_forward_pre_hook(catch) for block in model.blocks]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(caught)
