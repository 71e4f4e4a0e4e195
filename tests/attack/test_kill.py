"""Scripts that are killed while they write: the next call ends as if nothing had happened, bit for bit.

SIGKILL and SIGTERM come at random moments. After SIGTERM a script ends with code 143 and leaves no temporary file.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from attack_world import call, evaluate, fine_tune, pretrain, results, start
from full_disk import full_disk

LONGER = ("--num-iterations", 10)
RUN = ("runs/new/metrics.jsonl", "runs/new/checkpoints/step_000010/model.safetensors")
SCRIPTS = {  # the words of a script that writes, and the files that it makes
    "base_train": (lambda base: pretrain(base, "new", *LONGER), RUN),
    "chat_sft": (lambda base: fine_tune(base, "new", *LONGER), RUN),
    "base_eval": (lambda base: evaluate(base, "--output", base / "scores.json"), ("scores.json",)),
    "make_shards": (lambda base: ("make_shards", "--data", base / "text", "--out", base / "new"), ("new/*",)),
    "tok_train": (
        lambda base: ("tok_train", "--data", base / "text", "--vocab-size", 290, "--name", "new"),
        ("tokenizers/new/*.json",),
    ),
    "report": (lambda base: ("report", "--run", "mine"), ("runs/mine/report.md",)),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS if name != "base_train"]


def strike(world, words: tuple, number: int, seconds: float, log: Path) -> bool:
    """Send a signal to a script after some time. Returns True if it was still running."""
    log.write_text("")
    process = start(world.base, words, log)
    process.join(seconds)
    running = process.exitcode is None
    if running:
        os.kill(process.pid, number)
    process.join(60)
    said = log.read_text()
    assert process.exitcode is not None, "it does not end"
    assert "Traceback" not in said, said
    if running and number == signal.SIGTERM and process.exitcode not in (0, -number):  # -number: before its handler
        assert (process.exitcode, "SIGTERM" in said) == (143, True), said
        assert [path for path in world.base.rglob("*partial*") if path.exists()] == []
    return running


@pytest.mark.parametrize("name", ["base_train", *SLOW])
def test_a_killed_script_can_be_called_again(world, tmp_path, name):
    make_words, patterns = SCRIPTS[name]
    words, rng, log = make_words(world.base), random.Random(7), tmp_path / "log"
    start(world.base, ("report", "--help"), log).join(120)  # loads torch into the process that the others fork from
    began = time.monotonic()
    assert not strike(world, words, signal.SIGKILL, 120, log)
    seconds, expected = time.monotonic() - began, results(world.base, *patterns)
    for number in (signal.SIGKILL, signal.SIGTERM):
        moment = seconds * rng.uniform(0.2, 0.9)
        world.restore()
        while not strike(world, words, number, moment, log):
            moment /= 2
            world.restore()
        again = call(*words)
        # make_shards had written everything
        assert again.code == 0 or (name == "make_shards" and "--out" in again.err), again
        assert results(world.base, *patterns) == expected, f"signal {number} after {moment:.2f} of {seconds:.2f} s"


@pytest.mark.parametrize("name", ["tok_train", "make_shards", "base_train", "base_eval", "report"])
def test_a_full_disk_is_named_and_leaves_no_temporary_file(world, name):
    words = SCRIPTS[name][0](world.base)
    with full_disk(500):
        outcome = call(*words)
    assert outcome.code == (2 if name == "base_train" else 1), outcome  # a training tries a checkpoint before it starts
    assert str(world.base) in outcome.err.splitlines()[-1]
    assert [path for path in world.base.rglob("*partial*") if path.exists()] == []
    assert call(*words).code == 0
