"""Runs that may stand beside a run in its report: those that differ in the mixer alone, and what was made from it."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from nanogka.model import mixer_options
from nanogka.model.mixers import MIXERS
from nanogka.plots.style import COLORS
from nanogka.plots.trained_run import TrainedRun
from nanogka.runs import CONFIG, find_run, newest_first, open_latest
from nanogka.train.settings import with_network_defaults

# Settings in which two comparable runs may differ: the mixer, its options and rates, what touches neither losses nor
# speed, how the horizon was asked for (OUTCOMES are compared instead), and what MACHINE covers.
FREE_MODEL_FIELDS = {"mixer_pattern", "bandwidth_init", "smear"}
CHOICES = {f"{rate}_lr" for rate in ("matrix", "embedding", "unembedding", "scalar", "vector", "bandwidth")}
CHOICES |= {"lr_scale", "weight_decay", "bandwidth_init", "smear"}
FREE_SETTINGS = CHOICES | {"attention", "device", "compile", "device_batch_size"}
FREE_SETTINGS |= {"run", "resume", "overwrite", "keep", "keep_best", "save_every", "eval_every", "tracker"}
FREE_SETTINGS |= {"hardware", "devices", "price", "allow_torch"}
FREE_SETTINGS |= {"num_iterations", "target_flops", "target_param_data_ratio", "total_batch_size"}
OUTCOMES = ("total_batch_size", "num_iterations")
FINGERPRINTS = {"corpus": "data", "tokenizer": "tokenizer"}  # recorded fingerprint: the setting whose path it replaces
MACHINE = ("hardware", "world_size", "device", "dtype", "compiled", "torch")


def open_report_run(given: str | None) -> TrainedRun:
    """The run that a flag names, or the base run trained last; of a chat run, the run it was made from."""
    found = TrainedRun.open(find_run(given)) if given else open_latest(TrainedRun.open, "base")
    base = base_folder(found)
    return found if base is None else TrainedRun.open(base)


def run_colors(runs: Sequence[TrainedRun]) -> list[str]:
    """A color per run: its mixer's, or one that no mixer has, for a hybrid and where two would be the same."""
    own = [MIXERS[run.attention].color if run.attention in MIXERS else None for run in runs]
    spare = cycle([color for color in COLORS if color not in {mixer.color for mixer in MIXERS.values()}])
    return [color if color and color not in own[:i] else next(spare) for i, color in enumerate(own)]


def differing_settings(one: TrainedRun, other: TrainedRun, choices: bool = False) -> dict[str, tuple[object, object]]:
    """The settings beside the mixer in which two runs differ: (value, value). `choices`: with the options and rates."""
    pairs = {name: (one.fact(name), other.fact(name)) for name in OUTCOMES}
    options = mixer_options().keys()
    free_settings = FREE_SETTINGS - CHOICES if choices else FREE_SETTINGS | options
    parts = ("settings", free_settings, with_network_defaults), ("model", FREE_MODEL_FIELDS | options, dict)
    for part, free, complete in parts:  # of an earlier version, which had no such setting
        first, second = (complete({"network": "february"} | run.part(part)) for run in (one, other))
        pairs |= {name: (first.get(name), second.get(name)) for name in {*first, *second} - free}
    for fingerprint, setting in FINGERPRINTS.items():
        found = tuple(run.part("run").get(fingerprint) for run in (one, other))
        if None not in found:
            pairs[setting] = (None, None) if found[0] == found[1] else tuple(value[:12] for value in map(str, found))
    return {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]}


def same_machine(one: TrainedRun, other: TrainedRun) -> bool:
    """Return whether both ran on the same machine in the same way, so that their speeds compare."""
    return all(one.part("run").get(name) == other.part("run").get(name) for name in MACHINE)


def find_counterparts(run: TrainedRun, runs: Path) -> list[TrainedRun]:
    """The newest finished run under `runs` of each other mixer, with otherwise the same settings."""
    if run.gpt_config is None or run.fact("num_iterations") is None:
        return []  # its configuration does not say what it was
    found: dict[str, TrainedRun] = {}
    for other in _newest_first(runs):
        if other.attention == run.attention or other.attention in found or other.gpt_config is None:
            continue
        if not differing_settings(run, other) and other.finished:
            found[other.attention] = other
    return list(found.values())


def find_chat_run(run: TrainedRun) -> TrainedRun | None:
    """The newest chat run beside `run` that was made from it."""
    folder = run.folder.resolve()
    bases = ((other, base_folder(other)) for other in _newest_first(folder.parent))
    return next((other for other, base in bases if base and base.name == folder.name), None)


def base_folder(run: TrainedRun) -> Path | None:
    """The folder of the run that a chat run was made from; None for any other run."""
    base = run.part("run").get("base")
    made = run.kind == "chat" and isinstance(base, dict) and base.get("run")
    return run.folder.resolve().parent / str(base["run"]) if made else None


def _newest_first(runs: Path) -> Iterator[TrainedRun]:
    """The runs in a folder of runs, the newest first; those only just starting, or damaged, are skipped."""
    for path in newest_first(runs.glob(f"*/{CONFIG}")):
        try:
            yield TrainedRun.open(path.parent)
        except (ValueError, OSError):
            continue
