"""Figures of attention: captured weights, distances between patches, and a model without a square of patches."""

import numpy as np
import pytest
import torch

timm = pytest.importorskip("timm")

import nanogka.vision.models  # noqa: E402, F401 (registers the names)
from nanogka.vision.attention import attention_weights  # noqa: E402
from nanogka.vision.figures import capture_attention, distance_profiles, draw_maps  # noqa: E402

MODEL = "deit_micro_gka_patch4_28"


def test_mean_weight_by_distance():
    side, means = 3, torch.zeros(1, 10, 10)
    for i in range(9):
        for j in range(9):
            means[0, 1 + i, 1 + j] = round(np.hypot(i // side - j // side, i % side - j % side))
    distances, profiles = distance_profiles(means)
    np.testing.assert_array_equal(profiles[0], distances)
    assert distances.tolist() == [0, 1, 2, 3]


def test_the_weights_of_every_layer_are_captured_and_drawn(tmp_path):
    model = timm.create_model(MODEL, img_size=12).eval()
    images = torch.randn(2, 1, 12, 12)
    weights = capture_attention(model, images)
    assert weights.shape == (4, 2, 4, 10, 10)
    tokens = model._pos_embed(model.patch_embed(images))
    first = attention_weights(model.blocks[0].attn, model.blocks[0].norm1(tokens))
    torch.testing.assert_close(weights[0], first)
    assert not model.blocks[0].attn._forward_pre_hooks
    drawn = draw_maps(model, weights[:, 0], np.zeros((12, 12, 3)), "x", tmp_path)
    assert {path.stem for path in drawn} == {"cls", "patches", "rollout", "distance", "bandwidth"} | {
        f"layer_0{layer}" for layer in range(4)
    }


def test_a_model_without_a_square_of_patches_is_refused(tmp_path):
    model = timm.create_model(MODEL, img_size=(8, 4)).eval()
    with pytest.raises(ValueError, match="got 3 tokens"):
        draw_maps(model, torch.zeros(4, 4, 3, 3), np.zeros((8, 4, 3)), "x", tmp_path)
