"""Datasets of the Hugging Face hub, read through `datasets` at a pinned revision.

A revision fixes the rows: an evaluation of today and one of next year ask the same questions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nanogka.common.files import first_line
from nanogka.data.corpus import document_or_none

T = TypeVar("T")

SHUFFLE_BUFFER = 10_000  # documents among which a stream is shuffled

# Commits of the datasets that this project knows by name. Any other is read as it is today.
REVISIONS = {
    "HuggingFaceTB/smol-smoltalk": "f73fe857d519ff6ac5af2ea67c4d3834da7b8bcc",
    "allenai/ai2_arc": "210d026faf9955653af8916fad021475a3f00453",
    "cais/mmlu": "c30699e8356da336a370243923dbaf21066bb9fe",
    "openai/gsm8k": "e53f048856ff4f594e959d75785d2c2d37b678ee",
    "openai/openai_humaneval": "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
}


SAVED = ("state.json", "dataset_dict.json")  # of a folder that `save_to_disk` of `datasets` wrote


@dataclass(frozen=True)
class Hub:
    """The hub, or copies of its datasets in the folder `root`: DATASET/CONFIG/SPLIT.parquet or .jsonl."""

    root: Path | None = None

    def load(self, dataset: str, config: str = "", split: str | None = None, streaming: bool = False) -> Any:
        """A split of a dataset, or all splits by name; `dataset` may also be a local folder.

        Raises ValueError if a local copy is missing, and OSError if `datasets` cannot read the dataset.
        """
        location = tuple(filter(None, (dataset, config)))
        options: dict[str, Any] = {"split": split} | ({"streaming": True} if streaming else {})
        if self.root is not None:
            folder = self.root.joinpath(*location)
            if not folder.is_dir():
                raise ValueError(f"there is no folder {folder}")
            location = (str(folder),)
        elif dataset in REVISIONS:
            options["revision"] = REVISIONS[dataset]
        import datasets  # slow to import, and only this function needs it

        datasets.disable_progress_bars()
        try:
            if any(Path(dataset, name).is_file() for name in SAVED):
                return _saved(datasets.load_from_disk(dataset), split, streaming)
            return datasets.load_dataset(*location, **options)
        except Exception as error:  # errors of the network, the hub and a dataset's format have no common type
            why = first_line(error.__cause__ or error)  # the outer one often says only that something failed
            if Path(dataset).exists():
                raise OSError(f"{dataset}: `datasets` cannot read this folder: {why}") from error
            raise OSError(f"could not fetch {dataset} from the Hugging Face hub: {why}") from error

    def texts(
        self, dataset: str, config: str, split: str, column: str, *, streaming: bool, seed: int
    ) -> Iterator[str | None]:
        """Yield the documents in a column in random order, None for an empty one.

        Raises ValueError if the column does not hold text, and OSError as `load` does.
        """
        loaded = self.load(dataset, config, split, streaming)
        names = loaded.column_names
        if names is not None and column not in names:
            raise ValueError(f"--column: got {column!r}, expected one of {', '.join(names)}")
        buffer = {"buffer_size": SHUFFLE_BUFFER} if streaming else {}
        for number, row in enumerate(loaded.select_columns([column]).shuffle(seed=seed, **buffer), 1):
            text = row[column]
            if text is not None and not isinstance(text, str):
                got = f"{column!r}, which holds {type(text).__name__} in row {number:,}"
                raise ValueError(f"--column: got {got}, expected a column of text")
            yield document_or_none(text)

    def items(self, dataset: str, config: str, split: str, convert: Callable[[dict], T]) -> list[T]:
        """Return `convert(row)` for all rows of a split. Raises ValueError that names the first malformed row."""
        items = []
        for number, row in enumerate(self.load(dataset, config, split), 1):
            try:
                items.append(convert(row))
            except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
                where = f"{dataset} {config}, {split}, row {number}"
                raise ValueError(f"{where}: malformed: {type(error).__name__} {error}") from error
        return items


def _saved(loaded: Any, split: str | None, streaming: bool) -> Any:
    """A split of what `load_from_disk` returned, or all splits; a dataset without splits is `train`."""
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    if split is None:
        return splits
    if split not in splits:
        raise ValueError(f"it has the splits {', '.join(splits)}, not {split}")
    return splits[split].to_iterable_dataset() if streaming else splits[split]
