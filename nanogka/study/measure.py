"""The measurement of one finished run, a process of its own: facts of its folder, bits per byte of validation splits.

python -m nanogka.study.measure --run FOLDER --data ~/corpus --confirm ~/another --output measured.json
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import atomic_write
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.data import open_corpus
from nanogka.data.loader import validation_batches
from nanogka.evaluate.bpb import measure_bits_per_byte
from nanogka.runs import LoadedRun, Run

BATCH_TOKENS = {"cpu": 8192, "cuda": 65_536}
LOGITS_PER_BATCH = 2**27  # half a GiB in float32


@dataclass(frozen=True)
class Settings:
    """Settings."""

    run: str = flag("", "the run's folder")
    data: str = flag("", "corpus whose validation split is measured")
    confirm: str = flag("", "a second corpus, whose validation split is measured too")
    tokens: int | None = flag(None, "measure the first tokens of each split (default: all)", ge=1)
    output: str = flag("", "the file to write")


def describe_run(folder: Path) -> dict:
    """The facts of a trained run for its line: `curve` [(step, val_bpb)], `bandwidth` {layer: σ of each head}."""
    run = Run.open(folder)
    facts, accounting, last = run.part("run"), run.accounting, run.train[-1] if run.train else {}
    sigma = dict(zip(last.get("bandwidth_layers") or [], last.get("bandwidth") or []))
    return {
        "parameters": accounting.total_parameters,
        "flops_per_token": accounting.flops_per_token,
        "cache_bytes_per_token": accounting.cache_bytes_per_token,
        "steps": last.get("step", 0),
        "tokens": last.get("tokens", 0),
        "flops": last.get("flops", 0),
        "curve": [(line["step"], finite(line["val_bpb"])) for line in run.validations if "val_bpb" in line],
        "train_loss": finite(last.get("smooth_loss")),
        "seconds": last.get("total_seconds"),
        "tokens_per_second": run.median("tokens_per_second"),
        "bandwidth": sigma or None,
        **{name: facts[name] for name in ("hardware", "device", "dtype", "compiled", "torch")},
    }


def validation_bpb(loaded: LoadedRun, data: str, most: int | None = None) -> float | None:
    """Bits per byte on a corpus's validation split, its first `most` tokens or all; None if it is not finite."""
    model, tokenizer = loaded.model, loaded.tokenizer
    length = model.config.sequence_len
    tokens = min(BATCH_TOKENS.get(model.device.type, 8192), LOGITS_PER_BATCH // model.config.vocab_size)
    shape = {"batch_size": max(1, tokens // length), "sequence_len": length}
    packing = loaded.config["settings"].get("packing", "bestfit")
    batches = validation_batches(open_corpus(data), tokenizer, max_tokens=most, packing=packing, **shape)
    pairs = ((batch.inputs, batch.targets) for batch in batches)
    return finite(measure_bits_per_byte(model, pairs, tokenizer.token_bytes()).value)


def finite(value: float | None) -> float | None:
    """`value`, or None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def body(settings: Settings, errors: Errors) -> None:
    run = Run.open(Path(settings.run))
    device, dtype = (str(run.part("run").get(name)) for name in ("device", "dtype"))
    device, dtype = pick_device_and_dtype(device, dtype, errors)
    errors.raise_if_any()
    loaded = run.load(device, dtype=dtype)
    corpora = {"val_bpb": settings.data, "confirm_bpb": settings.confirm}
    measured = {name: validation_bpb(loaded, data, settings.tokens) if data else None for name, data in corpora.items()}
    atomic_write(Path(settings.output), json.dumps(measured))


main = command("nanogka.study.measure", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
