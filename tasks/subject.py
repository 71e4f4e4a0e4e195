"""What is evaluated: one of our runs, or a model of the transformers library."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from nanogka.distributed import Ranks
from nanogka.evaluate.hugging_face import folder_fingerprint, load_hugging_face
from nanogka.evaluate.stems import CacheMaker
from nanogka.model.kv_cache import DecodeCache
from nanogka.problems import Problems
from nanogka.runtime import base_dir, pick_device, pick_dtype
from nanogka.train.checkpoint import MANIFEST, WEIGHTS, find_run, load_run
from tasks.settings import EvalSettings


@dataclass
class Subject:
    """A model ready to be evaluated.

    Attributes:
        name, step, checkpoint: for people; the last two empty for a model of another library.
        folder: where results go.
        fingerprint: JSON that differs where the weights or the tokenizer do.
        data: the corpus it was trained on; empty if unknown.
        new_cache: makes its decode cache; None if it has none.
    """

    model: object
    tokenizer: object
    name: str
    folder: Path
    fingerprint: dict
    step: int | None = None
    checkpoint: str = ""
    data: str = ""
    new_cache: CacheMaker | None = None


def open_subject(settings: EvalSettings, ranks: Ranks, problems: Problems) -> Subject | None:
    """The model to evaluate, on its device and in its compute dtype; None with the reason in `problems`."""
    device = problems.attempt(lambda: ranks.device(pick_device(settings.device)))
    dtype = problems.attempt(lambda: pick_dtype(settings.dtype, device or torch.device("cpu")))
    if settings.hf_path:
        return problems.attempt(lambda: _open_hugging_face(settings.hf_path, device, dtype)) if device else None
    run, step = settings.run or None, settings.step
    if settings.checkpoint:
        folder = Path(settings.checkpoint).expanduser().resolve()
        number = folder.name.removeprefix("step_")
        valid = folder.is_dir() and number.isdigit()
        takes = "the folder of a checkpoint, .../checkpoints/step_000100"
        if not problems.check(valid, "--checkpoint", settings.checkpoint, takes):
            return None
        run, step = folder.parent.parent, int(number)
    folder = problems.attempt(lambda: find_run(run))
    if folder is None or device is None or dtype is None:
        return None
    return problems.attempt(lambda: _open_run(folder, device, step, dtype))


def _open_run(folder: Path, device: torch.device, step: int | None, dtype: torch.dtype) -> Subject:
    run = load_run(folder, device, step, dtype)
    files = json.loads((run.checkpoint_folder / MANIFEST).read_text())["files"]
    return Subject(
        run.model,
        run.tokenizer,
        name=run.folder.name,
        folder=run.folder,
        fingerprint={"weights": files[WEIGHTS]["sha256"], "tokenizer": run.tokenizer.fingerprint},
        step=run.step,
        checkpoint=run.checkpoint_folder.name,
        # a chat model's own data are conversations; bits per byte are of its base model's text
        data=(run.config["run"]["base"] if run.kind == "chat" else run.config["settings"])["data"],
        new_cache=DecodeCache,
    )


def _open_hugging_face(path: str, device: torch.device, dtype: torch.dtype) -> Subject:
    model, tokenizer = load_hugging_face(path, device, dtype)
    name = Path(path).expanduser().resolve().name
    folder = base_dir() / "evaluations" / name
    return Subject(model, tokenizer, name=name, folder=folder, fingerprint={"files": folder_fingerprint(path)})
