"""Parameters and FLOPs of vision transformers, counted as in the paper's tables, and the cost of ImageNet.

FLOPs are of one image, forward: 2 × the multiply-adds of every matrix (patch embedding, blocks, head) and of the two
T × T × C products of attention. Norms, softmax, biases and the kernel's exponential are not counted.
"""

import timm
import torch
from timm.models import VisionTransformer
from torch import nn

from nanogka.common.formatting import markdown_table, number, scientific
from nanogka.common.runtime import DATA_SHEET_MFU
from nanogka.vision.models import ATTENTION, model_name

PAPER_TOP1 = {
    "deit_tiny_patch16_224": 72.2,
    "deit_tiny_gka_patch16_224": 71.54,
    "deit_tiny_vlt_patch16_224": 73.5,
    "deit_small_patch16_224": 79.8,
    "deit_small_gka_patch16_224": 78.23,
    "deit_base_patch16_224": 81.8,
    "deit_base_gka_patch16_224": 80.3,
}
TRAINING_PASSES = 3  # one forward, and a backward pass of twice its cost
IMAGENET_IMAGES, EPOCHS = 1_281_167, 300


def image_costs(model: VisionTransformer) -> dict[str, int]:
    """`parameters` in total, `attention` (without σ), `bandwidths` and `mlp`; `tokens` and `flops` per image."""
    tokens = model.patch_embed.num_patches + model.num_prefix_tokens
    attention = mlp = bandwidths = 0
    products = model.patch_embed.num_patches * model.patch_embed.proj.weight.numel()
    products += sum(m.weight.numel() for m in model.head.modules() if isinstance(m, nn.Linear))
    # Every token passes every matrix of a block; patches alone pass the embedding, [CLS] alone the head.
    for block in model.blocks:
        sigma = sum(p.numel() for name, p in block.attn.named_parameters() if name == "log_bandwidth")
        bandwidths += sigma
        attention += sum(p.numel() for p in block.attn.parameters()) - sigma
        mlp += sum(p.numel() for p in block.mlp.parameters())
        products += tokens * sum(m.weight.numel() for m in block.modules() if isinstance(m, nn.Linear))
        products += 2 * tokens**2 * model.embed_dim  # q·k and A·v
    parameters = sum(p.numel() for p in model.parameters())
    costs = {"parameters": parameters, "attention": attention, "bandwidths": bandwidths, "mlp": mlp}
    return costs | {"tokens": tokens, "flops": 2 * products}


def table_costs(sizes: tuple[str, ...] = ("tiny", "small", "base")) -> dict[str, dict]:
    """{model name: its costs and the paper's top-1 accuracy or None}. Allocates no weights."""
    costs = {}
    for name in (model_name(size, attention) for size in sizes for attention in ("", *filter(None, ATTENTION))):
        with torch.device("meta"):
            model = timm.create_model(name)
        costs[name] = image_costs(model) | {"paper_top1": PAPER_TOP1.get(name)}
    return costs


def imagenet_hours(flops: int, peak_flops: float) -> float:
    """Hours to train on ImageNet-1k for 300 epochs on one device with this peak, in FLOP/s, at `DATA_SHEET_MFU`."""
    return TRAINING_PASSES * flops * IMAGENET_IMAGES * EPOCHS / (DATA_SHEET_MFU * peak_flops) / 3600


def format_costs(costs: dict[str, dict], peak_flops: float) -> str:
    """`table_costs` as a table, with the training costs on ImageNet-1k."""
    header = ["model", "parameters", "attention", "σ", "MLP", "GFLOPs", "top-1 in the paper", "training FLOPs", "hours"]
    rows = []
    for name, c in costs.items():
        sizes = [number(c["parameters"]), f"{c['attention'] / 1e6:.2f} M", c["bandwidths"], f"{c['mlp'] / 1e6:.2f} M"]
        training = TRAINING_PASSES * c["flops"] * IMAGENET_IMAGES * EPOCHS
        plan = [scientific(training), f"{imagenet_hours(c['flops'], peak_flops):.1f}"]
        rows.append([name, *sizes, f"{c['flops'] / 1e9:.2f}", number(c["paper_top1"], 2), *plan])
    return markdown_table(header, rows)
