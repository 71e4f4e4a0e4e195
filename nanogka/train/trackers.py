"""Services and files that show a run's metrics while it trains, each an optional package.

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
Log = Callable[[int, Mapping[str, float]], None]  # takes a step and values by their names


@contextmanager
def open_tracker(tracker: str, folder: Path, config: dict, resumed_from: int | None = None) -> Iterator[Log]:
    """Open a tracker (a name of `TRACKERS`, or "none") for the run in `folder`, whose config.yaml is there already."""
    if tracker == "none":
        yield lambda step, values: None
        return
    package, backend = TRACKERS[tracker]
    try:
        module = import_module(package)
    except ImportError as error:
        raise ValueError(
            f"--tracker: got {tracker!r}, but its package is missing: pip install 'nanogka[{tracker}]' ({error})"
        ) from error
    with backend(module, folder, config, resumed_from) as log:
        yield log


def run_id(folder: Path) -> str:
    """A run's id: the same after a resume, another for a new run of the same name."""
    created = read_config(folder)["run"]["created"]
    return hashlib.sha256(f"{folder.name} {created}".encode()).hexdigest()[:12]


@contextmanager
def wandb(module: ModuleType, folder: Path, config: dict, resumed_from: int | None) -> Iterator[Log]:
    """Weights & Biases. Steps are a metric of their own, since its count does not go back to a checkpoint."""
    run = module.init(project=PROJECT, name=folder.name, id=run_id(folder), resume="allow", config=config)
    run.define_metric("*", step_metric="step")
    try:
        yield lambda step, values: run.log({"step": step, **values})
    finally:
        run.finish()


@contextmanager
def trackio(module: ModuleType, folder: Path, config: dict, resumed_from: int | None) -> Iterator[Log]:
    """Trackio, which knows a run by its name alone."""
    name = f"{folder.name}-{run_id(folder)}"
    run = module.init(project=PROJECT, name=name, resume="allow", config=config)
    try:
        yield lambda step, values: run.log(dict(values), step=step)
    finally:
        module.finish()


@contextmanager
def tensorboard(module: ModuleType, folder: Path, config: dict, resumed_from: int | None) -> Iterator[Log]:
    """TensorBoard: event files in the run's folder; what is after the step resumed from is hidden."""
    purge = None if resumed_from is None else resumed_from + 1
    with module.SummaryWriter(folder / "tensorboard", purge_step=purge) as writer:

        def log(step: int, values: Mapping[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield log


TRACKERS = {  # the module of each, and what opens it
    "wandb": ("wandb", wandb),
    "trackio": ("trackio", trackio),
    "tensorboard": ("torch.utils.tensorboard", tensorboard),
}
