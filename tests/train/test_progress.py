"""The progress that people see."""

import sys

import pytest

from nanogka.common.formatting import duration
from nanogka.train import progress
from nanogka.train.progress import Progress, describe_numbers, evaluations_left

NONE = {"tokens": 0, "flops": 0}


@pytest.fixture
def clock(monkeypatch):
    """`clock[0]` is the time in seconds."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def values(seconds, tokens=0, flops=0.0):
    amounts = {"tokens": tokens, "flops": flops}
    return {"seconds": seconds, "data_wait": 0.0, "smooth_loss": 2.5, "peak_memory": 1e9, **amounts}


def test_speeds_are_averages_since_the_last_line(clock, capsys):
    progress = Progress(110, 10, {"tokens": 10_000, "flops": 4e13}, peak_flops=1e13)
    for step, now, seconds in ((11, 1, 1), (12, 8, 1), (13, 20, 9)):
        clock[0] = now
        progress.update(step, values(seconds, 1000 * step, 4e12 * step))
    first, second = capsys.readouterr().err.splitlines()
    assert "  1k tok/s  4TFLOP/s (40% MFU)  " in first
    assert second.startswith("step 13/110  loss 2.500  200 tok/s  800GFLOP/s (8% MFU)  1.0 GB")
    for step, now in ((14, 34.99), (15, 35.0), (16, 49.99), (17, 50.01)):
        clock[0] = now
        progress.update(step, values(1.0))
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["15/110", "17/110"]


def test_the_time_left_is_that_of_the_steps_and_the_evaluations_to_come(clock, capsys):
    """Ten minutes of evaluation before the first step do not count as a step."""
    progress = Progress(1000, 0, NONE, peak_flops=0)
    clock[0] = 600.0
    progress.evaluations = {250: 60.0, 0: 30.0}
    clock[0] += 4
    progress.update(1, values(4.0))
    for step in range(2, 301):
        clock[0] += 2
        progress.update(step, values(2.0))
    lines = capsys.readouterr().err.splitlines()
    # At first the only step known; then the mean of all but the first. Evaluations at 250, 500, 750 and 1000, and at
    # the end.
    assert lines[0].endswith(f"ETA {duration(999 * 4 + 4 * 60 + 30)}")
    last = next(line for line in reversed(lines) if line.startswith("step "))
    step = int(last.split()[1].partition("/")[0])
    assert step > 250
    assert last.endswith(f"ETA {duration((1000 - step) * 2 + 3 * 60 + 30)}")


def test_a_resumed_run_counts_its_own_steps_and_says_how_long_it_waits_for_data(clock, capsys):
    progress = Progress(1000, 400, {"tokens": 8000, "flops": 3e12}, peak_flops=0)
    for step, seconds, waited in ((401, 4.0, 0.04), (402, 2.0, 0.5), (403, 3.0, 0.25)):
        clock[0] += 20
        line = values(seconds, 8000 + 18 * (step - 400), 3e12 + 27e9 * (step - 400))
        line |= {"data_wait": waited, "peak_memory": 2.34e9}
        progress.update(step, line | {"smooth_loss": 1.2344})
    first, second, third = capsys.readouterr().err.splitlines()
    # Up to 1 % is not worth a word.
    assert first == f"step 401/1000  loss 1.234  4.5 tok/s  6.75GFLOP/s  2.3 GB  ETA {duration(599 * 4)}"
    assert second.endswith(f"  2.3 GB  data wait 25%  ETA {duration(598 * 2)}")
    assert third.endswith(f"  2.3 GB  data wait 8%  ETA {duration(597 * 2.5)}")


def test_the_numbers_of_an_evaluation_have_their_standard_errors():
    found = {"val_bpb": 1.23456, "val_bpb_se": 0.0321, "rows": 7, "val_documents": [1.0], "val_tokens": 65_491}
    assert describe_numbers(found) == ["val_bpb 1.2346 ± 0.0321 SE", "rows 7 (65,491 tokens)"]
    assert describe_numbers({"val_tokens": 5}) == []


@pytest.mark.parametrize("every,total", [(0, 7), (1, 7), (3, 7), (7, 7), (50, 7)])
def test_the_evaluations_to_come_are_those_that_the_loop_makes(every, total):
    for step in range(total + 1):
        due = [at for at in range(step + 1, total + 1) if at == total or (every and at % every == 0)]
        assert evaluations_left(every, step, total) == len(due)


def test_a_training_at_less_than_half_of_the_expected_speed_is_warned_of_once(clock, capsys):
    def warnings(**options):
        progress, found = Progress(60, 0, NONE, peak_flops=1e13, advice="buy another", **options), []
        for step in range(1, 41):  # at 10 % of the peak; the first step is slow and does not count
            progress.update(step, values(1.0 if step > 1 else 500.0, flops=1e12 * step))
            lines = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
            assert not lines or step == 20
            found += lines
        return found

    (warning,) = warnings()
    assert "at 10% of" in warning
    assert "4.0 times" in warning
    assert warning.endswith(". buy another")
    (warning,) = warnings(usual_mfu=0.25)
    assert "not at 25%. It will take 2.5 times" in warning
    assert warnings(usual_mfu=0.19) == []


def test_a_log_that_cannot_be_written_does_not_end_a_training(clock, monkeypatch):
    tried = []

    class Broken:
        def write(self, text):
            tried.append(text)
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    progress = Progress(2, 0, NONE, 0)
    progress.update(1, values(1))
    progress.say("hello")
    assert any("step 1/2" in text for text in tried)
    assert any("hello" in text for text in tried)
