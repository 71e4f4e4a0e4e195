"""Checkpoints that are whole or absent.

A checkpoint is a folder `step_000100`. It is written under another name, every file fsynced, the manifest (sizes and
sha256 of the others) last, then renamed; so a crash at any moment leaves the previous ones as they were. Reading checks
the manifest and falls back to the newest checkpoint that verifies, saying so.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file

from nanogka.model import GPT, GPTConfig
from nanogka.runtime import base_dir
from nanogka.tokenizer import Tokenizer

FOLDER = re.compile(r"step_(\d{6,})")
WEIGHTS, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.pt", "state.json", "manifest.json"


@dataclass
class Checkpoint:
    """What a checkpoint holds: weights and optimiser states by name, and the loop's own state (JSON)."""

    step: int
    weights: dict[str, torch.Tensor]
    optimizer: dict
    state: dict


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int | None = None) -> Path:
    """Write a checkpoint under `folder` and drop all but the newest `keep`; returns its folder."""
    final = folder / f"step_{checkpoint.step:06d}"
    partial = folder / f".partial-{final.name}-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights = {name: t.detach().cpu().contiguous() for name, t in checkpoint.weights.items()}
    save_file(weights, partial / WEIGHTS)
    torch.save(checkpoint.optimizer, partial / OPTIMIZER)
    (partial / STATE).write_text(json.dumps({"step": checkpoint.step} | checkpoint.state))
    files = {name: _fingerprint(partial / name) for name in (WEIGHTS, OPTIMIZER, STATE)}
    (partial / MANIFEST).write_text(json.dumps({"step": checkpoint.step, "files": files}, indent=1))
    for name in (*files, MANIFEST):
        _fsync(partial / name)
    _fsync(partial)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _fsync(folder)
    if keep is not None:
        for old in list_checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    return final


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders by step, the newest last; none where there is no such folder."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.is_dir() and FOLDER.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step_")))


def remove_partial(folder: Path) -> None:
    """Delete what a crash left half-written."""
    for path in folder.glob(".partial-*"):
        shutil.rmtree(path, ignore_errors=True)


def why_broken(folder: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None when every file is as its manifest says."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"its manifest cannot be read ({error})"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _fingerprint(path) != expected:
            return f"{name} is not what the manifest says (damaged or cut short)"
    return None


def newest_sound(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a line about each newer one that does not."""
    notes = []
    for path in reversed(list_checkpoints(folder)):
        reason = why_broken(path)
        if reason is None:
            return path, notes
        notes.append(f"checkpoint {path.name} is unusable: {reason}")
    return None, notes


def load_checkpoint(folder: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint that `why_broken` found sound; optimiser states stay on the CPU."""
    state = json.loads((folder / STATE).read_text())
    return Checkpoint(
        step=state["step"],
        weights=load_file(folder / WEIGHTS, device=str(device)),
        optimizer=torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True),
        state=state,
    )


@dataclass
class LoadedRun:
    """A trained model, ready to use: in eval mode on its device.

    Attributes:
        config: the run's config.yaml.
        folder, checkpoint_folder: where it came from.
    """

    model: GPT
    tokenizer: Tokenizer
    config: dict
    step: int
    folder: Path
    checkpoint_folder: Path

    @property
    def kind(self) -> str:
        """What the model is for: "base" continues text, "chat" replies in conversations."""
        return self.config.get("run", {}).get("kind", "base")


def find_run(run: str | Path | None = None) -> Path:
    """The folder of a run: a folder itself, a tag under base_dir()/runs, or None for the one trained last.

    Raises:
        ValueError: if there is none.
    """
    runs = base_dir() / "runs"
    hint = "train one with `python -m scripts.base_train` or `bash speedrun.sh`"
    if run is not None:
        for folder in (Path(run).expanduser(), runs / run):
            if (folder / "config.yaml").is_file():
                return folder
        tags = sorted(path.parent.name for path in runs.glob("*/config.yaml"))
        known = f"one of {', '.join(tags)}" if tags else "nothing yet: there are no runs"
        raise ValueError(f"--run: got {str(run)!r}, takes a run's folder or a tag under {runs} ({known}; {hint})")
    ages = {path: path.stat().st_mtime for path in runs.glob("*/checkpoints/step_*/manifest.json")}
    if not ages:
        raise ValueError(f"--run: no trained run under {runs}; {hint}")
    return max(ages, key=ages.get).parents[2]


def load_run(
    run: str | Path | None = None,
    device: torch.device | str = "cpu",
    step: int | None = None,
    dtype: torch.dtype | None = None,
) -> LoadedRun:
    """Load a trained model with its tokenizer.

    Args:
        run: see `find_run`.
        device: where to put it.
        step: which checkpoint; None for the newest that verifies.
        dtype: compute dtype; weights are converted as well. None keeps float32.

    Raises:
        ValueError: if there is no such run or no sound checkpoint, with the reason.
    """
    folder = find_run(run)
    checkpoints = folder / "checkpoints"
    if step is None:
        path, notes = newest_sound(checkpoints)
        if path is None:
            raise ValueError("\n".join([f"--run: {folder} has no usable checkpoint", *notes]))
    else:
        path = checkpoints / f"step_{step:06d}"
        if not path.is_dir():
            steps = ", ".join(str(int(p.name[5:])) for p in list_checkpoints(checkpoints)) or "none"
            raise ValueError(f"--step: got {step}, takes a saved step of {folder}: {steps}")
        if reason := why_broken(path):
            raise ValueError(f"--step: checkpoint {path} is unusable: {reason}")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    with torch.device("meta"):
        model = GPT(GPTConfig(**config["model"]))
    model = model.to_empty(device=device)
    model.load_state_dict(load_file(path / WEIGHTS, device=str(device)), strict=True)
    model.to_compute(dtype or torch.float32).eval()
    tokenizer = Tokenizer.load(folder / "tokenizer")
    return LoadedRun(model, tokenizer, config, int(path.name[5:]), folder, path)


def _fingerprint(path: Path) -> dict:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
