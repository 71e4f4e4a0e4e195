"""How much faster the evaluator is than the usual way (each item's choices as full prompts in one padded batch, all
logits), on the same items, one way after the other in one process.

    python -m scripts.bench_eval --eval-bundle FOLDER --tokenizer default --depth 4 --sequence-len 1024 --items 64
    python -m scripts.bench_eval --eval-bundle FOLDER --run d4-gaussian

Without --run the model is of random weights: what it computes takes as long. Prints a table with a line a task; the
last line is the same as one JSON document.
"""

import argparse
import json
import sys
from dataclasses import dataclass

import torch

from nanogka.bench.evaluate import compare, table, total
from nanogka.cli import flag, from_flags, parse_flags, run_script
from nanogka.evaluate import open_bundle
from nanogka.evaluate.task import TaskData
from nanogka.model import GPT, GPTConfig
from nanogka.model.kv_cache import DecodeCache
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device_and_dtype
from nanogka.train.checkpoint import load_run
from nanogka.train.preparation import load_tokenizer
from tasks import CORE, TASKS


@dataclass(frozen=True)
class BenchSettings:
    """What `scripts.bench_eval` takes."""

    eval_bundle: str = flag("", "a folder or .zip in nanochat's layout")
    run: str = flag("", "a trained run, in place of a model of random weights")
    tokenizer: str = flag("default", "of the random model: a name or folder")
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
    tokenizer = load_tokenizer(settings.tokenizer)
    config = GPTConfig.from_depth(
        settings.depth, settings.attention, vocab_size=tokenizer.vocab_size, sequence_len=settings.sequence_len
    )
    model = GPT(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, config.n_embd**-0.5, generator=generator)
    return model.to(device).to_compute(dtype).eval(), tokenizer


def open_tasks(settings: BenchSettings) -> list[TaskData]:
    """The tasks to run."""
    bundle = open_bundle(settings.eval_bundle or "eval_bundle", TASKS)
    names = [name.strip() for name in settings.tasks.split(",") if name.strip()] or CORE
    return [bundle.load(name) for name in names]


def benchmark(args: argparse.Namespace) -> None:
    """Check, measure and print."""
    problems = Problems()
    settings = from_flags(BenchSettings, args, problems)
    problems.check(settings.items >= 11, "--items", settings.items, "an integer of at least 11, for ten examples")
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    tasks = problems.attempt(lambda: open_tasks(settings))
    opened = problems.attempt(lambda: open_model(settings, device, dtype)) if device and dtype else None
    problems.raise_any()
    model, tokenizer = opened
    hardware, config = describe_hardware(device).name, model.config
    kind = str(dtype).removeprefix("torch.")
    print(f"{hardware}, {kind}, depth {config.n_layer}, T={config.sequence_len}, vocabulary {config.vocab_size:,}")
    comparisons = []
    for number, data in enumerate(tasks):
        comparisons.append(compare(model, tokenizer, data, settings.items, DecodeCache, usual_first=number % 2 == 0))
        print(f"  {data.task.name}: {comparisons[-1].speedup:.2f}×", file=sys.stderr, flush=True)
    print("\n".join(table(comparisons)))
    overall = total(comparisons)
    if overall.peak and overall.usual_peak:
        print(f"peak memory: usual {overall.usual_peak / 2**20:,.0f} MiB, ours {overall.peak / 2**20:,.0f} MiB")
    document = {"hardware": hardware, "device": str(device), "dtype": kind, "threads": torch.get_num_threads()}
    document |= {"settings": vars(settings), "model": config.to_dict(), "total": overall.to_dict()}
    print(json.dumps(document | {"tasks": [comparison.to_dict() for comparison in comparisons]}))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    args = parse_flags(BenchSettings, "bench_eval", __doc__, argv)
    return run_script(lambda: benchmark(args), "bench_eval")


if __name__ == "__main__":
    sys.exit(main())
