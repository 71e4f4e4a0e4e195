"""The file of results of one evaluation. It is written after each part, so that a stopped evaluation can continue."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nanogka.common.cli import print_json
from nanogka.common.digest import digest
from nanogka.common.distributed import Ranks
from nanogka.common.files import expand_path, read_json
from nanogka.common.formatting import one_line
from nanogka.evaluate.models import EvaluatedModel
from nanogka.evaluate.results import write_json
from nanogka.evaluate.settings import ChatEvalSettings, EvalSettings

# The packages whose code decides what a model answers and how it is scored.
CODE = (
    "nanogka.attention",
    "nanogka.data",
    "nanogka.evaluate",
    "nanogka.generate",
    "nanogka.kernels",
    "nanogka.model",
    "nanogka.tokenizer",
)


def key_of(deciding: object, code: Sequence[str] = ()) -> str:
    """A hash of what decides results: JSON, the version of torch, and the source files of `CODE` and more modules."""
    return digest([deciding, str(torch.__version__)], [*CODE, *code])


@dataclass(frozen=True)
class Document:
    """The results of an evaluation, on all ranks, and the file that rank 0 writes them to."""

    file: Path
    title: str
    content: dict[str, Any]
    settings: EvalSettings | ChatEvalSettings
    ranks: Ranks
    began: float  # seconds, of `time.perf_counter`

    @classmethod
    def open(
        cls,
        model: EvaluatedModel,
        settings: EvalSettings | ChatEvalSettings,
        file: str,
        made_from: str,
        notes: Sequence[str],
        ranks: Ranks,
        **head: object,
    ) -> "Document":
        """Begin the results that the settings ask for. `file` is their default name, `made_from` a `key_of` them."""
        path = expand_path(settings.output or model.folder / file)
        if ranks.is_main:
            path.parent.mkdir(parents=True, exist_ok=True)
        about = {"settings": dataclasses.asdict(settings), "notes": list(notes)}
        content = model.to_json() | {"complete": False, "made_from": made_from, "tasks": []} | head | about
        return cls(path, model.title, content, settings, ranks, time.perf_counter())

    def earlier(self) -> dict[str, Any]:
        """The document in the file now, empty if there is none that can be read or used. All ranks call this."""
        found: dict[str, Any] = {}
        if self.settings.cache and self.ranks.is_main:
            try:
                found = read_json(self.file)
            except (OSError, ValueError):
                found = {}
        return self.ranks.all_gather(found)[0]  # ranks may not share a disk

    def is_finished_by(self, earlier: dict[str, Any]) -> bool:
        """Return whether an earlier document has all results, and print them; if not, say what begins."""
        same = earlier.get("made_from") == self.content["made_from"]
        # Rank 0 decides for all: its device has another name than theirs.
        finished = self.ranks.all_gather(same and earlier.get("complete") is True)[0]
        if self.ranks.is_main and finished:
            print(f"{self.title}: evaluated already, see {one_line(self.file)} (--no-cache evaluates again)")
            print_json(earlier, self.settings.json)
        elif self.ranks.is_main:
            print("\n".join([self.title, *self.content["notes"]]), flush=True)
        return finished

    def save(self, **results: object) -> None:
        """Write the results so far."""
        self.content.update(results, seconds=round(time.perf_counter() - self.began, 2))
        if self.ranks.is_main:
            write_json(self.file, self.content)

    def finish(self) -> None:
        """Write that all results are here, and print where, and with `--json` the results."""
        self.save(complete=True)
        if self.ranks.is_main:
            print(f"written to {one_line(self.file)}")
            print_json(self.content, self.settings.json)
