"""tests/peers.py: what it times is a training step and a step of greedy decoding, and its table's figures."""

import peers
import pytest
import torch

TINY = {"rows": 2, "layers": 2, "heads": 1, "width": 32, "context": 12, "vocab_size": 64, "new_tokens": 5}


@pytest.mark.parametrize("name", peers.OURS)
def test_our_training_steps_learn_the_batch(name):
    contestant = peers.OURS[name](peers.Work(**TINY))
    model, ids = contestant.model, peers.Work(**TINY).ids()
    start, before = model(ids[:, :-1], ids[:, 1:]), [p.clone() for p in model.parameters()]
    for _ in range(3):
        contestant.step()
    assert model(ids[:, :-1], ids[:, 1:]) < start
    assert all(p.grad is None and not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert contestant.update > 0


@pytest.mark.parametrize("name", peers.OURS)
def test_our_decoding_steps_continue_greedily_up_to_the_context(name):
    work = peers.Work("decode", **TINY)
    contestant = peers.OURS[name](work)
    with torch.no_grad():  # a trained model's choices differ from token to token
        for parameter in contestant.model.parameters():
            parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
        text = work.ids()[:, :7]
        for _ in range(6):
            text = torch.cat([text, contestant.model(text)[:, -1:].argmax(-1)], dim=1)
    for _ in range(2):  # every turn begins again
        contestant.restart()
        tokens = [contestant.step() for _ in range(5)]
        assert torch.equal(torch.cat(tokens, dim=1), text[:, 8:])
    assert len(text[:, 8:].unique()) > 2


def test_a_ratio_is_that_of_two_times_of_one_round():
    times = {"ours": [(100.0, 20.0), (200.0, 30.0), (400.0, 90.0)], "theirs": [(50.0, 0.0), (250.0, 0.0), (300.0, 0.0)]}
    assert peers.table({"ours": 1234567, "theirs": 8}, times).splitlines() == [
        "| | parameters | CPU ms per step | of these the update | ratio | ratios of the rounds |",
        "|---|---:|---:|---:|---:|---:|",
        "| ours | 1,234,567 | 200 | 30 | 1.00 | 1.00 to 1.00 |",
        "| theirs | 8 | 250 | – | 0.75 | 0.50 to 1.25 |",
    ]
