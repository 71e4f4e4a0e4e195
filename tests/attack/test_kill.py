"""Every script that writes, killed at any moment: called again it ends as if nothing had happened.

SIGKILL and SIGTERM come at random moments of a run. SIGTERM is answered with a word and code 143, and leaves nothing
half-written. The second call ends with the result of one that was not disturbed, bit for bit.

    python -m pytest -m slow tests/attack/test_kill.py -s          the whole campaign, with its table of totals
"""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from attack_world import World, call, evaluation, fine_tune, pretrain, start, totals
from full_disk import full_disk

from nanogka.checkpoint import latest_valid, load_checkpoint
from nanogka.evaluate import in_context
from nanogka.runs import read_metrics
from nanogka.study.plan import read_results

STRIKES = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
FINISHED = "finished before the signal"
MOMENTS = 4  # strikes with each signal at each writer


def trained(run: str) -> Callable[[Path], object]:
    """Losses, and every bit of the last weights."""

    def result(base: Path) -> object:
        folder = base / "runs" / run
        losses = [(line["step"], line["loss"]) for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]
        weights = load_checkpoint(latest_valid(folder / "checkpoints")[0]).weights
        return losses, {name: value.numpy().tobytes() for name, value in weights.items()}

    return result


def files(*patterns: str) -> Callable[[Path], object]:
    """The bytes of the files that were made."""
    return lambda base: {path.name: path.read_bytes() for pattern in patterns for path in base.glob(pattern)}


def scores(path: str) -> Callable[[Path], object]:
    """The table of an evaluation, without its times."""

    def result(base: Path) -> object:
        tasks = json.loads((base / path).read_text())["tasks"]
        return [{name: value for name, value in task.items() if name != "seconds"} for task in tasks]

    return result


def trials(base: Path) -> object:
    rows = read_results(base / "trials.jsonl", ("accuracy",))
    return sorted(json.dumps({name: row[name] for name in row if "seconds" not in name}) for row in rows)


@dataclass(frozen=True)
class Writer:
    """A script that writes: its words, and what it has made, comparable."""

    words: Callable[[Path], tuple]
    result: Callable[[Path], object]


LONGER = ("--num-iterations", 10, "--save-every", 2)
TRIALS = ("--only", "gaussian", "--tasks", "repeat", "--depths", 1, "--seeds", 1, "--steps", 4, "--width", 64)
WRITERS = {
    "tok_train": Writer(
        lambda base: ("tok_train", "--data", base / "text", "--vocab-size", 290, "--name", "new"),
        files("tokenizers/new/*.json"),
    ),
    "make_shards": Writer(
        lambda base: ("make_shards", "--data", base / "text", "--out", base / "new", "--shard-chars", 1000),
        files("new/*"),
    ),
    "base_train": Writer(lambda base: pretrain(base, base / "shards", "--run", "new", *LONGER), trained("new")),
    "chat_sft": Writer(lambda base: fine_tune(base, "--run", "new-chat", *LONGER), trained("new-chat")),
    "base_eval": Writer(
        lambda base: evaluation(base, "--dtype", "bfloat16", "--output", base / "scores.json"), scores("scores.json")
    ),
    "chat_eval": Writer(
        lambda base: ("chat_eval", "--run", "mine-chat", "--max-per-task", 4, "--device", "cpu"),
        scores("runs/mine-chat/chat_evaluation.json"),
    ),
    "report": Writer(lambda base: ("report", "--run", "mine"), files("runs/mine/report.md")),
    "visualize": Writer(
        lambda base: ("visualize", "--run", "mine", "--prompt", "the old cat", "--device", "cpu"),
        files("runs/mine/visualization/index.html"),
    ),
    "induction": Writer(
        lambda base: ("induction", base / "grid.yaml", "--output", base / "trials.jsonl", *TRIALS, "--device", "cpu"),
        trials,
    ),
}


def undisturbed(world: World, writer: Writer, log: Path) -> tuple[object, float]:
    """The result of a writer that nobody disturbs, and the seconds that it takes."""
    world.restore()
    began = time.monotonic()
    process = start(world.base, writer.words(world.base), log)
    process.join(120)
    assert process.exitcode == 0, log.read_text()
    return writer.result(world.base), time.monotonic() - began


