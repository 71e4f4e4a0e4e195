"""The log of a run: metrics.jsonl for programs, a progress line for people.

A line of `metrics.jsonl` is one JSON object with `kind` and `step` (finished updates). A resumed run drops the lines
that it will write again, so that a step appears once.
"""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from nanogka.common.files import annotate_oserror, atomic_write
from nanogka.common.formatting import duration, si
from nanogka.runs import read_metrics
from nanogka.train.trackers import Log

KINDS_WRITTEN_AFTER_SAVING = ("eval", "skip")


class MetricsLog:
    """Appends to a `metrics.jsonl` and hands the numbers to a tracker.

    A resumed run keeps the lines of the first `resume_step` steps; None starts an empty file.
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


# Units of progress that people see, per second.
RATES = {"tokens": " tok/s", "flops": "FLOP/s", "images": " images/s"}


def rates(per_step: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the rates of a step that lasted `seconds`, by their names in metrics.jsonl."""
    return {f"{name}_per_second": per_step[name] / seconds for name in RATES if name in per_step}


class Progress:
    """A progress bar on a terminal; in a log, a line every 15 seconds. Speeds are averages since the last line.

    `per_step`: what a step processes, by the names of `RATES`. `peak_flops` of all devices, 0 if unknown.
    """

    SECONDS_BETWEEN_LINES = 15.0

    def __init__(self, total: int, start: int, per_step: Mapping[str, float], peak_flops: float) -> None:
        self.total, self.start, self.per_step, self.peak_flops = total, start, per_step, peak_flops
        self.began = self.last_line = time.monotonic()
        self.steps, self.seconds, self.data_wait = 0, 0.0, 0.0  # since the last line
        terminal = sys.stderr.isatty()
        self.bar = tqdm(total=total, initial=start, unit="step", dynamic_ncols=True) if terminal else None

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Show `step` finished updates and the metrics of the last one."""
        now = time.monotonic()
        self.steps, self.seconds = self.steps + 1, self.seconds + values["seconds"]
        self.data_wait += values["data_wait"]
        due = now - self.last_line >= (1.0 if self.bar is not None else self.SECONDS_BETWEEN_LINES)
        if due or step in (self.start + 1, self.total):
            text = self.describe(values)
            self.last_line, self.steps, self.seconds, self.data_wait = now, 0, 0.0, 0.0
            if self.bar is not None:
                self.bar.set_postfix_str(text, refresh=False)
            else:
                left = eta(now - self.began, step - self.start, self.total - step)
                self.say(f"step {step}/{self.total}  {text}  ETA {duration(left)}")
        if self.bar is not None:
            with suppress(OSError):
                self.bar.update(step - self.bar.n)

    def describe(self, values: Mapping[str, float]) -> str:
        """The steps since the last line in half a line."""
        speeds = rates(self.per_step, self.seconds / self.steps)
        parts = [f"loss {values['smooth_loss']:.3f}"]
        parts += [f"{si(speeds[f'{name}_per_second'])}{unit}" for name, unit in RATES.items() if name in self.per_step]
        if self.peak_flops and "flops" in self.per_step:
            parts[-1] += f" ({speeds['flops_per_second'] / self.peak_flops:.0%} MFU)"
        parts.append(f"{values['peak_memory'] / 1e9:.1f} GB")
        if (waiting := self.data_wait / self.seconds) > 0.01:
            parts.append(f"data wait {waiting:.0%}")
        return "  ".join(parts)

    def say(self, text: str) -> None:
        """Print a line above the bar. A broken pipe or a full disk does not end a training that still can save."""
        with suppress(OSError):
            if self.bar is not None:
                self.bar.write(text, file=sys.stderr)
            else:
                print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            with suppress(OSError):
                self.bar.close()


def eta(seconds: float, done: int, left: int) -> float:
    """Seconds until `left` steps are done, as fast as the `done` steps that took `seconds`."""
    return seconds / done * left
