"""Compare the evaluator's speed with the usual way's (each item's choices as full prompts in one padded batch, all
logits), on the same items, one way after the other in one process.

    python -m scripts.bench_eval --eval-bundle FOLDER --tokenizer default --depth 4 --sequence-len 1024 --items 64
    python -m scripts.bench_eval --eval-bundle FOLDER --run d4-gaussian

Without --run the model has random weights, which take as long. Prints a table with a line for each task; the last line
is the same as one JSON document.
"""

import json
import sys
from dataclasses import asdict, dataclass

import torch

from nanogka.bench.evaluate import compare, table, total
from nanogka.cli import flag, run
from nanogka.evaluate import open_bundle
from nanogka.evaluate.run import split_names
from nanogka.model import GPT, GPTConfig
from nanogka.problems import Problems
from nanogka.runs import load_run
from nanogka.runtime import describe_hardware, pick_device_and_dtype
from nanogka.tokenizer import Tokenizer, tokenizer_folder
from tasks import CORE, TASKS


@dataclass(frozen=True)
class BenchSettings:
    """The settings of `scripts.bench_eval`."""

    eval_bundle: str = flag("eval_bundle", "a folder or .zip in nanochat's layout")
    run: str = flag("", "a trained run, in place of a model of random weights")
    tokenizer: str = flag("default", "of the random model: the name of a trained one")
    depth: int = flag(4, "of the random model")
    attention: str = flag("gaussian", "of the random model")
    sequence_len: int = flag(1024, "of the random model")
    items: int = flag(64, "of each task, at most")
    tasks: str = flag("", "these tasks only, with commas between (default: all 22 of CORE)")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("float32", "compute dtype: auto, float32, bfloat16 or float16")


def open_model(settings: BenchSettings, device: torch.device, dtype: torch.dtype) -> tuple:
    """Model and tokenizer; random weights are such that losses differ from choice to choice."""
    if settings.run:
        loaded = load_run(settings.run, device, dtype=dtype)
        return loaded.model, loaded.tokenizer
    tokenizer = Tokenizer.load(tokenizer_folder(settings.tokenizer))
    config = GPTConfig.from_depth(
        settings.depth, settings.attention, vocab_size=tokenizer.vocab_size, sequence_len=settings.sequence_len
    )
    model = GPT(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, config.n_embd**-0.5, generator=generator)
    return model.to(device).to_compute(dtype).eval(), tokenizer


def body(settings: BenchSettings, problems: Problems) -> None:
    """Check, measure and print."""
    problems.check(settings.items >= 11, "--items", settings.items, "an integer of at least 11, for ten examples")
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    bundle = problems.attempt(lambda: open_bundle(settings.eval_bundle, TASKS))
    names = split_names(settings.tasks) or CORE
    tasks = [problems.attempt(lambda name=name: bundle.load(name)) for name in names] if bundle else []
    opened = problems.attempt(lambda: open_model(settings, device, dtype)) if device and dtype else None
    problems.raise_any()
    model, tokenizer = opened
    hardware, config = describe_hardware(device).name, model.config
    kind = str(dtype).removeprefix("torch.")
    print(f"{hardware}, {kind}, depth {config.n_layer}, T={config.sequence_len}, vocabulary {config.vocab_size:,}")
    comparisons = []
    for number, data in enumerate(tasks):
        comparisons.append(compare(model, tokenizer, data, settings.items, usual_first=number % 2 == 0))
        print(f"  {data.task.name}", file=sys.stderr, flush=True)
    print(table(comparisons))
    document = {"hardware": hardware, "dtype": kind, "settings": asdict(settings), "model": config.to_dict()}
    print(json.dumps(document | {"total": total(comparisons), "tasks": comparisons}))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run(BenchSettings, body, "bench_eval", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