def strike(world: World, writer: Writer, number: int, seconds: float, log: Path, expected: object) -> str:
    """Send a signal after some time, call the script again, and say how it ended."""
    world.restore()
    process = start(world.base, writer.words(world.base), log)
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
    again = call(*writer.words(world.base))
    done = writer.words(world.base)[0] == "make_shards" and again.code == 2 and "not there yet" in again.err
    if again.code != 0 and not done:  # the corpus was complete already
        return f"DEFECT: the second call: {again}"
    if writer.result(world.base) != expected:
        return "DEFECT: another result"
    return FINISHED if process.exitcode == 0 else "same result"


def campaign(world: World, names: list[str], moments: int, log: Path) -> tuple[dict, list[str]]:
    """Kill each of some writers with each signal; return how many ended how, and the defects."""
    rng, rows, defects = random.Random(7), {name: Counter() for name in names}, []
    start(world.base, ("report", "--help"), log).join(120)  # the clean process from which the others are forked
    for name in names:
        expected, seconds = undisturbed(world, WRITERS[name], log)
        for title, number in STRIKES.items():
            for _ in range(moments):
                moment, end = 2 * seconds * rng.uniform(0.05, 0.95), FINISHED
                while end == FINISHED and moment > 0.01:
                    log.write_text("")
                    moment /= 2
                    end = strike(world, WRITERS[name], number, moment, log, expected)
                rows[name][f"{title}: {end.split(':')[0]}"] += 1
                if end.startswith("DEFECT"):
                    defects.append(f"{name}, {title} after {moment:.2f} of {seconds:.2f} s: {end}")
    return rows, defects


def test_a_killed_writer_goes_on_as_if_nothing_had_happened(world, tmp_path):
    _, defects = campaign(world, ["tok_train"], 1, tmp_path / "log")
    assert defects == []


@pytest.mark.slow
def test_the_campaign(world, tmp_path):
    rows, defects = campaign(world, list(WRITERS), MOMENTS, tmp_path / "log")
    print("\n" + totals("killed", rows))
    assert defects == [], "\n".join(defects)


class KilledError(BaseException):
    """The end of the process, as far as the script is concerned."""


def test_an_evaluation_killed_anywhere_keeps_finished_tasks_and_ends_with_the_same_table(world, monkeypatch):
    writer, score, chunks, dies_at = WRITERS["base_eval"], in_context.evaluate_chunk, [], 0
    words = writer.words(world.base)

    def score_or_die(*args):
        chunks.append(args[2].task.name)
        if len(chunks) == dies_at:
            raise KilledError
        return score(*args)

    monkeypatch.setattr(in_context, "ITEMS_PER_CHUNK", 5)  # three chunks in each of two tasks
    monkeypatch.setattr(in_context, "evaluate_chunk", score_or_die)
    world.restore()
    before = set(world.base.glob("runs/mine/evaluation/*.json"))
    assert call(*words).code == 0
    expected = writer.result(world.base)
    assert len(chunks) == 6
    for dies_at in range(1, 7):
        world.restore()
        chunks.clear()
        with pytest.raises(KilledError):
            call(*words)
        kept = set(world.base.glob("runs/mine/evaluation/*.json")) - before
        assert len(kept) == (dies_at > 3)
        if dies_at == 6:
            kept.pop().write_text("{")
        again = call(*words)
        assert again.code == 0
        assert writer.result(world.base) == expected
        assert ("damaged, not used" in again.out) == (dies_at == 6)


@pytest.mark.parametrize("size", [0, 500])
@pytest.mark.parametrize("name", ["tok_train", "make_shards", "base_train", "base_eval", "report"])
def test_a_disk_that_is_full_is_one_line_with_the_files_name_and_leaves_nothing_half_written(world, name, size):
    world.restore()
    with full_disk(size):
        outcome = call(*WRITERS[name].words(world.base))
    lines = outcome.err.splitlines()
    assert outcome.code == 1, outcome
    assert str(world.base) in lines[-1]
    assert [path for path in world.base.rglob("*partial*") if path.exists()] == []
    assert call(*WRITERS[name].words(world.base)).code == 0
