"""Tasks from the Hugging Face hub, through `datasets`, in place of an evaluation bundle.

    source = open_hub(TASKS)                    # what the tasks declare as their `hub`
    source = open_hub(TASKS, Path("mirror"))    # the same from folders: mirror/Rowan/hellaswag/…
    data = source.load("hellaswag")

The items come in the hub's order; where that is not the bundle's, other items serve as examples and are left out by a
maximum, so that scores differ within their standard error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanogka.evaluate.download import DownloadError
from nanogka.evaluate.task import HubSource, Task, TaskData, item_problem


@dataclass(frozen=True)
class HubTasks:
    """The tasks that can be had from the hub; `load` as a bundle's.

    Attributes:
        root: the folder of local copies, None for the hub itself.
    """

    root: Path | None
    tasks: Mapping[str, Task]

    def load(self, name: str) -> TaskData:
        """Fetch (or find in the cache of `datasets`), convert and check the items of one task.

        Raises:
            ValueError: if there is no such task here, or a row is not as expected; the text names the row.
            DownloadError: if the hub cannot be reached or does not have it; one line.
        """
        if name not in self.tasks:
            raise ValueError(f"task {name!r} is not on the hub; there are {', '.join(self.tasks)}")
        task = self.tasks[name]
        rows = self._rows(task.hub)
        source = f"{task.hub.dataset} {task.hub.config}".strip() + f", {task.hub.split}"
        items = [_convert(task, row, f"{source}, row {number}") for number, row in enumerate(rows, 1)]
        if not items:
            raise ValueError(f"{source}: no items")
        return TaskData(task, items, source)

    def _rows(self, hub: HubSource):
        # a quarter of a second to import, and only this needs it
        import datasets

        arguments = [hub.dataset, hub.config] if hub.config else [hub.dataset]
        if self.root is not None:
            folder = self.root / hub.dataset / hub.config
            if not folder.is_dir():
                raise ValueError(f"--eval-bundle: there is no folder {folder}")
            arguments = [str(folder)]
        datasets.disable_progress_bars()
        try:
            return datasets.load_dataset(*arguments, split=hub.split)
        except Exception as error:  # the errors of the network, the hub and a dataset's format have no common type
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DownloadError(f"could not fetch {hub.dataset} from the Hugging Face hub: {reason}") from error


def open_hub(declared: Mapping[str, Task], root: Path | None = None) -> HubTasks:
    """The declared tasks that say where they are on the hub."""
    return HubTasks(root, {name: task for name, task in declared.items() if task.hub is not None})


def _convert(task: Task, row: dict, where: str) -> dict:
    try:
        item = task.hub.convert(row)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{where}: not as task {task.name} expects it: {type(error).__name__} {error}") from error
    if problem := item_problem(task.type, item):
        raise ValueError(f"{where}: {task.type}: {problem}")
    return item
