"""scripts/gka.py against the package: the same losses over 30 steps, the same bits per byte, and a run on a file."""

import math

import pytest
import torch

from nanogka.evaluate.bpb import measure_bits_per_byte
from nanogka.model import GPT, GPTConfig
from nanogka.train.budget import plan_budget
from nanogka.train.optimizer import Schedule, build_optimizers
from nanogka.train.snapshots import LearningRates
from scripts import gka

DEPTH, STEPS = 2, 30


@pytest.fixture(scope="module")
def text():
    """Text with structure: words of random letters, in a random order."""
    random = torch.Generator().manual_seed(0)
    words = ["".join(chr(97 + c) for c in torch.randint(26, (5,), generator=random)) for _ in range(40)]
    order = torch.randint(len(words), (8000,), generator=random)
    return torch.tensor(list(" ".join(words[i] for i in order).encode()), dtype=torch.uint8)


@pytest.fixture(scope="module")
def package_model():
    """The package's model with the same seed, context and vocabulary."""
    return GPT(GPTConfig.from_depth(DEPTH, "gaussian", vocab_size=256, sequence_len=gka.CONTEXT), seed=1)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(gka, "ROWS", 2)


def train_package(model, text):
    """Losses of the package's model, optimizer and schedule on the batches of `gka.train`."""
    budget = plan_budget(model.config, num_iterations=STEPS, total_batch_size=gka.ROWS * gka.CONTEXT)
    rates = LearningRates(lr_scale=gka.LR_SCALE)
    optimizers = build_optimizers(model, rates, budget, muon_dtype=torch.float32)
    generator, losses = torch.Generator().manual_seed(1), []
    for step in range(STEPS):
        Schedule(STEPS).apply(optimizers, step)
        loss = model(*gka.batch(text, generator))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_losses_and_bits_per_byte_equal_those_of_the_package(text, package_model, capsys):
    single = gka.GPT(DEPTH, seed=1)
    assert sum(p.numel() for p in single.parameters()) == sum(p.numel() for p in package_model.parameters())
    losses, expected = gka.train(single, text, DEPTH, STEPS, seed=1), train_package(package_model, text)
    assert losses[0] == pytest.approx(math.log(256), abs=0.01)
    assert losses[-1] < 0.7 * losses[0]
    # Only rounding differs (the package's norm has its own backward pass), and training amplifies it from step to step.
    assert losses[:10] == pytest.approx(expected[:10], abs=1e-4)
    assert losses == pytest.approx(expected, abs=2e-3)
    rows = text[: 8 * gka.CONTEXT + 1].long()
    pairs = [(rows[:-1].view(8, -1), rows[1:].view(8, -1))]
    theirs = measure_bits_per_byte(package_model, pairs, torch.ones(256, dtype=torch.long)).value
    assert gka.evaluate(single, text[: 8 * gka.CONTEXT + 2]) == pytest.approx(theirs, abs=2e-3)


def test_it_trains_evaluates_and_samples_a_file(text, tmp_path, capsys, monkeypatch):
    file, used = tmp_path / "input.txt", {}
    file.write_bytes(bytes(text.tolist()))
    for name in ("train", "evaluate"):
        function = getattr(gka, name)
        spy = lambda model, part, *rest, name=name, function=function: (  # noqa: E731
            used.update({name: part}) or function(model, part, *rest)
        )
        monkeypatch.setattr(gka, name, spy)
    assert gka.main([str(file), "--depth", "1", "--steps", "2", "--prompt", "ab"]) == 0
    output = capsys.readouterr().out
    assert "step 1/2  8.00" in output  # bits: the first logits of all 256 bytes are almost equal
    assert "step 2/2" in output
    assert torch.equal(torch.cat([used["train"], used["evaluate"]]), text), "the last tenth is not learned"
    assert len(used["evaluate"]) == len(text) // 10
    assert "held out: " in output
    with pytest.raises(SystemExit):
        gka.main([str(tmp_path / "absent.txt")])
    assert "absent.txt, expected a file of at least 5,120 bytes" in capsys.readouterr().err


def test_a_sample_depends_on_its_seed_alone():
    model = gka.GPT(1, seed=0)
    first, again, other = (gka.sample(model, b"ab", 8, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first[:2] == b"ab"
    assert len(first) == 10
