"""Check a run's folder against what a new command asks for, before anything is built."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanogka.checkpoint import list_checkpoints
from nanogka.common.cli import flag_name
from nanogka.common.errors import Errors
from nanogka.model import GPTConfig, mixer_options
from nanogka.runs import CONFIG, model_config, read_config
from nanogka.train.settings import LoopSettings, compared_on_resume

# Computed from a run and kept in its folder.
RESULTS = ("evaluation.json", "chat_evaluation.json", "report.md", "report.html")
RESULTS += ("plots", "visualization", "maps", "profile")
# Fingerprints of data in config.yaml: the flag that names the data, and what a difference means.
DATA_FINGERPRINTS = {
    "corpus": ("data", "other text, or its files have changed"),
    "footers": ("data", "the same files with other contents"),
    "tokenizer": ("tokenizer", "another vocabulary"),
}
ADVICE = "--overwrite deletes it, --run NAME makes another"


def check_folder(folder: Path, settings: LoopSettings, config: GPTConfig, facts: Mapping[str, object]) -> list[str]:
    """Return the names of checkpoints and results in a folder from which to resume; empty for a fresh start.

    Raises ValueError where checkpoints or results would be lost without `--overwrite`, where nothing in the folder can
    be used, and where the folder has a run with other settings. No checkpoint is read.
    """
    if settings.dry_run or settings.overwrite:
        return []
    try:
        found = [path.name for path in list_checkpoints(folder / "checkpoints")]
        found += [name for name in RESULTS if (folder / name).exists()]
        configured = (folder / CONFIG).exists()
    except OSError as error:
        raise ValueError(f"run: {folder} cannot be read ({error}); it was not changed") from error
    if found and not configured:
        raise ValueError(f"run: {folder} has no {CONFIG}, but holds {', '.join(found)}; {ADVICE}")
    if found and settings.resume == "never":
        raise ValueError(f"run: {folder} holds a run already; --resume auto continues it, {ADVICE}")
    if configured and settings.resume == "auto":
        refuse_differences(folder, settings, config, facts)
    return found


def refuse_differences(folder: Path, settings: LoopSettings, config: GPTConfig, facts: Mapping[str, Any]) -> None:
    """Raise ValueError naming every way in which a run differs from the one in its folder."""
    saved = read_config(folder)
    now, before, errors = settings.to_dict(), saved["settings"], Errors()
    compared = compared_on_resume(type(settings))
    for name in now:
        known = name in before or name in mixer_options()  # a mixer's option that is not in an old file was off
        differs = known and name in compared and before.get(name) != now[name]
        errors.require(not differs, flag_name(name), now[name], f"{before.get(name)!r}, as {folder} has")
    other_data = set()
    for name, (flag, difference) in DATA_FINGERPRINTS.items():
        here, there = facts.get(name), (saved.get("run") or {}).get(name)
        if here and there and here != there and flag in now and flag not in other_data:
            other_data.add(flag)
            errors.lines.append(
                f"--{flag}: got {now[flag]!r} ({here[:12]}…), expected what {folder} was trained with, "
                f"{before.get(flag)!r} ({there[:12]}…): it is {difference}"
            )
    # An old config file may lack options that are newer, so it is read as a configuration first.
    model, other = config.to_dict(), model_config(saved, folder).to_dict()
    for name in {**other, **model}:
        same = other.get(name) == model.get(name)
        errors.require(same, f"model {name}", model.get(name), f"{other.get(name)!r}, as {folder} has")
    errors.raise_if_any()
