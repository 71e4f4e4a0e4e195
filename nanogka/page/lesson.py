"""The numbers of docs/lesson.md, computed with the engine and the rounded weights of the models' pages."""

from collections.abc import Sequence
from importlib import resources

from nanogka.page.build import describe
from nanogka.page.engine import run_engine
from nanogka.runs import LoadedRun

COPIES = 4
TEXT = " ".join(["kif dovu zam lor."] * COPIES)  # words that no model has read
BITS, SHARE, COST = "bits", "%", "bits per byte"
# Exercise, quantity, its name in lesson.js, what it is measured in, and its place if it is a list: None for all.
SUCCESSOR = [
    ("1", "bits of the first copy", "bits", BITS, 0),
    ("1", "bits of the second copy", "bits", BITS, 1),
    ("1", "bits of the fourth copy", "bits", BITS, COPIES - 1),
    ("2", "weight on what followed, per head", "followed", SHARE, None),
    ("2", "one head cut", "cutHeads", COST, None),
    ("2", "the last layer's heads cut", "cutLayers", COST, -1),
    ("3", "all heads cut", "cutAll", COST, None),
    ("3", "no successor keys in the last layer", "keysOffLast", COST, None),
    ("3", "no successor keys", "keysOffAll", COST, None),
    ("3", "weight on the token itself then, per head", "itselfWithoutKeys", SHARE, None),
    ("4", "σ × 4 in the last layer", "wideLast", COST, None),
    ("4", "σ / 4 in the last layer", "narrowLast", COST, None),
    ("4", "σ × 2 in all layers", "wideAll", COST, None),
    ("4", "weight on what followed then, per head", "followedWide", SHARE, None),
]
GAUSSIAN = [
    ("5", "bits of the second copy", "bits", BITS, 1),
    ("5", "bits of the fourth copy", "bits", BITS, COPIES - 1),
    ("5", "weight on the token itself, per head", "itself", SHARE, None),
    ("5", "weight on what followed, per head", "followed", SHARE, None),
    ("5", "all heads cut", "cutAll", COST, None),
    ("5", "σ × 4 in all layers", "widestAll", COST, None),
    ("5", "σ / 4 in all layers", "narrowAll", COST, None),
    ("5", "successor keys in all layers", "keysOnAll", COST, None),
    ("5", "weight on what followed then, per head", "followedWithKeys", SHARE, None),
]


def lesson_rows(successor: Sequence[LoadedRun], gaussian: Sequence[LoadedRun]) -> list[tuple[str, str, str, str]]:
    """Rows of exercise, model, quantity and its range over the runs. Changes are added to the loss before them."""
    rows = []
    for label, runs, quantities in (("successor", successor, SUCCESSOR), ("gaussian", gaussian, GAUSSIAN)):
        measured = [measure(run) for run in runs]
        for exercise, quantity, name, unit, place in quantities:
            found = [part for one in measured for part in _numbers(one[name], place)]
            rows.append((exercise, label, quantity, _range(min(found), max(found), unit)))
    return rows


def measure(run: LoadedRun, weights: str = "int8") -> dict[str, float | list[float]]:
    """All quantities of one run, by their names in lesson.js."""
    spec, packed = describe(run, weights, TEXT)
    script = resources.files("nanogka.page").joinpath("lesson.js").read_text("utf-8")
    return run_engine(script, spec, packed.data, text=TEXT, copies=COPIES)


def _numbers(value: float | list[float], place: int | None) -> list[float]:
    if not isinstance(value, list):
        return [value]
    return value if place is None else [value[place]]


def _range(low: float, high: float, unit: str) -> str:
    shown = {BITS: "{:.0f}", SHARE: "{:.0f}", COST: "{:+.2f}"}[unit]
    ends = [shown.format(100 * end if unit == SHARE else end) for end in (low, high)]
    return f"{' to '.join(dict.fromkeys(ends))} {unit}"
