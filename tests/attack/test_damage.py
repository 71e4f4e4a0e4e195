"""Damaged files of every kind that is read: flipped, cut short, swapped, or something else in their place.

Three outcomes are allowed: the result of the undamaged file; a refusal that names the file, with code 2 (1 for the
machine's faults); a result that says what it left out or took instead. Files without a checksum are read
as they stand: for them there is a fourth, that they are other input. Nothing saved is ever deleted.
"""

import contextlib
import json
import math
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from attack_world import (
    IMAGES,
    Outcome,
    TooLongError,
    call,
    evaluation,
    fine_tune,
    made,
    patience,
    pretrain,
)

from nanogka import checkpoint

CASES = [2, pytest.param(32, marks=pytest.mark.slow)]  # of each kind
# What lies in place of a file that is deleted.
IN_PLACE = {
    "nothing": lambda path: None,
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to(path.name),
}
BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(12))
SHAPES = (
    '{"model": {"vocab": [], "n_layer": "x"}, "settings": [], "files": [3], "validation": 3, "step": "x", "loader": 3'
)
SHAPES += ', "icl_tasks": 3, "messages": 3, "sizes": 3, "families": 3, "added_tokens": 3, "tasks": [3]}'
CONTENTS = {"empty": b"", "a list": b"[1]", "binary": b"\xff" * 100_000, "nested": b"[" * 100_000}
CONTENTS |= {"aliases": BOMB.encode(), "other shapes": SHAPES.encode()}
WAYS = ("flip", "flip", "truncate", "swap", *IN_PLACE, *CONTENTS)
FORGED = 0.6  # share of the cases of a .json in which a value in it is replaced by one of these
VALUES = (None, True, -1, 2**40, 10**400, 1e308, math.nan, "", "x", [], [[]], {}, {"x": 1})
PATIENCE = 20  # seconds
# What is said of a file that was left out, in whole or part, or of what was taken instead.
REPORTED = re.compile("damaged|unusable|skipped|left out|not used|other text|lacks|not evaluated|stopped after")
ALLOWED = {"same result", "refused", "reported"}


# ---- what reads the files: (outcome, result), where the result has no times ----


def reply(base: Path) -> tuple[Outcome, object]:
    words = "--run mine --prompt cat --max-tokens 6 --temperature 0 --device cpu --dtype float32"
    outcome = call("chat_cli", *words.split())
    step = re.search(r"step \d+", outcome.err)
    return outcome, (step and step[0], outcome.out)


def resume(base: Path, data: str = "shards", run: str = "mine") -> tuple[Outcome, object]:
    more = ("--seed", 2) if run == "other" else ()
    return call(*pretrain(base, base / data, "--run", run, *more)), made(base, f"runs/{run}/metrics.jsonl")


def resume_half(base: Path) -> tuple[Outcome, object]:
    return resume(base, run="half")


def resume_chat(base: Path) -> tuple[Outcome, object]:
    return call(*fine_tune(base, "--run", "half-chat")), made(base, "runs/half-chat/metrics.jsonl")


def report(base: Path) -> tuple[Outcome, object]:
    return call("report", "--run", "mine"), made(base, "runs/mine/report.md")


def evaluate(base: Path, bundle: str = "bundle") -> tuple[Outcome, object]:
    return call(*evaluation(base, "--eval-bundle", base / bundle)), made(base, "runs/mine/evaluation.json")


def study(base: Path) -> tuple[Outcome, object]:
    return call("study", base / "grid.yaml", "--workers", 1, "--results", base / "new.jsonl"), made(base, "new.*")


def report_study(base: Path) -> tuple[Outcome, object]:
    return call("study", base / "grid.yaml", "--report"), made(base, "grid.md")


def see(base: Path, *words: object) -> tuple[Outcome, object]:
    outcome = call("vision_eval", "--run", "seen", *"--device cpu --dtype float32".split(), *words)
    said = re.sub(r'damaged"?:? +0\b|.*_per_second.*', "", outcome.out)
    return Outcome(outcome.code, said, outcome.err, outcome.error), said


def see_maps(base: Path) -> tuple[Outcome, object]:
    return see(base, "--maps")


def printed(*words: object) -> tuple[Outcome, object]:
    outcome = call(*words)
    return outcome, [line for line in outcome.out.splitlines() if not line.startswith(("cost", "tokenizer"))]


def compress(base: Path, data: str = "none") -> tuple[Outcome, object]:
    return printed("tok_eval", "--tokenizer", "tiny", "--data", data if data == "none" else base / data)


def plan_chat(base: Path) -> tuple[Outcome, object]:
    words = "--base mine --device cpu --dtype float32 --compile off --sequence-len 32 --total-batch-size 64 --dry-run"
    return printed("chat_sft", *words.split(), "--data", base / "talk.jsonl")


def plan_study(base: Path) -> tuple[Outcome, object]:
    return printed("study", base / "grid.yaml", "--dry-run", "--workers", 1)


