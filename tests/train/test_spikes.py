"""Spikes are the losses that stand out, and a resumed run sees the same ones."""

import random

import pytest

from nanogka.train.loop import Trainer
from nanogka.train.metrics import read_metrics
from nanogka.train.spikes import FIRST_STEPS, SpikeWatch
from scripts import base_train


def losses(n, seed=0, noise=0.05):
    rng = random.Random(seed)
    return [3 + 7 / (1 + i / 20) + rng.gauss(0, noise) for i in range(n)]


def test_a_falling_noisy_loss_has_no_spikes_and_one_that_jumps_has():
    watch = SpikeWatch(6.0)
    values = losses(400)
    values[300] += 1.0
    seen = [i for i, value in enumerate(values) if watch.see(value)]
    assert seen == [300]


def test_a_plateau_of_spikes_is_reported_until_the_mean_has_followed():
    watch = SpikeWatch(6.0)
    for value in losses(200, noise=0.02):
        watch.see(value)
    first, second = watch.see(8.0), watch.see(8.0)
    assert first
    assert second
    assert first.mean == pytest.approx(second.mean, abs=0.2)
    assert "8.0000 is " in first.describe()


def test_nothing_is_a_spike_at_the_very_start_or_when_switched_off():
    watch = SpikeWatch(6.0)
    assert not any(watch.see(value) for value in [1.0] * (FIRST_STEPS - 1) + [9.0])
    off = SpikeWatch(0.0)
    assert not any(off.see(value) for value in [*losses(100), 50.0])


def test_state_continues_exactly():
    values = losses(200)
    values[150] = 9.0
    whole = SpikeWatch(6.0)
    expected = [whole.see(value) for value in values]
    first = SpikeWatch(6.0)
    seen = [first.see(value) for value in values[:100]]
    second = SpikeWatch(6.0, first.state())
    assert [*seen, *(second.see(value) for value in values[100:])] == expected
    assert expected[150]


def test_a_spike_is_logged_with_step_loss_and_documents(base, flags, monkeypatch, capsys):
    gradients = Trainer._gradients

    def jump(self, loader):
        batches, parts, loss, norm = gradients(self, loader)
        if self.step == 24:
            parts[1] = parts[1] + 30
        return batches, parts, loss + 30 * (self.step == 24), norm

    monkeypatch.setattr(Trainer, "_gradients", jump)
    words = [*flags, "--num-iterations", "26", "--eval-every", "0", "--run", "spike"]
    assert base_train.main(words) == 0
    (line,) = (line for line in read_metrics(base / "runs/spike/metrics.jsonl") if line["kind"] == "spike")
    assert (line["step"], line["rank"], line["micro_batch"]) == (25, 0, 1)
    assert line["loss"] > 30
    assert line["documents"]
    assert all(".txt, bytes " in name for name in line["documents"])
    assert "step 25: loss " in capsys.readouterr().err
