"""Published training runs on GPUs, and the times that the roofline computes for them.

Each line of gpu_runs.jsonl is a run: `ms` per step of `tokens` on `devices`, the `shape` of its
model, the version of FlashAttention (torch's own kernel counts as FA2), the element-wise `traffic` of its code in
tensors of (positions, width) a layer, and the passes of its loss over the logits. The constants of
nanogka/train/estimate.py were fitted to the lines with `fitted`. `promised` is false for a run that the roofline does
not cover.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.formatting import plain_table
from nanogka.common.runtime import GPUS
from nanogka.model import GPTConfig
from nanogka.train.estimate import LOSS_PASSES, fp8_weights, step_time

PATH = Path(__file__).with_name("gpu_runs.jsonl")
TOLERANCE = 0.1  # of the computed time, for runs that the roofline covers


@dataclass(frozen=True)
class PublishedRun:
    """A run as the file describes it, mostly of somebody else's code."""

    name: str
    gpu: str  # a key of `GPUS`
    devices: int
    tokens: int  # of a step, on all devices
    ms: float  # of a step
    shape: dict
    flash_version: str
    traffic: float
    loss_passes: float
    fp8: bool  # the blocks and the head
    fitted: bool
    promised: bool
    source: str
    note: str

    @property
    def config(self) -> GPTConfig:
        """The model. Other people's have attention in every layer."""
        shape = {"mixer_pattern": "D"} | self.shape
        options = {name: shape.pop(name) for name in ("value_embeddings",) if name in shape}
        return GPTConfig(options=options, **shape)

    def computed_ms(self) -> float:
        """Milliseconds of a step by the roofline."""
        config, mine = self.config, self.tokens / self.devices
        moved = 2.0 * self.traffic * config.n_layer * mine * config.n_embd
        moved += (self.loss_passes - LOSS_PASSES) * 2 * mine * config.vocab_size
        in_fp8 = fp8_weights(config) + config.n_embd * config.vocab_size if self.fp8 else 0
        attention = {"flash_version": self.flash_version}
        step = step_time(config, GPUS[self.gpu], self.tokens, self.devices, moved=moved, in_fp8=in_fp8, **attention)
        assert step is not None, "the file names GPUs whose shares are known"
        return 1e3 * step.total


def published_runs() -> list[PublishedRun]:
    """The runs of the file. Raises ValueError where only the package is installed."""
    if not PATH.is_file():
        raise ValueError(f"compare: got on, expected {PATH}, which is in the repository only")
    return [PublishedRun(**json.loads(line)) for line in PATH.read_text(encoding="utf-8").splitlines()]


def comparison() -> str:
    """A table of published and computed times: first the runs of the fit, then those that were held out."""
    rows = [("run", "GPUs", "constants", "published ms", "computed ms", "ratio", "note")]
    for run in sorted(published_runs(), key=lambda run: not run.fitted):
        computed = run.computed_ms()
        note = run.note if run.promised else f"not covered: {run.note}"
        kind = "fitted" if run.fitted else "held out"
        gpus = f"{run.devices} × {run.gpu}"
        rows.append((run.name, gpus, kind, f"{run.ms:,.0f}", f"{computed:,.0f}", f"{computed / run.ms:.2f}", note))
    return plain_table(rows, left=3)