@dataclass(frozen=True)
class Kind:
    """Files of one kind."""

    pattern: str  # below the base folder
    read: Callable[[Path], tuple[Outcome, object]]
    others: str  # pattern of files that such a file is swapped with
    unchecked: bool = False  # nothing tells a changed byte in them from other input
    forged: bool = False  # the checkpoint's manifest is made anew: only then is what is in its files read


CHECKPOINTS = "runs/*/checkpoints/*"
STATES = f"{CHECKPOINTS}/state.json"
KINDS = {
    "checkpoint": Kind("runs/mine/checkpoints/*/*", reply, f"{CHECKPOINTS}/*"),
    "checkpoint, resumed": Kind("runs/mine/checkpoints/*/*", resume, f"{CHECKPOINTS}/*"),
    "config.yaml": Kind("runs/mine/config.yaml", reply, "runs/mine-*/config.yaml", unchecked=True),
    "config.yaml, resumed": Kind("runs/mine/config.yaml", resume, "runs/mine-*/config.yaml", unchecked=True),
    "config.yaml, reported": Kind("runs/mine/config.yaml", report, "runs/mine-*/config.yaml", unchecked=True),
    "a run's tokenizer": Kind("runs/mine/tokenizer/*.json", reply, "runs/mine/tokenizer/*.json"),
    "tokenizer": Kind("tokenizers/tiny/*.json", compress, "tokenizers/tiny/*.json"),
    "metrics.jsonl, resumed": Kind("runs/mine/metrics.jsonl", resume, "runs/other/metrics.jsonl", unchecked=True),
    "metrics.jsonl, reported": Kind("runs/mine/metrics.jsonl", report, "runs/other/metrics.jsonl", unchecked=True),
    "evaluation.json": Kind("runs/mine/evaluation.json", report, "runs/mine/config.yaml", unchecked=True),
    "kept results": Kind("runs/mine/evaluation/*.json", evaluate, "runs/mine/metrics.jsonl", unchecked=True),
    "somebody's shards": Kind("shards/*.parquet", resume, "shards/*.parquet", unchecked=True),
    "made shards": Kind("made/*.parquet", lambda base: compress(base, "made"), "made/*.parquet"),
    "corpus.json": Kind("made/corpus.json", lambda base: compress(base, "made"), "bundle/core.yaml", unchecked=True),
    "text of a run": Kind("text/*.txt", lambda base: resume(base, "text", "other"), "text/*.txt"),
    "text, .jsonl": Kind("lines/all.jsonl", lambda base: compress(base, "lines"), "talk.jsonl", unchecked=True),
    "bundle, .zip": Kind("bundle.zip", lambda base: evaluate(base, "bundle.zip"), "shards/a.parquet"),
    "bundle: core.yaml": Kind("bundle/core.yaml", evaluate, "grid.yaml", unchecked=True),
    "bundle: .jsonl": Kind("bundle/eval_data/**/*.jsonl", evaluate, "talk.jsonl", unchecked=True),
    "bundle: .csv": Kind("bundle/eval_meta_data.csv", evaluate, "bundle/core.yaml", unchecked=True),
    "conversations": Kind("talk.jsonl", plan_chat, "lines/all.jsonl", unchecked=True),
    "a study's grid": Kind("grid.yaml", plan_study, "bundle/core.yaml", unchecked=True),
    "a study's results": Kind("grid.jsonl", plan_study, "talk.jsonl", unchecked=True),
    "a study's results, reported": Kind("grid.jsonl", report_study, "talk.jsonl", unchecked=True),
    "a study's runs": Kind("studies/grid/runs/*/*.*", study, "runs/other/*.*", unchecked=True),
    "checkpoint, forged": Kind("runs/mine/checkpoints/*/*", reply, f"{CHECKPOINTS}/*", True, forged=True),
    "checkpoint, forged, resumed": Kind(
        "runs/half/checkpoints/*/*", resume_half, f"{CHECKPOINTS}/*", True, forged=True
    ),
    "state, forged, resumed": Kind("runs/half/checkpoints/*/state.json", resume_half, STATES, True, forged=True),
    "state, forged, chat": Kind("runs/half-chat/checkpoints/*/state.json", resume_chat, STATES, True, forged=True),
}
if IMAGES:
    PLACE = "vision/seen/checkpoints/*/*"
    KINDS |= {
        "images: checkpoint": Kind(PLACE, see, PLACE),
        "images: checkpoint, forged": Kind(PLACE, see, PLACE, unchecked=True, forged=True),
        "images: config.yaml": Kind("vision/seen/config.yaml", see, "runs/mine-*/config.yaml", unchecked=True),
        "images: config.yaml, drawn": Kind("vision/seen/config.yaml", see_maps, "runs/*/config.yaml", unchecked=True),
        "images: pictures": Kind("pictures/val/*/*.png", see, "pictures/train/*/*.png", unchecked=True),
    }


