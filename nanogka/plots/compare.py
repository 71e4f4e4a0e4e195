"""Which two runs may stand side by side: the same settings, another token mixer."""

from pathlib import Path

import yaml

from nanogka.plots.runs import Run, load_run

# What two comparable runs may differ in: the mixer and what belongs to it alone, what does not touch losses or speed,
# and how the horizon was asked for (its outcome is compared instead).
FREE_SETTINGS = {
    "attention",
    "bandwidth_init",
    "bandwidth_lr",
    "run",
    "resume",
    "overwrite",
    "keep",
    "save_every",
    "eval_every",
    "wandb_run",
    "device",  # part of SPEED_FACTS, as is whether it was compiled
    "compile",
    "device_batch_size",
    "num_iterations",
    "target_flops",
    "target_param_data_ratio",
    "total_batch_size",
}
FREE_MODEL_FIELDS = {"mixer_pattern", "bandwidth_init"}
OUTCOMES = ("total_batch_size", "num_iterations")
# A recorded fingerprint says more than the path or name in the settings: {fingerprint in `run`: setting}.
FINGERPRINTS = {"corpus": "data", "tokenizer": "tokenizer"}
# What speed depends on beside the model.
SPEED_FACTS = ("hardware", "world_size", "device", "dtype", "compiled", "torch")


def differing_settings(one: Run, other: Run) -> dict[str, tuple[object, object]]:
    """What two runs differ in beside the mixer: each setting's two values."""
    pairs = {name: (one.fact(name), other.fact(name)) for name in OUTCOMES}
    for part, free in (("settings", FREE_SETTINGS), ("model", FREE_MODEL_FIELDS)):
        first, second = one.part(part), other.part(part)
        pairs |= {name: (first.get(name), second.get(name)) for name in {*first, *second} - free}
    for fingerprint, setting in FINGERPRINTS.items():
        found = tuple(run.part("run").get(fingerprint) for run in (one, other))
        if None not in found:
            pairs[setting] = (None, None) if found[0] == found[1] else tuple(value[:12] for value in map(str, found))
    return {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]}


def speeds_compare(one: Run, other: Run) -> bool:
    """Whether both ran on the same machine in the same way, so that their tokens per second mean something."""
    return all(one.part("run").get(name) == other.part("run").get(name) for name in SPEED_FACTS)


def find_counterpart(run: Run, runs: Path) -> Run | None:
    """The newest finished run under `runs` with another mixer and otherwise the same settings, or None.

    A run whose configuration does not say what it was is nobody's counterpart.
    """
    if run.gpt_config is None or run.fact("num_iterations") is None:
        return None
    found = []
    for path in sorted(runs.glob("*/config.yaml")):
        if path.parent.resolve() == run.folder.resolve() or not _plausible(path, run):
            continue
        try:
            other = load_run(path.parent)
        except ValueError:  # a run that is only just starting, or damaged: not this report's concern
            continue
        if other.finished and other.attention != run.attention and not differing_settings(run, other):
            found.append((path.stat().st_mtime, other))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _plausible(path: Path, run: Run) -> bool:
    """Whether a configuration is worth reading its run's metrics for: the same model but for the mixer."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, OSError):
        return False
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, dict):
        return False
    same = all(model.get(name) == value for name, value in run.part("model").items() if name not in FREE_MODEL_FIELDS)
    return same and model.get("mixer_pattern") != run.part("model").get("mixer_pattern")
