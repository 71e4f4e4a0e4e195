"""A run's folder: which run, its configuration, its metrics, its trained model.

run = load_run("d4-gaussian", device)       # by tag, by folder, or None for the run trained last
run.model, run.tokenizer, run.step
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import yaml
from safetensors.torch import load_file

from nanogka.checkpoint import STATE, WEIGHTS, latest_valid, list_checkpoints, load_weights, step_of, verify_checkpoint
from nanogka.files import atomic_write
from nanogka.formatting import one_line
from nanogka.model import GPT, GPTConfig
from nanogka.runtime import base_dir
from nanogka.tokenizer import Tokenizer

T = TypeVar("T")

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
READ = (WEIGHTS, STATE)  # the files of a checkpoint that are read here: the optimiser's is the largest, and not hashed


@dataclass
class LoadedRun:
    """A trained model, ready to use: in eval mode on its device.

    Attributes:
        config: the content of config.yaml.
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
        """The purpose of the model, see `kind_of`."""
        return kind_of(self.config)


def kind_of(config: dict) -> str:
    """The kind of a run, from its config.yaml: a "base" model continues text, a "chat" model replies."""
    return (config.get("run") or {}).get("kind", "base")


def open_run(run: str | Path | None, read: Callable[[Path], T], kind: str | None = None) -> T:
    """Open a run's folder by `read`.

    Args:
        run: see `find_run`; where it is None, of the run trained last of which `read` can make something, with a note
            on stderr about each later one: what somebody else left there breaks nobody's default.
        kind: see `find_run`.

    Raises:
        ValueError: if there is no such run, or of `read`.
    """
    if run is not None:
        return read(find_run(run))
    first: Exception | None = None
    for folder in _trained_last(kind):
        try:
            result = read(folder)
        except (ValueError, OSError) as error:
            first = first or error
            print(f"passed over: {one_line(str(error).splitlines()[0])}", file=sys.stderr)
        else:
            return result
    if first is not None:
        raise first
    return read(find_run(None, kind))


def find_run(run: str | Path | None = None, kind: str | None = None) -> Path:
    """Return the folder of a run.

    Args:
        run: a folder, a tag under base_dir()/runs, or None for the run trained last.
        kind: where `run` is None, consider only runs of this kind, see `kind_of`.

    Folders with a configuration that cannot be used are passed over with a note on stderr.

    Raises:
        ValueError: if there is none.
    """
    runs = base_dir() / "runs"
    hint = "train one with `python -m scripts.base_train` or `bash speedrun.sh`"
    if run is not None:
        for folder in (Path(run).expanduser(), runs / run):
            if (folder / CONFIG).is_file():
                return folder
        tags = sorted(path.parent.name for path in runs.glob(f"*/{CONFIG}"))
        known = f"one of {', '.join(tags)}" if tags else "nothing yet: there are no runs"
        raise ValueError(f"--run: got {str(run)!r}, takes a run's folder or a tag under {runs} ({known}; {hint})")
    found = next(_trained_last(kind), None)
    if found is None:
        which = "trained run" if kind is None else f"trained {kind} run"
        raise ValueError(f"--run: no {which} under {runs}; {hint}")
    return found


def _trained_last(kind: str | None) -> Iterator[Path]:
    """The runs of a kind that have a checkpoint, the one trained last first."""
    saved: dict[Path, float] = {}
    for manifest in (base_dir() / "runs").glob("*/checkpoints/step_*/manifest.json"):
        with suppress(OSError):  # rotated away just now, or a link that leads nowhere
            folder = manifest.parents[2]
            saved[folder] = max(saved.get(folder, 0.0), manifest.stat().st_mtime)
    for folder in sorted(saved, key=saved.get, reverse=True):
        try:
            config = read_config(folder)
            model_config(config, folder)
        except ValueError as error:
            print(f"passed over: {one_line(str(error).splitlines()[0])}", file=sys.stderr)
            continue
        if kind in (None, kind_of(config)):
            yield folder


def write_config(folder: Path, config: dict) -> None:
    """Write config.yaml atomically."""
    atomic_write(folder / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def read_config(folder: Path) -> dict:
    """Return the content of a run's config.yaml: a mapping with `model`, `settings` and, except in old runs, `run`.

    Raises:
        ValueError: if it cannot be read, is damaged, or is not a run's configuration.
    """
    path = folder / CONFIG
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"--run: {path} cannot be used ({str(error).splitlines()[0]})") from error
    parts = content if isinstance(content, dict) else {}
    if not all(isinstance(parts.get(part), dict) for part in ("settings", "model")):
        raise ValueError(f"--run: {path} cannot be used (it has no settings and model)")
    if not isinstance(parts.get("run", {}), dict):
        raise ValueError(f"--run: {path} cannot be used (its part `run` is no mapping)")
    return content


