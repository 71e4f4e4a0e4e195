"""Figures of attention: distances between patches, and the error for a model without a square of patches."""

import numpy as np
import pytest
import torch

timm = pytest.importorskip("timm")

import nanogka.vision.models  # noqa: E402, F401 (timm then knows their names)
from nanogka.vision.figures import distance_profiles, draw_maps  # noqa: E402
from nanogka.vision.maps import attention_weights, capture_attention  # noqa: E402


def test_weight_by_distance_is_that_of_patches_so_far_apart():
    side, means = 3, torch.zeros(1, 10, 10)
    for i in range(9):
        for j in range(9):
            means[0, 1 + i, 1 + j] = round(np.hypot(i // side - j // side, i % side - j % side))
    distances, profiles = distance_profiles(means)
    np.testing.assert_array_equal(profiles[0], distances)
    assert distances.tolist() == [0, 1, 2, 3]


def test_the_weights_of_every_layer_are_caught_where_they_act():
    model = timm.create_model("deit_micro_gka_patch2_8").eval()
    images = torch.randn(2, 1, 8, 8)
    weights = capture_attention(model, images)
    assert weights.shape == (4, 2, 4, 17, 17)
    tokens = model._pos_embed(model.patch_embed(images))
    first = attention_weights(model.blocks[0].attn, model.blocks[0].norm1(tokens))
    torch.testing.assert_close(weights[0], first)
    assert not model.blocks[0].attn._forward_pre_hooks


def test_a_model_without_a_square_of_patches_is_refused(tmp_path):
    model = timm.create_model("deit_micro_gka_patch2_8", img_size=(8, 4)).eval()
    with pytest.raises(ValueError, match=r"got a model of 9 tokens, expected \[CLS\] and a square"):
        draw_maps(model, torch.zeros(4, 4, 9, 9), np.zeros((8, 4, 3)), "x", tmp_path)
