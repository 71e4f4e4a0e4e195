"""Odd values for every flag of every script, built from the settings themselves: a new flag is attacked by itself.

Each script runs up to the point at which it would begin to do something; there the campaign adds a problem of its own,
so that nothing is begun. What has `--dry-run` runs that as well. Every value ends in time, without a traceback, with
code 0 or 2, and creates nothing; one that can never be right is refused with the flag's name.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack_world import TooLongError, World, call, patience

import nanogka.common.cli
from nanogka.common.cli import flag_name, flags_of
from nanogka.common.errors import Errors
from scripts import bench

FILES = {path.stem for path in (Path(__file__).parents[2] / "scripts").glob("[!_]*.py")}
SCRIPTS = sorted(FILES - {"bench"}) + [f"bench {subject}" for subject in bench.SUBJECTS if subject != "vision"]
WRONG = {  # values that no flag of the type can take
    int: ("²", "1e999", "inf", "nan", "9" * 23, "1e300", "2.5", "0x10", "", "-1e19", "1e-3", "\udcff"),
    float: ("nan", "inf", "-inf", "1e999", "", "fast", "1,5", "\udcff"),
    str: ("\udcff\udcfe",),
}
ODD = {
    int: ("0", "-1", "1", "1e18", "-1e18", "1e12", "65537", "1_0"),
    float: ("0", "-0.0", "-1", "1e-320", "1e308", "1e-45", "1"),
    str: (
        *" |.|..|../x|/|/dev/null|a\nb|\x1b[31m|-1|,|1,,2|1e18|%s|~nobody/x|💥|{}|none|²|cuda:99|inf|1:2:3|0".split(
            "|"
        ),
        *("", "x" * 5000, "x/" * 3000, "9" * 23),
    ),
}
PATIENCE = 20  # seconds
# What stands for a default that would fetch something, or take long to make, in every script that has such a flag.
CONTEXT = {"data": "text", "tokenizer": "tiny", "device": "cpu", "eval_bundle": "bundle", "grid": "grid.yaml"}
TALK = {"data": "talk.jsonl"}  # in scripts that learn from conversations
CONTEXT |= {"sequence_len": "32", "total_batch_size": "64", "num_iterations": "2", "depth": "1", "base": "mine"}
KEPT = {"corpora"}  # kept for the next time, whatever becomes of this one
PATHS = {"data", "eval_bundle", "grid"}


class Poisoned(Errors):
    """Errors that are never none."""

    def raise_if_any(self) -> None:
        self.lines.append("--poison: got this campaign, expected no work")
        super().raise_if_any()


def settings_of(script: str, monkeypatch: pytest.MonkeyPatch) -> type:
    """The dataclass of a script's flags, from its own call of `nanogka.common.cli.parse`."""
    found = []

    def parse(settings: type, *_: object) -> None:
        found.append(settings)
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(nanogka.common.cli, "parse", parse)
        call(*script.split())
    return found[0]


def cases_of(script: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str, str, bool, bool]]:
    """(script, field, value, whether it must be refused, whether it is a dry run) of every case."""
    flags = flags_of(settings_of(script, monkeypatch))
    for dry in (False, True) if "dry_run" in flags else (False,):
        for name, f in flags.items():
            choices = f.limits["choices"]
            for value in WRONG.get(f.kind, ()):
                yield script, name, value, True, dry
            for value in ODD.get(f.kind, ()):
                yield script, name, value, choices is not None and value not in choices, dry


def attempt(world: World, case: tuple[str, str, str, bool, bool], flags: dict) -> str:
    """Run a case: `refused`, `accepted`, or what is wrong."""
    script, name, value, wrong, dry = case
    context = CONTEXT | (TALK if "base" in flags else {})
    context |= {path: str(world.base / context[path]) for path in PATHS}
    words = [f"{flag_name(other)}={context[other]}" for other in flags if other in context and other != name]
    if "run" in flags and name != "run" and "base" not in flags and script != "base_train":
        words.append("--run=mine")
    words += ["--dry-run"] if dry else []
    with pytest.MonkeyPatch.context() as patch:
        if not dry:
            patch.setattr(nanogka.common.cli, "Errors", Poisoned)
        try:
            with patience(PATIENCE):
                outcome = call(*script.split(), *words, f"{flag_name(name)}={value}")
        except TooLongError:
            return "DEFECT: it does not end"
    lines = outcome.err.splitlines()
    if outcome.code is None:
        return f"DEFECT: {outcome.error!r}"
    if outcome.code not in (0, 2) or (outcome.code == 0 and not dry):
        return f"DEFECT: exit code {outcome.code}: {lines[-2:]}"
    if any(ord(char) < 32 for line in lines for char in line):
        return f"DEFECT: control characters: {lines}"
    other = [line for line in lines if not re.search(r": --poison|skipped", line)]
    named = any(re.search(rf"(--)?{name.replace('_', '[-_]')}\b", line) for line in other)
    if wrong and not named:
        return f"DEFECT: refused without its name: {lines}"
    return "refused" if named else "accepted"


@pytest.mark.parametrize("sample", [120, pytest.param(None, marks=pytest.mark.slow)])
def test_an_odd_value_is_refused_by_name_or_taken(world, monkeypatch, sample):
    cases = [case for script in SCRIPTS for case in cases_of(script, monkeypatch)]
    chosen = random.Random(3).sample(cases, sample or len(cases))
    refused, defects = 0, []
    before = set(world.base.rglob("*"))
    monkeypatch.chdir(world.base)
    flags = {script: flags_of(settings_of(script, monkeypatch)) for script in SCRIPTS}
    for case in chosen:
        end = attempt(world, case, flags[case[0]])
        made = {path for path in world.base.rglob("*") if not KEPT & set(path.relative_to(world.base).parts)} - before
        if made:
            end = f"DEFECT: made {sorted(made)[:3]}"
            world.restore()
        refused += end == "refused"
        if end.startswith("DEFECT"):
            defects.append(f"{case[0]} {flag_name(case[1])}={case[2][:40]!r} dry={case[4]}: {end}")
    assert defects == []
    assert refused > len(chosen) / 3