def check_metrics(folder: Path, config: dict, lines: list[dict]) -> None:
    """Raise ValueError if the lines of a run's metrics begin with another run's facts than its config.yaml has."""
    facts = {name: value for name, value in (config.get("run") or {}).items() if name in ("tag", "created")}
    for line in lines:
        if line["kind"] == "run" and any(line.get(name, value) != value for name, value in facts.items()):
            raise ValueError(f"--run: {folder / METRICS} is another run's ({line.get('tag')}, {line.get('created')})")


def read_metrics(path: Path) -> list[dict]:
    """The lines of a metrics file; none if there is no file.

    Damaged ones, such as a last one that a crash cut short, are left out and counted on stderr.
    """
    lines, damaged = [], 0
    for text in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or "kind" not in line or type(line.get("step")) is not int:
                raise ValueError("no line of ours")
        except (ValueError, RecursionError):
            damaged += 1
        else:
            line.pop("checksum", None)  # of an earlier version
            lines.append(line)
    if damaged:
        print(f"{path}: {damaged} damaged lines left out", file=sys.stderr)
    return lines


def find_checkpoint(folder: Path, step: int | None = None) -> Path:
    """The checkpoint of a run at `step`; None for the newest that verifies, with a note on stderr if others do not.

    Raises:
        ValueError: if there is no sound one, with the reason.
        OSError: if one cannot be read.
    """
    checkpoints = folder / "checkpoints"
    if step is None:
        path, notes = latest_valid(checkpoints, READ)
        if path is None:
            raise ValueError("\n".join([f"--run: {folder} has no usable checkpoint", *notes]))
        for note in notes:
            print(f"{folder.name}: {note}; taking {path.name} instead", file=sys.stderr)
        return path
    path = checkpoints / f"step_{step:06d}"
    if not path.is_dir():
        steps = ", ".join(str(step_of(p)) for p in list_checkpoints(checkpoints)) or "none"
        raise ValueError(f"--step: got {step}, takes a saved step of {folder}: {steps}")
    if reason := verify_checkpoint(path, READ):
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
        step: of the checkpoint; None for the newest that verifies.
        dtype: compute dtype; weights are converted as well. None keeps float32.

    Raises:
        ValueError: if there is no such run, no sound checkpoint, or what there is does not fit together.
        OSError: if a file cannot be read.
    """
    if run is None and step is None:
        return open_run(None, lambda folder: load_run(folder, device, step, dtype))
    folder = find_run(run)
    config = read_config(folder)
    path = find_checkpoint(folder, step)
    gpt_config, tokenizer = model_config(config, folder), load_tokenizer_of(folder, config)
    learned = (json.loads((path / STATE).read_text()).get("loader") or {}).get("corpus")
    if learned and learned != (config.get("run") or {}).get("corpus", learned):
        raise ValueError(f"--run: {folder / CONFIG} is another run's: {path.name} has learned from another corpus")
    with torch.device("meta"):
        model = GPT(gpt_config)
    model = model.to_empty(device=device)
    load_weights(model, load_file(path / WEIGHTS, device=str(device)), f"--run: {path}")
    model.to_compute(dtype or torch.float32).eval()
    return LoadedRun(model, tokenizer, config, step_of(path), folder, path)


def model_config(config: dict, folder: Path) -> GPTConfig:
    """The model's configuration in config.yaml. Raises ValueError if it is not one."""
    try:
        return GPTConfig.from_dict(config["model"])
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"--run: {folder / CONFIG} has no model that this version knows: {error}") from error


def load_tokenizer_of(folder: Path, config: dict) -> Tokenizer:
    """The tokenizer that a run was trained with.

    Raises:
        ValueError: if the one in its folder is another, or has ids beyond the model's vocabulary.
    """
    tokenizer = Tokenizer.load(folder / "tokenizer")
    expected = (config.get("run") or {}).get("tokenizer", tokenizer.fingerprint)
    if tokenizer.fingerprint != expected:
        raise ValueError(
            f"--run: {folder / 'tokenizer'} is another tokenizer ({tokenizer.fingerprint[:12]}…) than the run was "
            f"trained with ({str(expected)[:12]}…)"
        )
    ids = config["model"].get("vocab_size")
    if isinstance(ids, int) and tokenizer.vocab_size > ids:
        path, last = folder / "tokenizer" / "tokenizer.json", tokenizer.vocab_size - 1
        raise ValueError(f"--run: {path} has ids up to {last}, the model up to {ids - 1}")
    return tokenizer
