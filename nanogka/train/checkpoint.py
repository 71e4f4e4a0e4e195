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
PARTIAL = ".partial-"  # begins the name of what is not whole, or not any more
WEIGHTS, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.pt", "state.json", "manifest.json"


@dataclass
class Checkpoint:
    """What a checkpoint holds: weights and optimiser states by name, and the loop's own state (JSON)."""

    step: int
    weights: dict[str, torch.Tensor]
    optimizer: dict
    state: dict


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint under `folder`; returns its own. One of that step which is there already is replaced.

    Raises:
        Exception: of the library whose write failed; what it left of the checkpoint is removed, others are untouched.
    """
    final = folder / f"step_{checkpoint.step:06d}"
    partial = folder / f"{PARTIAL}{final.name}-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        weights = {name: t.detach().cpu().contiguous() for name, t in checkpoint.weights.items()}
        save_file(weights, partial / WEIGHTS)
        torch.save(checkpoint.optimizer, partial / OPTIMIZER)
        (partial / STATE).write_text(json.dumps({"step": checkpoint.step} | checkpoint.state))
        files = {name: _fingerprint(partial / name) for name in (WEIGHTS, OPTIMIZER, STATE)}
        for name in files:
            _fsync(partial / name)
        (partial / MANIFEST).write_text(_manifest(checkpoint.step, files))
        _fsync(partial / MANIFEST)
        _fsync(partial)
        if final.exists():
            discard(final)
        partial.rename(final)
        _fsync(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # on a full disk the next attempt needs the room
        raise
    return final


def discard(folder: Path) -> None:
    """Delete a checkpoint; a crash in the middle leaves nothing that looks like one."""
    doomed = folder.with_name(f"{PARTIAL}{folder.name}-old-{os.getpid()}")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def step_of(folder: Path) -> int:
    """The step of a checkpoint's folder, from its name."""
    return int(folder.name.removeprefix("step_"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders by step, the newest last; none where there is no such folder."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.is_dir() and FOLDER.fullmatch(path.name)]
    return sorted(found, key=step_of)


def remove_partial(folder: Path) -> None:
    """Delete what a crash left half-written."""
    for path in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def why_broken(folder: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None when every file is as its manifest says, and that is as written."""
    try:
        text = (folder / MANIFEST).read_text()
        content = json.loads(text)
        files, step = content["files"], content["step"]
        intact = text == _manifest(step, files) and step == step_of(folder)
        intact = intact and set(files) >= {WEIGHTS, OPTIMIZER, STATE}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest cannot be read ({error})"
    if not intact:
        return "its manifest has been changed"
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
        """What the model is for, see `kind_of`."""
        return kind_of(self.config)


def find_run(run: str | Path | None = None, kind: str | None = None) -> Path:
    """The folder of a run: a folder itself, a tag under base_dir()/runs, or None for the one trained last.

    `kind`: consider only runs of this kind, see `LoadedRun.kind`, where none is named.

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
    for newest in sorted(ages, key=ages.get, reverse=True):
        folder = newest.parents[2]
        if kind is None or kind_of(yaml.safe_load((folder / "config.yaml").read_text())) == kind:
            return folder
    which = "trained run" if kind is None else f"trained {kind} run"
    raise ValueError(f"--run: no {which} under {runs}; {hint}")


def kind_of(config: dict) -> str:
    """What a run's model is for, from its config.yaml: "base" continues text, "chat" replies in conversations."""
    return config.get("run", {}).get("kind", "base")


def find_checkpoint(folder: Path, step: int | None = None) -> Path:
    """The checkpoint of a run at `step`; None for the newest that verifies.

    Raises:
        ValueError: if there is no sound one, with the reason.
    """
    checkpoints = folder / "checkpoints"
    if step is None:
        path, notes = newest_sound(checkpoints)
        if path is None:
            raise ValueError("\n".join([f"--run: {folder} has no usable checkpoint", *notes]))
        return path
    path = checkpoints / f"step_{step:06d}"
    if not path.is_dir():
        steps = ", ".join(str(step_of(p)) for p in list_checkpoints(checkpoints)) or "none"
        raise ValueError(f"--step: got {step}, takes a saved step of {folder}: {steps}")
    if reason := why_broken(path):
        raise ValueError(f"--step: checkpoint {path} is unusable: {reason}")
    return path


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
    path = find_checkpoint(folder, step)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    with torch.device("meta"):
        model = GPT(GPTConfig(**config["model"]))
    model = model.to_empty(device=device)
    model.load_state_dict(load_file(path / WEIGHTS, device=str(device)), strict=True)
    model.to_compute(dtype or torch.float32).eval()
    tokenizer = Tokenizer.load(folder / "tokenizer")
    return LoadedRun(model, tokenizer, config, step_of(path), folder, path)


def _manifest(step: int, files: dict[str, dict]) -> str:
    return json.dumps({"step": step, "files": files}, indent=1)


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
