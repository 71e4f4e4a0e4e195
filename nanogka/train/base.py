"""A training that starts from another run: fine-tuning from a base model, reinforcement learning from a chat model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nanogka.common.cli import flag
from nanogka.common.files import base_dir
from nanogka.runs import CONFIG, Run, SavedRun, find_run, open_latest, read_config
from nanogka.train.plan import RunSettings

Starting = TypeVar("Starting", bound="BaseSettings")


@dataclass(frozen=True)
class BaseSettings(RunSettings):
    """Run to start from."""

    base: str = flag("", "run to start from: a tag or folder (default: the latest of its kind)", affects="losses")
    base_step: int | None = flag(
        None, "step of that run's checkpoint (default: the newest valid one)", affects="losses"
    )


def base_facts(base: SavedRun) -> dict[str, Any]:
    """Run, step and pretraining text for config.yaml. A chat model has its text from its own base."""
    earlier = base.part("run").get("base") or base.part("settings")
    return {"run": base.folder.name, "step": base.step, "data": earlier.get("data")}


def open_base(settings: BaseSettings, kind: str = "base") -> SavedRun:
    """Load the model that `--base` names, or the latest run of this kind. A run that resumes has named it already."""
    name, step = settings.base, settings.base_step
    resumed = base_dir() / "runs" / settings.run
    if settings.run and settings.resume == "auto" and (resumed / CONFIG).is_file():
        # The latest chat run may be the one that resumes.
        before = read_config(resumed)["settings"]
        same = before.get("base") and name and find_run(name, flag="base") == find_run(before["base"], flag="base")
        if same or name in ("", before.get("base")):
            name, step = before.get("base") or "", before.get("base_step") if step is None else step

    def read(folder: Path) -> SavedRun:
        return Run.open(folder).saved(step, flag="base_step")

    if name or step is not None:
        return read(find_run(name or None, kind=None if name else kind, flag="base"))
    return open_latest(read, kind)


def name_run(settings: Starting, base: SavedRun, suffix: str) -> tuple[Starting, str]:
    """The settings with the base that was found, and the name of the run's folder.

    A base outside of the runs' folder is recorded by its path, because a run that resumes must find it again.
    """
    runs, folder = base_dir() / "runs", base.folder
    name = settings.run or f"{folder.name}-{suffix}"
    if runs / name == folder:
        raise ValueError(f"run: got {name!r}, expected a name other than that of the run to start from")
    found = folder.name if (runs / folder.name).resolve() == folder.resolve() else str(folder.absolute())
    return replace(settings, base=found, base_step=base.step), name


def examples_text(questions: Sequence[str]) -> str:
    """The contents of the file of questions that show people what a run learned."""
    return json.dumps(questions, ensure_ascii=False, indent=1) + "\n"


def promise_facts(promises: Sequence[str]) -> dict[str, str]:
    """Promises of the model's sources, for config.yaml: sentences on what it will be able to do, if there are any."""
    said = " ".join(filter(None, promises))
    return {"promise": said} if said else {}
