"""Services that show a run's metrics while it trains, each an optional package.

Runs belong to the project "nanogka" and have their folder's name. A resumed run keeps its id.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from nanogka.runs import read_config

PROJECT = "nanogka"
TRACKERS = {"wandb": "wandb", "trackio": "trackio", "tensorboard": "torch.utils.tensorboard"}  # and their modules
Log = Callable[[int, Mapping[str, float]], object]  # receives a step and values by their names


def import_tracker(tracker: str) -> ModuleType | None:
    """The module of a tracker, None for "none". Raises ValueError if it is not installed."""
    try:
        return None if tracker == "none" else import_module(TRACKERS[tracker])
    except ImportError as error:
        install = f"pip install -e '.[{tracker}]'"
        raise ValueError(f"tracker: got {tracker!r}, whose package is missing: {install} ({error})") from error


def run_id(folder: Path) -> str:
    """A run's id: the same after a resume, another for a new run of the same name."""
    created = read_config(folder)["run"]["created"]
    return hashlib.sha256(f"{folder.name} {created}".encode()).hexdigest()[:12]


@contextmanager
def open_tracker(tracker: str, folder: Path, config: dict, resumed_from: int | None = None) -> Iterator[Log | None]:
    """Open a tracker (a name of `TRACKERS`, or "none") for the run in `folder`, whose config.yaml is there already."""
    module = import_tracker(tracker)
    if module is None:
        yield None
    elif tracker == "tensorboard":  # hides the events of a run that failed earlier, or after the step to resume from
        purge = 0 if resumed_from is None else resumed_from + 1
        with module.SummaryWriter(folder / "tensorboard", purge_step=purge) as writer:
            yield lambda step, values: [writer.add_scalar(name, value, step) for name, value in values.items()]
    else:
        name, id = folder.name, run_id(folder)
        # Trackio has wandb's interface, but knows a run by its name alone.
        names = {"name": name, "id": id} if tracker == "wandb" else {"name": f"{name}-{id}"}
        run = module.init(project=PROJECT, resume="allow", config=config, **names)
        if tracker == "wandb":
            run.define_metric("*", step_metric="step")  # wandb's own count of steps cannot go back to a checkpoint
        try:
            yield lambda step, values: run.log({"step": step, **values})
        finally:
            module.finish()
