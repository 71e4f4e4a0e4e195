"""Other runs in a run's report: the runs to compare with, and the chat run fine-tuned from it."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from nanogka.model.mixers import MIXERS
from nanogka.plots.style import COLORS
from nanogka.plots.trained_run import TrainedRun
from nanogka.runs import CONFIG, find_run, newest_first, open_latest
from nanogka.train.settings import with_network_defaults

# Settings that do not matter for a comparison, and settings that a fingerprint replaces.
UNIMPORTANT = {"run", "resume", "overwrite", "keep", "keep_best", "save_every", "eval_every", "tracker", "attention"}
UNIMPORTANT |= {"device", "compile", "device_batch_size", "data", "tokenizer", "hardware", "devices", "price"}
UNIMPORTANT |= {"allow_torch", "target_flops", "target_param_data_ratio", "total_batch_size", "num_iterations"}
MACHINE = ("hardware", "world_size", "device", "dtype", "compiled", "torch")


def open_report_run(given: str | None, flag: str = "--run") -> TrainedRun:
    """Find the run that a flag names, or the latest base run. A chat run is replaced by its base run."""
    found = TrainedRun.open(find_run(given, flag=flag)) if given else open_latest(TrainedRun.open, "base")
    base = base_folder(found)
    return found if base is None else TrainedRun.open(base)


def run_colors(runs: Sequence[TrainedRun]) -> list[str]:
    """Return a color per run: its mixer's color, or a free one for a hybrid or a second run of a mixer."""
    own = [MIXERS[run.attention].color if run.attention in MIXERS else None for run in runs]
    spare = cycle([color for color in COLORS if color not in {mixer.color for mixer in MIXERS.values()}])
    return [color if color and color not in own[:i] else next(spare) for i, color in enumerate(own)]


def differing_settings(one: TrainedRun, other: TrainedRun) -> dict[str, tuple[object, object]]:
    """Return the settings in which two runs differ, except the mixer, as {name: (value, value)}.

    A setting that is missing in an older run had today's default.
    """
    first, second = (with_network_defaults({"network": "february"} | run.part("settings")) for run in (one, other))
    pairs = {name: (first.get(name), second.get(name)) for name in {*first, *second} - UNIMPORTANT}
    pairs |= {name: (one.fact(name), other.fact(name)) for name in ("n_layer", "total_batch_size", "num_iterations")}
    return {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]}


def check_comparable(run: TrainedRun, other: TrainedRun) -> None:
    """Raise ValueError if two runs cannot be compared: they are one run, or their text or vocabulary differs."""
    if run.folder.resolve() == other.folder.resolve():
        raise ValueError(f"--compare: got {other.tag!r}, expected another run than --run")
    for fact, name in (("corpus", "text"), ("tokenizer", "tokenizer")):
        one, two = (str(r.part("run").get(fact) or "") for r in (run, other))
        if one and two and one != two:
            raise ValueError(
                f"--compare: got {other.tag!r}, whose {name} has the fingerprint {two[:12]}, expected the {name} of "
                f"{run.tag!r}, {one[:12]}: bits per byte of different text do not compare"
            )


def same_machine(one: TrainedRun, other: TrainedRun) -> bool:
    """Return whether the speeds are comparable: both ran on the same machine in the same way."""
    return all(one.part("run").get(name) == other.part("run").get(name) for name in MACHINE)


def find_chat_run(run: TrainedRun) -> TrainedRun | None:
    """Return the newest chat run in the same folder that was fine-tuned from `run`."""
    folder = run.folder.resolve()
    bases = ((other, base_folder(other)) for other in _newest_first(folder.parent))
    return next((other for other, base in bases if base and base.name == folder.name), None)


def base_folder(run: TrainedRun) -> Path | None:
    """Return the folder of the run that a chat run was fine-tuned from, or None for other runs."""
    base = run.part("run").get("base")
    fine_tuned = run.kind == "chat" and isinstance(base, dict) and base.get("run")
    return run.folder.resolve().parent / str(base["run"]) if fine_tuned else None


def _newest_first(runs: Path) -> Iterator[TrainedRun]:
    """Return the runs in a folder, newest first. Runs that have not trained yet or are damaged are skipped."""
    for path in newest_first(runs.glob(f"*/{CONFIG}")):
        try:
            yield TrainedRun.open(path.parent)
        except (ValueError, OSError):
            continue
