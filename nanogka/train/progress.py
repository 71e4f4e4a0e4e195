"""Lines of progress for people: loss, speed, time left."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from nanogka.common.formatting import duration, si

MFU_STEPS = 20  # after which a speed below half of that is worth a warning


def evaluations_left(every: int, step: int, total: int) -> int:
    """Number of evaluations after `step` in a run of `total` steps: each `every` steps (0: never), and at the end."""
    if step >= total:
        return 0
    between = (total - 1) // every - step // every if every else 0
    return between + 1


def describe_numbers(values: Mapping[str, object]) -> list[str]:
    """Return the numbers of an evaluation as texts: with the standard error NAME_se of NAME, and `val_tokens` last."""
    shown = []
    for name, value in values.items():
        if isinstance(value, list) or name == "val_tokens" or name.removesuffix("_se") in values.keys() - {name}:
            continue
        text = f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        shown.append(text + (f" ± {values[f'{name}_se']:.4f} SE" if f"{name}_se" in values else ""))
    if shown and "val_tokens" in values:
        shown[-1] += f" ({values['val_tokens']:,} tokens)"
    return shown


# Units of progress that people see, per second.
RATES = {"tokens": " tok/s", "flops": "FLOP/s"}


def rates(amounts: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the rates of steps that processed `amounts` in `seconds`, by their names in metrics.jsonl."""
    return {f"{name}_per_second": amounts[name] / seconds for name in RATES}


class Progress:
    """Prints progress after the first and last step and every 15 s; speeds average over the interval.

    `done`: what the steps until `start` processed, by the names of `RATES`. `peak_flops` of all devices, 0 if unknown;
    `usual_mfu`: the share of it that the estimate of the time assumed; `advice`: what to do if training is slower.
    """

    SECONDS_BETWEEN_LINES = 15.0

    def __init__(
        self,
        total: int,
        start: int,
        done: Mapping[str, float],
        peak_flops: float,
        usual_mfu: float = 0.4,
        advice: str = "",
    ) -> None:
        self.total, self.start, self.peak_flops = total, start, peak_flops
        self.usual_mfu, self.advice = usual_mfu, advice
        self.last_line = time.monotonic()
        self.done, self.seconds, self.data_wait = dict(done), 0.0, 0.0  # at the last line, and since then
        self.flops_of_first = 0.0
        self.first_step, self.later_steps = 0.0, 0.0  # seconds; the first step still fills caches
        self.evaluations: dict[int, float] = {}  # seconds of the last evaluations, by the steps between them

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Show `step` finished updates and the metrics of the last one, if it is time."""
        now, done = time.monotonic(), step - self.start
        self.seconds += values["seconds"]
        self.data_wait += values["data_wait"]
        if done == 1:
            self.first_step, self.flops_of_first = values["seconds"], values["flops"]
        else:
            self.later_steps += values["seconds"]
        if done == 1 or step == self.total or now - self.last_line >= self.SECONDS_BETWEEN_LINES:
            left = duration(self.seconds_left(step))
            self.say(f"step {step}/{self.total}  {self.describe(values)}  ETA {left}")
            self.last_line, self.seconds, self.data_wait = now, 0.0, 0.0
            self.done = {name: values[name] for name in RATES}
        if done == MFU_STEPS:
            self.warn_if_slow((values["flops"] - self.flops_of_first) / self.later_steps)

    def seconds_left(self, step: int) -> float:
        """Estimate the time from `step` to the end: the remaining steps, and the evaluations whose length is known.

        The mean step leaves out the first one, and the time in which the run starts and evaluates its first weights.
        """
        later = step - self.start - 1
        mean = self.later_steps / later if later else self.first_step
        evaluations = sum(
            seconds * evaluations_left(every, step, self.total) for every, seconds in self.evaluations.items()
        )
        return mean * (self.total - step) + evaluations

    def describe(self, values: Mapping[str, float]) -> str:
        """The steps since the last line in half a line."""
        speeds = rates({name: values[name] - self.done[name] for name in RATES}, self.seconds)
        parts = [f"loss {values['smooth_loss']:.3f}"]
        parts += [f"{si(speeds[f'{name}_per_second'])}{unit}" for name, unit in RATES.items()]
        if self.peak_flops:
            parts[-1] += f" ({speeds['flops_per_second'] / self.peak_flops:.0%} MFU)"
        parts.append(f"{values['peak_memory'] / 1e9:.1f} GB")
        if (waiting := self.data_wait / self.seconds) > 0.01:
            parts.append(f"data wait {waiting:.0%}")
        return "  ".join(parts)

    def warn_if_slow(self, flops_per_second: float) -> None:
        """Warn if this is less than half of the speed that the cost estimate assumed."""
        usual = self.usual_mfu
        mfu = flops_per_second / self.peak_flops if self.peak_flops else usual
        if mfu < usual / 2:
            self.say(
                f"WARNING: training runs at {mfu:.0%} of the peak of the hardware, not at {usual:.0%}. It will take "
                f"{usual / mfu:.1f} times as long as the `cost` line says. {self.advice}"
            )

    def say(self, text: str) -> None:
        """Print lines to stderr. A broken pipe or a full disk does not end a training that still can save."""
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)
