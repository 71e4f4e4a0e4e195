"""Checkpoints written in the background while training continues.

At most one write is in flight. A thread is enough, because serializing, hashing and fsync release the interpreter lock:
while half a gigabyte was written, another thread never waited for more than 12 ms.
"""

import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves, tree_map

from nanogka.checkpoint import Checkpoint, discard, list_checkpoints, save_checkpoint, step_of

LONG_WAIT = 1.0  # seconds of waiting for the disk that are worth a warning


class CheckpointError(OSError):
    """A checkpoint could not be written; the text says which, why, and what to do."""


class CheckpointWriter:
    """Writes checkpoints under one folder; the context manager waits for the last write.

    Rotation leaves the `keep` newest, and the `keep_best` best by `scores`: validations by step, lower is better, NaN
    never the best. Checkpoints later than the step `resumed_from` are damaged, and deleted once a new one is written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        keep_best: int = 0,
        scores: Mapping[int, float] | None = None,
        resumed_from: int = 0,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self.folder, self.keep, self.keep_best, self.say = folder, keep, keep_best, say
        folder.mkdir(parents=True, exist_ok=True)
        self.scores = dict(scores or {})
        self._damaged = {step for step in map(step_of, list_checkpoints(folder)) if step > resumed_from}
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._written = False

    @property
    def failed(self) -> bool:
        """True if the last write failed; does not wait for one in flight."""
        return self._error is not None

    def submit(self, checkpoint: Checkpoint) -> None:
        """Copy the weights to host memory and start to write, after the checkpoint before is on the disk.

        The optimizer state must already be a copy in host memory, see `host_copy`.
        """
        self.wait_for_turn()
        copied = replace(checkpoint, weights=host_copy(checkpoint.weights))
        # A daemon, so that a second signal need not wait for the disk; joined on every normal exit.
        self._thread = threading.Thread(target=self._write, args=(copied,), name="checkpoint", daemon=True)
        self._thread.start()

    def wait_for_turn(self) -> None:
        """As `wait`, before the next checkpoint: then a long wait is worth a warning."""
        began = time.monotonic()
        self.wait()
        if (waited := time.monotonic() - began) > LONG_WAIT:
            self.say(f"waited {waited:.0f} s for the checkpoint before: the disk is too slow for this --save-every")

    def wait(self) -> None:
        """Return when nothing is in flight. Raises CheckpointError if the write failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            self.wait()
            self._rotate()  # the last evaluation came after the last write, or a kill before the rotation
        except CheckpointError as error:
            if kind is None:
                raise
            self.say(str(error))  # the exception that ended the block is the one to raise

    def _write(self, checkpoint: Checkpoint) -> None:
        name = f"step_{checkpoint.step:06d}"
        try:
            tensors = tree_leaves((checkpoint.weights, checkpoint.optimizer))
            needed = sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))
            free = shutil.disk_usage(self.folder).free
            if needed > free:
                raise OSError(f"the disk is full: it needs {needed / 1e9:.3g} GB and {free / 1e9:.3g} GB are free")
            save_checkpoint(self.folder, checkpoint)
            self._written = True
            self._damaged.discard(checkpoint.step)
            self._rotate()
        except Exception as error:  # safetensors and torch raise types of their own on a full disk
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._error = CheckpointError(
                f"checkpoint {name} could not be written to {self.folder}: {cause}. Earlier ones are untouched; "
                "free some space, then continue with --resume auto"
            )

    def _rotate(self) -> None:
        """Drop all but the newest `keep` and the best `keep_best`."""
        checkpoints = list_checkpoints(self.folder)
        sound = [step for step in map(step_of, checkpoints) if step not in self._damaged]
        scored = sorted((self.scores[s], s) for s in sound if math.isfinite(self.scores.get(s, math.nan)))
        kept = {*sound[-self.keep :], *(step for _, step in scored[: self.keep_best])}
        for path in checkpoints:
            if step_of(path) not in kept and (self._written or step_of(path) not in self._damaged):
                discard(path)


def host_copy(value: object) -> object:
    """`value` with every tensor in it copied to host memory, so that training may go on changing the original."""
    return tree_map(lambda x: x.detach().to("cpu", copy=True).contiguous() if isinstance(x, torch.Tensor) else x, value)
