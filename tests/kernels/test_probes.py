"""The probes that decide on a GPU whether a kernel is used: right ones pass, wrong ones are named."""

import pytest
import torch

pytest.importorskip("triton")

from nanogka.kernels import probes, triton_attention, triton_loss

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a CPU the interpreter computes


def test_our_kernels_pass():
    """In bfloat16; tests/test_dispatch.py has float32."""
    assert probes.probe_attention(DEVICE, torch.bfloat16) is None
    assert probes.probe_loss(DEVICE, torch.bfloat16) is None


def wrong_when_norms_are_equal(*t, window, equal_key_norms, **options):
    y = probes._literal_attention(*t, window=window, equal_key_norms=equal_key_norms, **options)
    return 1.01 * y if equal_key_norms else y


def window_off_by_one(*t, window, **options):
    return probes._literal_attention(*t, window=None if window is None else window + 1, **options)


def without_the_component_along_k(q, k, *t, **options):
    """Its gradient of k is what the mode of equal norms promises, and wrong otherwise."""
    k = k * 1.0
    k.register_hook(lambda g: g - k * (g * k).sum(-1, keepdim=True) / k.square().sum(-1, keepdim=True))
    return probes._literal_attention(q, k, *t, **options)


@pytest.mark.parametrize(
    "attention, found",
    [
        (wrong_when_norms_are_equal, "y with window None, keys of equal norms"),
        (window_off_by_one, "y with window 17, keys of equal norms"),
        (without_the_component_along_k, "∂k with window None, keys of any norms"),
    ],
)
def test_a_kernel_that_is_wrong_somewhere_is_found(attention, found, monkeypatch):
    monkeypatch.setattr(triton_attention, "triton_attention", attention)
    assert probes.probe_attention(torch.device("cpu"), torch.float32).startswith(found)


def test_a_loss_kernel_that_is_wrong_is_found(monkeypatch):
    monkeypatch.setattr(triton_loss, "score", lambda logits, targets, cap, losses, weights: losses.fill_(1.0))
    assert probes.probe_loss(DEVICE, torch.float32) is not None


def test_float32_on_a_gpu_is_left_to_torch_without_compiling_anything():
    assert "spill" in probes.probe_attention(torch.device("cuda"), torch.float32)
