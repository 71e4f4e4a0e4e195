"""Tokens per second and peak memory of a whole training step: gaussian against dot_product, same settings, alternating.

    python -m scripts.bench_train --depth 8 --sequence-len 1024

Random tokens, real model, loss and optimisers. Prints a table and, last, the same as one JSON document.
"""

import argparse
import gc
import json
import logging
import statistics
import sys
import time

import torch

from nanogka.attention.benchmark import peak_memory
from nanogka.model import GPT, GPTConfig, count
from nanogka.problems import Problems, run_script
from nanogka.runtime import describe_hardware, pick_device, pick_dtype
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, build_optimizer

ATTENTIONS = ("gaussian", "dot_product")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts.bench_train", description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--sequence-len", type=int, default=512, help="context in tokens")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=5, help="steps of each whose median counts, after one")
    parser.add_argument("--compile", action="store_true", help="run the models through torch.compile")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    return run_script(lambda: benchmark(parse_arguments(argv)), "bench_train")


class Step:
    """One model with its optimisers, ready to make training steps on one batch of random tokens."""

    def __init__(self, config: GPTConfig, batch: int, device: torch.device, dtype: torch.dtype, compiled: bool) -> None:
        self.tokens = batch * config.sequence_len
        self.model = GPT(config, compute_dtype=dtype).to(device)
        self.function = torch.compile(self.model, dynamic=False) if compiled else self.model
        horizon = plan_horizon(config, num_iterations=1000, total_batch_size=self.tokens)
        muon_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        self.optimizers = build_optimizer(self.model, Rates(), horizon, muon_dtype)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, config.vocab_size, (batch, config.sequence_len + 1), generator=generator).to(device)
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def run(self) -> float:
        """Make a step; returns its seconds."""
        device = self.inputs.device
        _wait(device)
        start = time.perf_counter()
        self.function(self.inputs, self.targets).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        _wait(device)
        return time.perf_counter() - start

    def held_bytes(self) -> int:
        """What stays between steps: parameters, buffers, optimiser state."""
        state = [value for o in self.optimizers for s in o.state.values() for value in s.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *(t for t in state if isinstance(t, torch.Tensor))]
        return sum(t.numel() * t.element_size() for t in tensors)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def benchmark(arguments: argparse.Namespace) -> None:
    """Check the arguments, measure and print. Raises `SettingsError` naming every flag that is wrong."""
    problems = Problems()
    for flag, least in (("depth", 1), ("sequence_len", 2), ("batch", 1), ("vocab_size", 1), ("repeats", 1)):
        value = getattr(arguments, flag)
        problems.check(value >= least, f"--{flag.replace('_', '-')}", value, f"an integer of at least {least}")
    device = dtype = None
    try:
        device = pick_device(arguments.device)
        dtype = pick_dtype(arguments.dtype, device)
    except ValueError as error:
        problems.collect(error)
    problems.raise_any()

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    shape = {"sequence_len": arguments.sequence_len, "vocab_size": arguments.vocab_size}
    configs = {name: GPTConfig.from_depth(arguments.depth, name, **shape) for name in ATTENTIONS}
    steps = {name: Step(config, arguments.batch, device, dtype, arguments.compile) for name, config in configs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ATTENTIONS}
    for _ in range(arguments.repeats + 1):
        for name, step in steps.items():
            seconds[name].append(step.run())
    results = {}
    for name, step in steps.items():
        gc.collect()
        results[name] = {
            "tokens_per_second": step.tokens / statistics.median(seconds[name][1:]),
            "seconds": seconds[name][1:],
            "peak_bytes": step.held_bytes() + peak_memory(step.run, device),
            "flops_per_token": count(configs[name]).flops_per_token,
        }
    _report(arguments, describe_hardware(device).name, device.type, str(dtype).removeprefix("torch."), results)


def _report(arguments: argparse.Namespace, hardware: str, device: str, dtype: str, results: dict[str, dict]) -> None:
    ours, baseline = (results[name] for name in ATTENTIONS)
    ratios = {key: ours[key] / baseline[key] for key in ("tokens_per_second", "peak_bytes", "flops_per_token")}
    expected = 1 / ratios["flops_per_token"]
    print(f"{hardware}, {dtype}, depth {arguments.depth}, {arguments.batch} × {arguments.sequence_len} tokens")
    print("| | tokens/s | FLOPs a token | FLOP/s | peak memory |\n|---|---:|---:|---:|---:|")
    for name, r in results.items():
        achieved = r["tokens_per_second"] * r["flops_per_token"]
        cells = f"{r['tokens_per_second']:,.0f} | {r['flops_per_token']:.4g} | {achieved:.3g}"
        print(f"| {name} | {cells} | {r['peak_bytes'] / 2**20:,.0f} MiB |")
    cells = f"{ratios['tokens_per_second']:.3f} | {ratios['flops_per_token']:.3f}"
    kept = ratios["tokens_per_second"] / expected
    achieved = ratios["tokens_per_second"] * ratios["flops_per_token"]
    print(f"| ratio | {cells} | {achieved:.3f} | {ratios['peak_bytes']:.3f} |")
    print(f"tokens/s gained over what the FLOPs promise ({expected:.3f}): {kept:.3f}")
    settings = {key: value for key, value in vars(arguments).items() if key not in ("dtype", "device")}
    document = {"hardware": hardware, "device": device, "dtype": dtype, **settings, "results": results}
    print(json.dumps({**document, "ratios": ratios, "kept_of_promise": kept}))


if __name__ == "__main__":
    sys.exit(main())
