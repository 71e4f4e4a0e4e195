"""Checkpoints written in the background while training continues.

At most one write is in flight. A thread is enough, because serializing, hashing and fsync release the interpreter lock:
while half a gigabyte was written, another thread never waited for more than 12 ms.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from nanogka.checkpoint import Checkpoint, delete_checkpoint, list_checkpoints, save_checkpoint, step_of
from nanogka.common.cli import flag
from nanogka.common.files import first_line, free_bytes
from nanogka.common.formatting import gigabytes

T = TypeVar("T")

LONG_WAIT = 1.0  # seconds of waiting for the disk that are worth a warning


@dataclass(frozen=True)
class CheckpointSettings:
    """Checkpoints."""

    save_every: int = flag(500, "steps between checkpoints; 0: only at the end", ge=0, affects="output")
    keep: int = flag(2, "number of newest checkpoints to keep", ge=1, affects="output")
    keep_best: int = flag(
        1, "number of checkpoints with the best validation to keep as well; 0: none", ge=0, affects="output"
    )


class CheckpointError(OSError):
    """A checkpoint could not be written. The text says which, why, and what to do."""


class CheckpointWriter:
    """Writes checkpoints under one folder. The context manager waits for the last write.

    Rotation keeps the `keep` newest, and the `keep_best` best by `scores`: validations by step, lower is better, NaN
    never the best.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        keep_best: int = 0,
        scores: Mapping[int, float] | None = None,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self.folder, self.keep, self.keep_best, self.say = folder, keep, keep_best, say
        self.scores = dict(scores or {})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._write: Future | None = None  # the last one

    @property
    def failed(self) -> bool:
        """True if the last write failed. Does not wait for one in flight."""
        return self._write is not None and self._write.done() and self._write.exception() is not None

    def submit(self, checkpoint: Checkpoint) -> None:
        """Copy the weights to host memory and start to write, after the previous checkpoint is on the disk.

        The optimizer state must already be a copy in host memory, see `host_copy`.
        """
        self.wait()
        copied = replace(checkpoint, weights=host_copy(checkpoint.weights))
        self._write = self._thread.submit(self._save, copied)

    def wait_for_turn(self) -> None:
        """Wait as `wait` does, before the next checkpoint: then a long wait is worth a warning."""
        began = time.monotonic()
        self.wait()
        if (waited := time.monotonic() - began) > LONG_WAIT:
            self.say(f"waited {waited:.0f} s for the previous checkpoint: the disk is too slow for this --save-every")

    def wait(self) -> None:
        """Return when nothing is in flight. Raises CheckpointError if the write failed."""
        if self._write is not None:
            self._write.result()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            self.wait()
            self._rotate()  # the last evaluation came after the last write
        except CheckpointError as error:
            if kind is None:
                raise
            if error is not exception[0]:  # the exception that ended the block is the one to raise
                self.say(str(error))
        finally:
            self._thread.shutdown()

    def _save(self, checkpoint: Checkpoint) -> None:
        try:
            save_checkpoint(self.folder, checkpoint)
            self._rotate()
        except Exception as error:  # safetensors and torch raise their own types on a full disk
            # What was written is gone again, so the space that is free now is what the checkpoint had.
            free, needed = free_bytes(self.folder), _tensor_bytes(checkpoint)
            full = f"the disk is full ({gigabytes(free)} free for a checkpoint of {gigabytes(needed)}): "
            raise CheckpointError(
                f"checkpoint step_{checkpoint.step:06d} could not be written to {self.folder}: "
                f"{full if free < needed else ''}{first_line(error)}. "
                "Earlier ones are untouched; free some space, then continue with --resume auto"
            ) from error

    def _rotate(self) -> None:
        """Delete all checkpoints but the newest `keep` and the best `keep_best`."""
        checkpoints = list_checkpoints(self.folder)
        steps = [step_of(path) for path in checkpoints]
        scored = sorted((self.scores[s], s) for s in steps if math.isfinite(self.scores.get(s, math.nan)))
        kept = {*steps[-self.keep :], *(step for _, step in scored[: self.keep_best])}
        for path in checkpoints:
            if step_of(path) not in kept:
                delete_checkpoint(path)


def _tensor_bytes(checkpoint: Checkpoint) -> int:
    tensors = [
        leaf for leaf in tree_leaves((checkpoint.weights, checkpoint.optimizer)) if isinstance(leaf, torch.Tensor)
    ]
    return sum(tensor.nbytes for tensor in tensors)


def host_copy(value: T) -> T:
    """`value` with every tensor in it copied to host memory, because the next steps change the originals."""
    return tree_map(lambda x: x.detach().to("cpu", copy=True).contiguous() if isinstance(x, torch.Tensor) else x, value)
