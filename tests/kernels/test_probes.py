"""The probes that decide on a GPU whether a kernel is used: right ones pass, wrong ones are named."""

import pytest
import torch

pytest.importorskip("triton")

from nanogka.kernels import probes, triton_attention, triton_loss

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a CPU the interpreter computes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_kernels_pass(dtype):
    assert probes.probe_attention(DEVICE, dtype) is None
    assert probes.probe_loss(DEVICE, dtype) is None


@pytest.mark.parametrize("mode", [True, False])
def test_a_kernel_that_is_wrong_in_one_mode_is_found(mode, monkeypatch):
    def attention(*tensors, causal, window, equal_key_norms):
        y = probes._literal_attention(*tensors, causal=causal, window=window, equal_key_norms=equal_key_norms)
        return 1.01 * y if equal_key_norms == mode else y

    monkeypatch.setattr(triton_attention, "triton_attention", attention)
    norms = "equal" if mode else "any"
    assert f"y with window None, keys of {norms} norms" in probes.probe_attention(DEVICE, torch.float32)


def test_a_window_that_is_off_by_one_is_found(monkeypatch):
    def attention(*tensors, causal, window, equal_key_norms):
        wider = None if window is None else window + 1
        return probes._literal_attention(*tensors, causal=causal, window=wider, equal_key_norms=equal_key_norms)

    monkeypatch.setattr(triton_attention, "triton_attention", attention)
    assert probes.probe_attention(DEVICE, torch.float32).startswith("y with window 17, keys of equal norms")


def test_a_missing_component_is_forgiven_with_equal_norms_only(monkeypatch):
    """Without its component along k the gradient of k is what the mode of equal norms promises, and wrong otherwise."""

    def attention(q, k, v, bandwidth, *, causal, window, equal_key_norms):
        k = k * 1.0
        k.register_hook(lambda g: g - k * (g * k).sum(-1, keepdim=True) / k.square().sum(-1, keepdim=True))
        return probes._literal_attention(q, k, v, bandwidth, causal=causal, window=window, equal_key_norms=False)

    monkeypatch.setattr(triton_attention, "triton_attention", attention)
    assert probes.probe_attention(DEVICE, torch.float32).startswith("∂k with window None, keys of any norms")


def test_a_loss_kernel_that_is_wrong_is_found(monkeypatch):
    score = triton_loss.score

    def wrong(logits, targets, cap, losses, row_weight):
        score(logits, targets, cap, losses, row_weight)
        losses += 0.01

    monkeypatch.setattr(triton_loss, "score", wrong)
    assert probes.probe_loss(DEVICE, torch.float32) is not None
