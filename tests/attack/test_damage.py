"""Files with flipped bits, cut files and swapped files, of every kind that nanogka reads.

Three ends are allowed: the result of the undamaged file, a refusal with code 1 or 2 that names the file or the setting,
and a result with a note. Files without a checksum may also be different input. No other file is deleted.
"""

import random
import re
from pathlib import Path

import pytest
from attack_world import call, evaluate, fine_tune, pretrain, results

CHECKSUM, PLAIN = "checksum", "plain"
REPORTED = re.compile("damaged|unusable|skipped|left out|not used|other text|lacks|instead")


@pytest.fixture(autouse=True)
def pictures(monkeypatch):
    """Reports get no pictures: rendering them takes a second."""
    monkeypatch.setattr("nanogka.plots.figures.save", lambda figure, path, style: path.parent.mkdir(exist_ok=True))


def reply(base: Path) -> tuple:
    words = "--prompt cat --max-tokens 6 --temperature 0 --device cpu --dtype float32"
    outcome = call("chat_cli", *words.split())
    return outcome, outcome.out


def resume(base: Path) -> tuple:
    return call(*pretrain(base, "mine")), results(base, "runs/mine/metrics.jsonl")


def score(base: Path) -> tuple:
    return call(*evaluate(base)), results(base, "runs/mine/evaluation.json")


def report(base: Path) -> tuple:
    return call("report", "--run", "mine"), results(base, "runs/mine/report.md")


def plan_chat(base: Path) -> tuple:
    return call(*fine_tune(base, "new", "--dry-run")), ""


def compress(base: Path) -> tuple:
    outcome = call("tok_eval", "--tokenizer", "tiny", "--data", "none")
    return outcome, outcome.out


KINDS = {  # name: files, what reads them, and whether damage must be noticed
    "checkpoint": ("runs/*/checkpoints/*/*", reply, CHECKSUM),
    "checkpoint, resumed": ("runs/mine/checkpoints/*/*", resume, CHECKSUM),
    "config": ("runs/*/config.yaml", reply, PLAIN),
    "metrics": ("runs/*/metrics.jsonl", resume, PLAIN),
    "metrics, reported": ("runs/mine/metrics.jsonl", report, PLAIN),
    "evaluation": ("runs/mine/evaluation.json", report, PLAIN),
    "finished tasks": ("runs/mine/evaluation.json", score, PLAIN),
    "a run's tokenizer": ("runs/*/tokenizer/tokenizer.json", reply, CHECKSUM),
    "tokenizer": ("tokenizers/tiny/*.json", compress, PLAIN),
    "shards": ("shards/*.parquet", resume, PLAIN),
    "bundle": ("bundle.zip", score, PLAIN),
    "conversations": ("talk.jsonl", plan_chat, PLAIN),
}


def damage(rng: random.Random, path: Path, others: list[Path]) -> str:
    """Damage a file in one way, and say which."""
    content = path.read_bytes()
    way = rng.choice(("flip", "cut", "swap", "empty", "nested"))
    at = rng.randrange(len(content))
    if way == "flip":
        damaged = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    else:
        swapped = rng.choice(others).read_bytes()
        damaged = {"cut": content[:at], "swap": swapped, "empty": b"", "nested": b"[" * 100_000}[way]
    path.write_bytes(damaged)
    return f"{way} at {at}"


@pytest.mark.parametrize("cases", [1, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_noticed_or_harmless(world, name, cases):
    pattern, read, check = KINDS[name]
    rng, defects = random.Random(f"{name} {cases}"), []
    first, expected = read(world.base)
    assert first.code == 0, first
    for _ in range(cases):
        world.restore()
        files = sorted(path for path in world.base.glob(pattern) if path.is_file())
        before = {file for file in world.base.rglob("*") if file.is_file()}
        path = rng.choice(files)
        how = damage(rng, path, files)
        outcome, result = read(world.base)
        # A refusal names the file, its checkpoint or the setting.
        names = (path.name, path.parent.name, str(path.parent))
        refused = outcome.code in (1, 2) and any(name in outcome.err for name in names)
        refused = refused or (outcome.code == 2 and ": got " in outcome.err)
        noticed = result == expected or check == PLAIN or REPORTED.search(outcome.err + outcome.out)
        lost = [file for file in before if not file.exists()]
        if not (refused or (outcome.code == 0 and noticed)) or lost:
            defects.append(
                (str(path.relative_to(world.base)), how, outcome.code, outcome.error, outcome.err[-300:], lost)
            )
    assert defects == []
