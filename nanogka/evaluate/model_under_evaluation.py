"""Opening the model to evaluate: one of our runs, or a model of the transformers library."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nanogka.checkpoint import MANIFEST, WEIGHTS, list_checkpoints, step_of, verify_checkpoint
from nanogka.evaluate.hugging_face import folder_fingerprint, load_hugging_face
from nanogka.runs import LoadedRun, find_run, load_run
from nanogka.runtime import base_dir


@dataclass
class ModelUnderEvaluation:
    """A model ready to be evaluated.

    Attributes:
        name, step, checkpoint: for people; the last two empty for a model of another library.
        folder: where results go.
        fingerprint: JSON that differs if the weights or the tokenizer do.
        data: the corpus it was trained on; empty if unknown.
        notes: remarks on the checkpoint, for people.
    """

    model: object
    tokenizer: object
    name: str
    folder: Path
    fingerprint: dict
    step: int | None = None
    checkpoint: str = ""
    data: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """A line for people."""
        dtype = str(self.model.compute_dtype).removeprefix("torch.")
        step = "" if self.step is None else f", step {self.step}"
        return f"{self.name}{step}, on {self.model.device} in {dtype}"

    def to_json(self) -> dict:
        """The head of the results."""
        return {
            "run": self.name,
            "step": self.step,
            "checkpoint": self.checkpoint,
            "device": str(self.model.device),
            "dtype": str(self.model.compute_dtype).removeprefix("torch."),
        }


def open_run(
    run: str, step: int | None, device: torch.device, dtype: torch.dtype, kind: str | None = None
) -> ModelUnderEvaluation:
    """Load a run's checkpoint.

    Args:
        run: a run's folder or tag; empty for the run of that `kind` trained last.
        step: which checkpoint; None for the newest sound one, with a note about each newer one that is damaged.

    Raises:
        ValueError: if there is no such run or no sound checkpoint.
    """
    folder = find_run(run or None, kind=None if run else kind)
    loaded = load_run(folder, device, step, dtype)
    files = json.loads((loaded.checkpoint_folder / MANIFEST).read_text())["files"]
    return ModelUnderEvaluation(
        loaded.model,
        loaded.tokenizer,
        name=loaded.folder.name,
        folder=loaded.folder,
        fingerprint={"weights": files[WEIGHTS]["sha256"], "tokenizer": loaded.tokenizer.fingerprint},
        step=loaded.step,
        checkpoint=loaded.checkpoint_folder.name,
        # a chat model's own data are conversations; bits per byte are of its base model's text
        data=(loaded.config["run"]["base"] if loaded.kind == "chat" else loaded.config["settings"])["data"],
        notes=[] if step is not None else _damaged_checkpoints(loaded),
    )


def open_hugging_face(path: str, device: torch.device, dtype: torch.dtype) -> ModelUnderEvaluation:
    """Load a model that `transformers` saved into a folder. Raises ValueError if it cannot be loaded."""
    model, tokenizer = load_hugging_face(path, device, dtype)
    name = Path(path).expanduser().resolve().name
    folder = base_dir() / "evaluations" / name
    return ModelUnderEvaluation(model, tokenizer, name, folder, fingerprint={"files": folder_fingerprint(path)})


def _damaged_checkpoints(run: LoadedRun) -> list[str]:
    """A line about each checkpoint that is newer than the one loaded, hence damaged."""
    newer = [path for path in list_checkpoints(run.folder / "checkpoints") if step_of(path) > run.step]
    taken = run.checkpoint_folder.name
    return [f"{path.name} is damaged ({verify_checkpoint(path)}): {taken} was taken" for path in newer]
