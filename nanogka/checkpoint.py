"""Checkpoints that are complete or absent.

A checkpoint is a folder `step_000100`. It is written under a temporary name: every file is fsynced, the manifest with
their sizes and SHA-256 is written last, and the folder is renamed. A crash at any moment leaves the other checkpoints
as they were; one of the same step is deleted just before the rename. Readers verify the manifest and skip a damaged
checkpoint with a note. A checkpoint that the system cannot read (permissions, a failing disk) raises `OSError`,
because it may be valid.

Weights are safetensors: other programs read them, and loading them cannot run code. The optimizer state is a nested
dictionary, which that format lacks. It is torch's own file, read with `weights_only`.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nanogka.common.errors import in_one_line
from nanogka.common.files import MAX_JSON_BYTES, first_line, fsync, read_json, read_text, sha256_of
from nanogka.common.formatting import first_few

FOLDER = re.compile(r"step_(\d{6,})")
PARTIAL = ".partial-"  # prefix of a folder that is being written or deleted
WEIGHTS, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.pt", "state.json", "manifest.json"
FILES = (WEIGHTS, OPTIMIZER, STATE)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # not those of 8 bits, which cannot be checked
SIGNED = ("exp_avg", "momentum")  # tensors of an optimizer's state that may hold negative numbers


@dataclass
class Checkpoint:
    """Weights and optimizer state by parameter name, and the state of the training loop (JSON)."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict
    state: dict


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint under `folder`, replacing one of the same step, and return its folder.

    If a write fails, the partial checkpoint is removed and the others are untouched.
    """
    final = folder / f"step_{checkpoint.step:06d}"
    partial = folder / f"{PARTIAL}{final.name}-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_file(checkpoint.weights, partial / WEIGHTS)
        torch.save(checkpoint.optimizer, partial / OPTIMIZER)
        (partial / STATE).write_text(json.dumps({"step": checkpoint.step, "saved": time.time()} | checkpoint.state))
        # The order matters after a power failure: what the manifest names is on the disk before the manifest is, and
        # the manifest before the name under which readers look.
        files = {name: _fingerprint(partial / name) for name in FILES}
        for name in files:
            fsync(partial / name)
        (partial / MANIFEST).write_text(_manifest(checkpoint.step, files))
        fsync(partial / MANIFEST)
        fsync(partial)
        if final.exists():
            delete_checkpoint(final)
        partial.rename(final)
        fsync(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # the next attempt needs the space on a full disk
        raise
    return final


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint that verifies.

    The optimizer's tensors stay in the file until they are used, so a rank that owns a part of the state reads that.
    """
    optimizer = read_torch(folder / OPTIMIZER, mmap=True)
    return Checkpoint(step_of(folder), read_weights(folder), optimizer, read_json(folder / STATE))


def read_torch(path: Path, device: torch.device | str = "cpu", mmap: bool = False) -> dict:
    """The dictionary in a file of `torch.save`. Raises ValueError for any other file; no code in it runs."""
    try:
        content = torch.load(path, map_location=device, weights_only=True, mmap=mmap)
    except OSError:
        raise
    except Exception as error:  # those of zip, pickle and torch have no common type
        raise ValueError(f"{path}: damaged, not a file of torch.save ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged, holds {type(content).__name__}, expected a dictionary")
    return content


