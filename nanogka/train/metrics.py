"""The log of a run: metrics.jsonl for programs, a progress line for people.

A line of `metrics.jsonl` is one JSON object with `kind` and `step` (finished updates). A resumed run drops the lines
that it will write again, so that a step appears once.
"""

import json
import sys
import time
from pathlib import Path

from tqdm import tqdm

from nanogka.common.files import annotate_oserror, atomic_write
from nanogka.common.formatting import duration
from nanogka.runs import read_metrics
from nanogka.train.trackers import Log

KINDS_WRITTEN_AFTER_SAVING = ("eval", "skip")


class MetricsLog:
    """Appends to a `metrics.jsonl`, and hands the numbers to a tracker.

    The lines of the first `resume_step` steps stay; None starts an empty file.
    """

    def __init__(self, path: Path, resume_step: int | None = None, track: Log | None = None) -> None:
        if resume_step is None:
            path.write_text("")
        else:
            kept = [line for line in read_metrics(path) if _precedes(line, resume_step)]
            atomic_write(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._path, self._file = path, path.open("ab", buffering=0)  # a full disk fails at this write, not later
        self._track = track

    def write(self, kind: str, step: int, **values: object) -> None:
        with annotate_oserror(self._path):
            self._file.write((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())
        if self._track is not None and kind != "run":
            self._track(step, {f"{kind}/{name}": v for name, v in values.items() if isinstance(v, int | float)})

    def close(self) -> None:
        self._file.close()


def _precedes(line: dict, step: int) -> bool:
    # A checkpoint is saved before the evaluations of its step, so those come again.
    after = line["kind"] in KINDS_WRITTEN_AFTER_SAVING
    return line["step"] < step if after else line["step"] <= step


class Progress:
    """A progress bar on a terminal; in a log, a line every 15 seconds."""

    SECONDS_BETWEEN_LINES = 15.0

    def __init__(self, total: int, start: int) -> None:
        self.total, self.start = total, start
        self.began = self.last_line = time.monotonic()
        terminal = sys.stderr.isatty()
        self.bar = tqdm(total=total, initial=start, unit="step", dynamic_ncols=True) if terminal else None

    def update(self, step: int, text: str) -> None:
        """Show `step` finished updates and `text`."""
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(step - self.bar.n)
        else:
            now = time.monotonic()
            if now - self.last_line >= self.SECONDS_BETWEEN_LINES or step in (self.start + 1, self.total):
                self.last_line = now
                left = (now - self.began) / (step - self.start) * (self.total - step)
                print(f"step {step}/{self.total}  {text}  ETA {duration(left)}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
