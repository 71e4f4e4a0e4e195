"""The models: the paper's table, what timm builds from their names, and which parameters decay."""

import pytest
import torch

timm = pytest.importorskip("timm")

from timm.optim import create_optimizer_v2  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from nanogka.vision.accounting import imagenet_hours, table_costs  # noqa: E402

# 224², patch 16, 1000 classes: parameters; attention in millions, σ, MLP in millions, 10⁹ FLOPs and top-1 as printed
PAPER = {
    "deit_tiny_patch16_224": (5_717_416, 1.78, 0, 3.55, 2.51, 72.2),
    "deit_tiny_gka_patch16_224": (4_383_436, 0.44, 36, 3.55, 1.98, 71.54),
    "deit_tiny_vlt_patch16_224": (5_275_048, 1.34, 0, 3.55, 2.33, 73.5),
    "deit_small_patch16_224": (22_050_664, 7.10, 0, 14.18, 9.20, 79.8),
    "deit_small_gka_patch16_224": (16_728_496, 1.77, 72, 14.18, 7.11, 78.23),
    "deit_base_patch16_224": (86_567_656, 28.35, 0, 56.67, 35.13, 81.8),
    "deit_base_gka_patch16_224": (65_306_488, 7.09, 144, 56.67, 26.76, 80.3),
}


def test_costs_are_those_of_the_papers_table():
    costs = table_costs()
    for name, (parameters, attention, bandwidths, mlp, flops, top1) in PAPER.items():
        cost = costs[name]
        assert (cost["parameters"], cost["bandwidths"], cost["paper_top1"]) == (parameters, bandwidths, top1)
        shown = [round(cost["attention"] / 1e6, 2), round(cost["mlp"] / 1e6, 2), round(cost["flops"] / 1e9, 2)]
        assert shown == [attention, mlp, flops]
    assert imagenet_hours(10**9, 989e12) == pytest.approx(3e9 * 1_281_167 * 300 / (0.4 * 989e12) / 3600)


def test_flops_are_those_that_torch_counts():
    with torch.device("meta"):
        model = timm.create_model("deit_micro_patch4_28").eval()
        for block in model.blocks:
            block.attn.fused_attn = False  # the counter knows the single products
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 1, 28, 28))
    assert counter.get_total_flops() == table_costs(("micro",))["deit_micro_patch4_28"]["flops"]


def test_timm_builds_them_at_any_size():
    name = "deit_tiny_gka_patch16_224"
    small = {"img_size": 48, "embed_dim": 24, "depth": 2, "in_chans": 1}
    model = timm.create_model(name, **small, num_classes=7, drop_path_rate=0.5)
    assert model(torch.zeros(2, 1, 48, 48)).shape == (2, 7)
    assert model.blocks[1].drop_path1.drop_prob == 0.5
    features = timm.create_model(name, **small, features_only=True, out_indices=(0, 1))
    assert [f.shape for f in features(torch.zeros(2, 1, 48, 48))] == [(2, 24, 3, 3)] * 2
    assert name in timm.list_models("deit_*")
    assert timm.get_pretrained_cfg(name).input_size == (3, 224, 224)


def test_no_bandwidth_decays():
    model = timm.create_model("deit_micro_gka_patch4_28")
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in decayed}
    assert "blocks.0.attn.proj.weight" in names
    assert not [name for name in names if "bandwidth" in name or name in ("pos_embed", "cls_token")]
