"""Activation checkpointing: the same numbers from fewer bytes kept."""

import pytest
import torch

from nanogka.model import GPT, GPTConfig


def run(attention, network, dtype, checkpointing):
    """Loss, gradients and the bytes that the forward pass keeps for the backward pass."""
    config = GPTConfig.from_depth(4, attention, vocab_size=97, sequence_len=64, network=network)
    model = GPT(config, compute_dtype=dtype)
    with torch.no_grad():  # else the blocks add nothing at the start, and the gradients within them are 0
        for name, p in model.named_parameters():
            if name.endswith(("c_proj.weight", "smear_lambda")):
                p.normal_(0, 0.02, generator=torch.Generator().manual_seed(1))
    model.activation_checkpointing = checkpointing
    ids = torch.randint(0, 97, (2, 64), generator=torch.Generator().manual_seed(2))
    kept = {}

    def pack(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(ids, ids)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}, sum(kept.values())


@pytest.mark.parametrize(
    "attention, network, dtype",
    [("gaussian", "february", torch.float32), ("dot_product", "february", torch.bfloat16)]
    + [("dot_product", "july", torch.float32), ("mixture", "february", torch.float32)],
)
def test_losses_and_gradients_are_the_same_and_much_less_is_kept(attention, network, dtype):
    loss, gradients, kept = run(attention, network, dtype, False)
    same, same_gradients, less = run(attention, network, dtype, True)
    assert torch.equal(loss, same)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, same_gradients[name]), name
        assert gradient.abs().max() > 0
    assert less < 0.35 * kept
