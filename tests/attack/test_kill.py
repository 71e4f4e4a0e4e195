"""Every script that writes, killed at any moment: called again it ends as if nothing had happened.

SIGKILL and SIGTERM come at random moments of a run. SIGTERM is answered with a word and code 143, and leaves nothing
half-written. The second call ends with the result of one that was not disturbed, bit for bit.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from attack_world import World, call, evaluation, fine_tune, made, pretrain, start
from full_disk import full_disk

STRIKES = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
FINISHED = "finished before the signal"


# Scripts that write: their words, and the files that they have made.
LONGER = ("--num-iterations", 10, "--save-every", 2)
RUN = ("runs/new/metrics.jsonl", "runs/new/checkpoints/step_000010/model.safetensors")
WRITERS = {
    "tok_train": (
        lambda base: ("tok_train", "--data", base / "text", "--vocab-size", 290, "--name", "new"),
        ("tokenizers/new/*.json",),
    ),
    "make_shards": (
        lambda base: ("make_shards", "--data", base / "text", "--out", base / "new", "--shard-chars", 1000),
        ("new/*",),
    ),
    "base_train": (lambda base: pretrain(base, base / "shards", "--run", "new", *LONGER), RUN),
    "chat_sft": (lambda base: fine_tune(base, "--run", "new", *LONGER), RUN),
    "base_eval": (
        lambda base: evaluation(base, "--dtype", "bfloat16", "--output", base / "scores.json"),
        ("scores.json",),
    ),
    "chat_eval": (
        lambda base: ("chat_eval", "--run", "mine-chat", "--max-per-task", 4, "--device", "cpu"),
        ("runs/mine-chat/chat_evaluation.json",),
    ),
    "report": (lambda base: ("report", "--run", "mine"), ("runs/mine/report.md",)),
    "visualize": (
        lambda base: ("visualize", "--run", "mine", "--prompt", "the old cat", "--device", "cpu"),
        ("runs/mine/visualization/index.html",),
    ),
}


def undisturbed(world: World, writer: tuple, log: Path) -> tuple[object, float]:
    """The result of a writer that nobody disturbs, and the seconds that it takes."""
    world.restore()
    began = time.monotonic()
    process = start(world.base, writer[0](world.base), log)
    process.join(120)
    assert process.exitcode == 0, log.read_text()
    return made(world.base, *writer[1]), time.monotonic() - began


def strike(world: World, writer: tuple, number: int, seconds: float, log: Path, expected: object) -> str:
    """Send a signal after some time, call the script again, and say how it ended."""
    world.restore()
    process = start(world.base, writer[0](world.base), log)
    process.join(seconds)
    if process.exitcode is None:
        os.kill(process.pid, number)  # not reaped yet, so it is the one
    process.join(30)
    said = log.read_text()
    if process.exitcode is None:
        process.kill()
        return "DEFECT: it does not end"
    if "Traceback" in said:
        return f"DEFECT: {said[-500:]}"
    if number == signal.SIGTERM and process.exitcode not in (0, -signal.SIGTERM):  # the latter before it began
        if process.exitcode != 143 or "SIGTERM" not in said:
            return f"DEFECT: exit code {process.exitcode}, {said[-300:]}"
        if halves := [path for path in world.base.rglob("*partial*") if path.exists()]:
            return f"DEFECT: left {halves}"
    again = call(*writer[0](world.base))
    done = writer[0](world.base)[0] == "make_shards" and again.code == 2 and "not there yet" in again.err
    if again.code != 0 and not done:  # the corpus was complete already
        return f"DEFECT: the second call: {again}"
    if made(world.base, *writer[1]) != expected:
        return "DEFECT: another result"
    return FINISHED if process.exitcode == 0 else "same result"


@pytest.mark.parametrize(
    "name", ["base_train", *(pytest.param(name, marks=pytest.mark.slow) for name in WRITERS if name != "base_train")]
)
def test_a_killed_writer_goes_on_as_if_nothing_had_happened(world, tmp_path, name):
    rng, log = random.Random(7), tmp_path / "log"
    start(world.base, ("report", "--help"), log).join(120)  # the clean process from which the others are forked
    expected, seconds = undisturbed(world, WRITERS[name], log)
    for title, number in STRIKES.items():
        moment, end = 2 * seconds * rng.uniform(0.05, 0.95), FINISHED
        while end == FINISHED and moment > 0.01:
            log.write_text("")
            moment /= 2
            end = strike(world, WRITERS[name], number, moment, log, expected)
        assert not end.startswith("DEFECT"), f"{title} after {moment:.2f} of {seconds:.2f} s: {end}"


@pytest.mark.parametrize("name", ["tok_train", "make_shards", "base_train", "base_eval", "report"])
def test_a_disk_that_is_full_is_one_line_with_the_files_name_and_leaves_nothing_half_written(world, name):
    with full_disk(500):
        outcome = call(*WRITERS[name][0](world.base))
    lines = outcome.err.splitlines()
    assert outcome.code == 1, outcome
    assert str(world.base) in lines[-1]
    assert [path for path in world.base.rglob("*partial*") if path.exists()] == []
    assert call(*WRITERS[name][0](world.base)).code == 0
