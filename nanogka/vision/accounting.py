"""Parameters and FLOPs of a vision transformer, counted as the paper's tables do.

FLOPs of one image, forward: 2 × the multiply-adds of every matrix (patch embedding, blocks, head) and of attention's
two products, T × T × C each. Norms, softmax, biases and the kernel's exponent are not counted.
"""

from dataclasses import asdict, dataclass

import timm
import torch
from timm.models import VisionTransformer
from torch import nn

from nanogka.common.formatting import MISSING, number, plain_table, scientific
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
ASSUMED_MFU = 0.35  # share of the hardware's peak that training a transformer of this size is expected to reach
TRAINING_PASSES = 3  # forward, and twice as much backward
IMAGENET_IMAGES = 1_281_167


@dataclass(frozen=True)
class ImageAccounting:
    """Costs of a model."""

    parameters: int  # in all
    attention: int  # of the attention layers, without σ
    bandwidths: int
    mlp: int
    tokens: int
    flops: int  # of an image


def count_image_model(model: VisionTransformer) -> ImageAccounting:
    tokens = model.patch_embed.num_patches + model.num_prefix_tokens
    attention = mlp = bandwidths = 0
    products = model.patch_embed.num_patches * model.patch_embed.proj.weight.numel()
    products += sum(m.weight.numel() for m in model.head.modules() if isinstance(m, nn.Linear))
    for block in model.blocks:
        sigma = sum(p.numel() for name, p in block.attn.named_parameters() if name == "log_bandwidth")
        bandwidths += sigma
        attention += sum(p.numel() for p in block.attn.parameters()) - sigma
        mlp += sum(p.numel() for p in block.mlp.parameters())
        products += tokens * sum(m.weight.numel() for m in block.modules() if isinstance(m, nn.Linear))
        products += 2 * tokens**2 * model.embed_dim
    total = sum(p.numel() for p in model.parameters())
    return ImageAccounting(total, attention, bandwidths, mlp, tokens, 2 * products)


def collect_costs(sizes: tuple[str, ...] = ("tiny", "small", "base"), **options: object) -> dict[str, dict]:
    """{model: its costs and the paper's top-1 accuracy or None}; `options`: of `timm.create_model`, as num_classes."""
    costs = {}
    for name in (model_name(size, attention) for size in sizes for attention in ("", *filter(None, ATTENTION))):
        with torch.device("meta"):
            model = timm.create_model(name, **options)
        costs[name] = {**asdict(count_image_model(model)), "paper_top1": PAPER_TOP1.get(name)}
    return costs


def plan_imagenet(costs: dict[str, dict], epochs: int, peak_flops: float) -> dict[str, dict]:
    """{model: cost of training it on ImageNet-1k}, from `collect_costs`.

    `flops` in all, `hours` of one device with such a peak in FLOP/s at `ASSUMED_MFU`, and `images_per_second` that
    reading and augmentation must sustain.
    """
    images, plan = IMAGENET_IMAGES * epochs, {}
    for name, cost in costs.items():
        flops = TRAINING_PASSES * cost["flops"] * images
        seconds = flops / (ASSUMED_MFU * peak_flops)
        plan[name] = {"flops": flops, "hours": seconds / 3600, "images_per_second": images / seconds}
    return plan


def format_costs(costs: dict[str, dict], plan: dict[str, dict], title: str) -> str:
    """The results of `collect_costs` and `plan_imagenet` as aligned tables, `title` between them."""
    rows = [["", "parameters", "attention", "σ", "MLP", "tokens", "FLOPs", "top-1 in the paper"]]
    for name, c in costs.items():
        top1 = MISSING if c["paper_top1"] is None else f"{c['paper_top1']:.2f}"
        attention, mlp = (f"{c[part] / 1e6:.2f} M" for part in ("attention", "mlp"))
        sizes = [number(c["parameters"]), attention, f"{c['bandwidths']}", mlp, f"{c['tokens']}"]
        rows.append([name, *sizes, f"{c['flops'] / 1e9:.2f} G", top1])
    planned = [["", "FLOPs", "hours", "hours with 8", "images / s"]]
    for name, one in plan.items():
        hours = [f"{one['hours']:.1f}", f"{one['hours'] / 8:.1f}"]
        planned.append([name, scientific(one["flops"]), *hours, number(one["images_per_second"], 0)])
    return f"{plain_table(rows)}\n\n{title}\n{plain_table(planned)}"