def read_weights(folder: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The weights in a checkpoint that verifies, on `device`. Raises ValueError if the file is not safetensors."""
    device = torch.device(device)
    try:  # the library does not know `cpu:0`
        return load_file(folder / WEIGHTS, device="cpu" if device.type == "cpu" else str(device))
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS}: damaged, not safetensors ({first_line(error)})") from error


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Check `weights` and copy them into `model`."""
    check_weights(model, weights, source)
    model.load_state_dict(weights)


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError, which begins with `source` and names every weight that does not fit the model."""
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{source}: its weights are not a dictionary of tensors")
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    unlike = [f"{name} is missing" for name in expected if name not in weights]
    for name, value in weights.items():
        if name not in expected:
            unlike.append(f"{name} is not in the model")
        elif tuple(value.shape) != expected[name]:
            unlike.append(f"{name} has the shape {tuple(value.shape)}, not {expected[name]}")
        elif value.dtype not in FLOATS:
            unlike.append(f"{name} has the dtype {value.dtype}, not a floating one")
    if unlike:
        raise ValueError(f"{source}: its weights are not this model's: {first_few(unlike)}")


def check_finite(weights: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError, which begins with `source` and names every weight that holds nan or inf."""
    broken = [name for name, value in weights.items() if not torch.isfinite(value).all()]
    if broken:
        raise ValueError(f"{source}: weights must be finite, but these hold nan or inf: {first_few(broken)}")


def check_optimizer_state(state: object, expected: Mapping[Any, Mapping[str, tuple[int, ...]]], source: str) -> None:
    """Raise ValueError, which begins with `source`, unless `state` holds finite tensors of the `expected` shapes.

    Both are {parameter: {name of a tensor: …}}. A parameter that was never updated has an empty entry, or none. torch's
    fused optimizers do not compare shapes: they would read and write behind a tensor that is too small.
    """
    if not isinstance(state, dict):
        raise ValueError(f"{source}: its optimizer state is {type(state).__name__}, expected a dictionary")
    unlike = [f"{name} is not in the model" for name in state if name not in expected]
    for name, shapes in expected.items():
        entry = state.get(name, {})
        if not isinstance(entry, dict) or (entry and set(entry) != set(shapes)):
            got = ", ".join(map(str, entry)) if isinstance(entry, dict) else type(entry).__name__
            unlike.append(f"{name} has {got}, not {', '.join(shapes)}")
            continue
        for key, value in entry.items():
            dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
            if not dense or value.dtype not in FLOATS:
                unlike.append(f"{key} of {name} is not a tensor of floating-point numbers")
            elif tuple(value.shape) != tuple(shapes[key]):
                unlike.append(f"{key} of {name} has the shape {tuple(value.shape)}, not {tuple(shapes[key])}")
            elif (~torch.isfinite(value)).any():
                unlike.append(f"{key} of {name} holds nan or inf")
            elif key not in SIGNED and (value < 0).any():
                unlike.append(f"{key} of {name} holds negative numbers")
    if unlike:
        raise ValueError(f"{source}: its optimizer state is not this model's: {first_few(unlike)}")


def delete_checkpoint(folder: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a crash leaves nothing that looks like a checkpoint."""
    renamed = folder.with_name(f"{PARTIAL}{folder.name}-old-{os.getpid()}")
    shutil.rmtree(renamed, ignore_errors=True)
    folder.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def try_checkpoint(folder: Path) -> None:
    """Write a small checkpoint to a temporary folder in `folder`, read it back and remove it.

    A file system that cannot keep checkpoints then ends a run before its first step. Raises OSError or ValueError.
    """
    tensor = torch.arange(4.0)
    with TemporaryDirectory(dir=folder, prefix=".try-") as temporary:
        try:
            saved = save_checkpoint(Path(temporary), Checkpoint(1, {"x": tensor}, {"x": tensor}, {}))
            why = verify_checkpoint(saved)
            found = None if why else load_checkpoint(saved)
            if found is None or not (found.weights["x"].equal(tensor) and found.optimizer["x"].equal(tensor)):
                raise ValueError(why or "other numbers come back")
        except Exception as error:  # safetensors and torch raise their own types
            raise ValueError(
                f"NANOGKA_BASE_DIR: {folder} cannot keep checkpoints ({in_one_line(error)}); set it to a folder on "
                "another file system"
            ) from error


def remove_partial(folder: Path) -> None:
    """Delete partial checkpoints of an earlier crash."""
    for path in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def step_of(folder: Path) -> int:
    """The step of a checkpoint, from its folder's name."""
    return int(folder.name.removeprefix("step_"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders by step, the newest last. Empty if `folder` does not exist. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            found = [folder / entry.name for entry in entries if FOLDER.fullmatch(entry.name) and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=step_of)


def verify_checkpoint(folder: Path, names: Collection[str] = FILES) -> str | None:
    """Return the reason why a checkpoint is damaged, or None if its files match the manifest.

    All files must have their size. Only those in `names` are read and hashed. Raises OSError if a file exists but
    cannot be read.
    """
    try:
        text = read_text(folder / MANIFEST, MAX_JSON_BYTES)
        content = json.loads(text)
        files, step = content["files"], content["step"]
        intact = text == _manifest(step, files) and step == step_of(folder)
        intact = intact and set(files) >= set(FILES)
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{MANIFEST} is damaged ({first_line(error)})"
    if not intact:
        return f"{MANIFEST} has been changed"
    for name, expected in files.items():
        try:
            path = folder / name
            damaged = path.stat().st_size != expected["bytes"]  # before hashing, which reads all of a large file
            damaged = damaged or (name in names and _fingerprint(path) != expected)
        except FileNotFoundError:
            return f"{name} is missing"
        except (ValueError, TypeError, KeyError) as error:
            return f"{name} is not what the manifest says ({first_line(error)})"
        if damaged:
            return f"{name} is not what the manifest says (damaged or cut short)"
    return None


def latest_valid(folder: Path, names: Collection[str] = FILES) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that passes `verify_checkpoint`, and a line about each newer, damaged one."""
    notes = []
    for path in reversed(list_checkpoints(folder)):
        reason = verify_checkpoint(path, names)
        if reason is None:
            return path, notes
        notes.append(f"checkpoint {path.name} is unusable: {reason}")
    return None, notes


def _manifest(step: int, files: dict[str, dict]) -> str:
    return json.dumps({"step": step, "files": files}, indent=1)


def _fingerprint(path: Path) -> dict:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