def places(content: object) -> Iterator[tuple]:
    """The container and key of every value in a document."""
    for key, value in enumerate(content) if isinstance(content, list) else content.items():
        yield content, key
        if isinstance(value, dict | list):
            yield from places(value)


def sign(folder: Path) -> None:
    """Make a checkpoint's manifest anew."""
    with contextlib.suppress(OSError, ValueError):
        files = {name: checkpoint._fingerprint(folder / name) for name in checkpoint.FILES}
        (folder / checkpoint.MANIFEST).write_text(checkpoint._manifest(checkpoint.step_of(folder), files))


def damage(rng: random.Random, path: Path, others: list[Path]) -> str:
    """Damage a file in one way, and say which."""
    content = path.read_bytes()
    way = rng.choice(WAYS)
    if path.suffix == ".json" and rng.random() < FORGED:
        way = "forge"
    if way in CONTENTS:
        path.write_bytes(CONTENTS[way])
        return way
    if way == "flip":
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :])
        return f"flip byte {at}"
    if way == "truncate":
        size = rng.randrange(len(content))
        path.write_bytes(content[:size])
        return f"cut to {size} of {len(content)}"
    if way == "forge":
        content = json.loads(content)
        place, key = rng.choice([*places(content)])
        place[key] = rng.choice(VALUES)
        path.write_text(json.dumps(content))
        return f"{key} {place[key]!r}"
    if way in IN_PLACE:
        path.unlink()
        IN_PLACE[way](path)
        return way
    other = rng.choice([other for other in others if other.read_bytes() != content])
    path.write_bytes(other.read_bytes())
    return f"swap with {other.parent.name}/{other.name}"


def judge(kind: Kind, path: Path, outcome: Outcome, same: bool) -> str:
    """The end of a case; what is not in ALLOWED is a defect (of an unchecked file, `other input` is none)."""
    if outcome.code is None:
        return f"traceback {outcome.error!r}"
    if outcome.code == 0:
        if same:
            return "same result"
        if REPORTED.search(outcome.err + outcome.out):
            return "reported"
        return "other input" if kind.unchecked else "silent"
    if outcome.code not in (1, 2):
        return f"exit code {outcome.code}"
    folder = path.parent.name if path.parent.name.startswith("step_") else str(path.parent)
    names = (path.name, folder, *re.findall(r": (--[a-z-]+|[a-z_.]+): got ", outcome.err))
    named = any(name in outcome.err for name in names) and "Traceback" not in outcome.err
    return "refused" if named else "refused without a name"


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_noticed_or_harmless(world, name, cases):
    kind, rng, defects = KINDS[name], random.Random(f"{name} {cases}"), []
    first, expected = kind.read(world.base)
    assert first.code == 0, first
    for _ in range(cases):
        world.restore()
        files = sorted(path for path in world.base.glob(kind.pattern) if path.is_file())
        others = sorted(path for path in world.base.glob(kind.others) if path.is_file())
        path = rng.choice(files)
        before = {file for file in world.base.rglob("*") if file.is_file()}
        how = damage(rng, path, others)
        if kind.forged and path.name != checkpoint.MANIFEST:
            sign(path.parent)
        try:
            with patience(PATIENCE):
                outcome, result = kind.read(world.base)
            verdict = judge(kind, path, outcome, result == expected)
        except TooLongError:
            outcome, verdict = Outcome(2, "", ""), "it does not end"
        lost = [file for file in before if not file.exists() and file != path]
        if outcome.code != 0 and lost:
            verdict = f"lost {lost}"
        if verdict not in ALLOWED and not (kind.unchecked and verdict == "other input"):
            defects.append(f"{name}: {path.relative_to(world.base)}, {how}: {verdict}; {outcome.err[-300:]!r}")
    assert defects == []


@pytest.mark.parametrize("read", [resume, report, reply])
def test_another_runs_metrics_and_configuration_are_refused(world, read):
    name, other = ("config.yaml", "mine-chat") if read is reply else ("metrics.jsonl", "other")
    path = world.base / "runs" / "mine" / name
    path.write_bytes((world.base / "runs" / other / name).read_bytes())
    outcome, _ = read(world.base)
    assert outcome.code == 2
    assert f"--run: {path} is another run's" in outcome.err


def test_text_that_changed_since_a_run_learned_from_it_is_said_beside_its_scores(world):
    (world.base / "shards" / "a.parquet").write_bytes((world.base / "shards" / "b.parquet").read_bytes())
    words = "--run mine --eval bpb --device cpu --dtype float32 --split-tokens 256"
    outcome = call("base_eval", *words.split())
    assert outcome.code == 0
    note = f"{world.base / 'shards'} holds other text than when the run was trained on it"
    assert json.loads(outcome.out.splitlines()[-1])["notes"] == [note]
