"""The progress that people see."""

import sys

import pytest

from nanogka.train import metrics
from nanogka.train.metrics import Progress


@pytest.fixture
def clock(monkeypatch):
    """`clock[0]` is the time in seconds."""
    now = [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    return now


def values(seconds):
    return {"seconds": seconds, "data_wait": 0.0, "smooth_loss": 2.5, "peak_memory": 1e9}


def test_speeds_are_averages_since_the_last_line_and_the_time_left_follows_from_all_steps(clock, capsys):
    progress = Progress(110, 10, {"tokens": 1000, "flops": 4e12}, peak_flops=1e13)
    for step, now, seconds in ((11, 1, 1), (12, 8, 1), (13, 20, 9)):
        clock[0] = now
        progress.update(step, values(seconds))
    first, second = capsys.readouterr().err.splitlines()
    assert "  1k tok/s  4TFLOP/s (40% MFU)  " in first
    assert second.startswith("step 13/110  loss 2.500  200 tok/s  800GFLOP/s (8% MFU)  1.0 GB")
    assert second.endswith(f"ETA {metrics.duration(20 / 3 * 97)}")


def test_a_training_at_less_than_half_of_the_expected_speed_is_warned_of_once(clock, capsys):
    progress = Progress(60, 0, {"flops": 1e12}, peak_flops=1e13)
    for step in range(1, 41):  # at 10 % of the peak; the first step is slow and does not count
        progress.update(step, values(1.0 if step > 1 else 500.0))
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert "at 10% of" in warning
    assert "4.0 times" in warning


def test_a_log_that_cannot_be_written_does_not_end_a_training(clock, monkeypatch):
    tried = []

    class Broken:
        def write(self, text):
            tried.append(text)
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    progress = Progress(2, 0, {"tokens": 1}, 0)
    progress.update(1, values(1))
    progress.say("hello")
    assert any("step 1/2" in text for text in tried)
    assert any("hello" in text for text in tried)
