"""Reading benchmarks from the Hugging Face hub."""

from collections.abc import Callable
from typing import TypeVar

from nanogka.data.hub import Hub

T = TypeVar("T")


def items_of(hub: Hub, dataset: str, config: str, split: str, convert: Callable[[dict], T]) -> list[T]:
    """Return `convert(row)` for all rows of a split. Raises ValueError that names the first malformed row."""
    items = []
    for number, row in enumerate(hub.load(dataset, config, split), 1):
        try:
            items.append(convert(row))
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            where = f"{dataset} {config}, {split}, row {number}"
            raise ValueError(f"{where}: malformed: {type(error).__name__} {error}") from error
    if not items:
        raise ValueError(f"{dataset} {config}, {split}: no rows")
    return items
