"""Long-context classification: mixers learn which of 8 patterns occurs in a long random sequence; accuracy and time.

    python -m scripts.bench_patterns --length 4096 --attention mixture,gaussian,dot_product

Prints a table and, last, the same as one JSON document.
"""

import json
import sys
from dataclasses import asdict, dataclass

from nanogka.bench.patterns import PatternTask, classify
from nanogka.cli import flag, flag_name, run
from nanogka.formatting import markdown_table, number, scientific
from nanogka.model import GPTConfig, mixer_pattern
from nanogka.model.config import ROUTINGS
from nanogka.model.mixers.mixture import GaussianMixtureMixer
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device_and_dtype


@dataclass(frozen=True)
class Settings:
    """The flags."""

    attention: str = flag("mixture,gaussian,dot_product", "mixers, or patterns of their letters, with commas")
    length: int = flag(4096, "positions of a sequence")
    pattern_length: int = flag(2, "symbols of a pattern, at most 3; 1: it is found by content alone")
    occurrences: int = flag(1, "how often the pattern occurs in a sequence; more are found after fewer steps")
    depth: int = flag(2, "number of layers; sets width and heads too")
    steps: int = flag(300, "updates")
    batch: int = flag(8, "sequences per step")
    items: int = flag(256, "sequences that the accuracy is of")
    lr_scale: float = flag(1.0, "factor of all learning rates")
    mixture_components: int | None = flag(None, "K, Gaussian components per head of a mixture layer (default: 64)")
    mixture_routing: str | None = flag(None, "what its queries and keys are made of (default: projected)", ROUTINGS)
    mixture_routing_dim: int | None = flag(None, "features they are routed by (default: 16 if projected, else all)")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")


def body(settings: Settings, problems: Problems) -> None:
    """Check the settings, train each mixer on the task and print."""
    for name, least in {"length": 8, "pattern_length": 1, "occurrences": 1, "steps": 1, "batch": 1, "items": 1}.items():
        value = getattr(settings, name)
        problems.check(value >= least, flag_name(name), value, f"an integer of at least {least}")
    problems.check(settings.pattern_length <= 3, "--pattern-length", settings.pattern_length, "at most 3")
    most = max(1, (settings.length - 1) // max(1, settings.pattern_length))
    fits = settings.occurrences <= most
    problems.check(fits, "--occurrences", settings.occurrences, f"at most {most}, which fit into --length")
    problems.check(settings.lr_scale > 0, "--lr-scale", settings.lr_scale, "a number above 0")
    task = PatternTask(settings.length, settings.pattern_length, settings.occurrences)
    fields = ("mixture_components", "mixture_routing", "mixture_routing_dim")
    options = {name: getattr(settings, name) for name in fields}
    shape = {"sequence_len": settings.length, "vocab_size": task.vocab_size, "window_pattern": "L"}
    names = settings.attention.split(",")

    def build(name: str) -> GPTConfig:
        taken = options if GaussianMixtureMixer.letter in mixer_pattern(name) else {}
        return GPTConfig.from_depth(settings.depth, name, **shape, **taken)

    configs = [problems.attempt(lambda name=name: build(name)) for name in names]
    device, _ = pick_device_and_dtype(settings.device, "float32", problems)
    problems.raise_any()

    size = (settings.steps, settings.batch, settings.items, settings.lr_scale)
    outcomes = [classify(config, name, task, device, *size) for name, config in zip(names, configs)]
    header = ["mixer", "parameters", "FLOPs / token", "accuracy", "seconds / step"]
    rows = []
    for o in outcomes:
        accuracy = f"{100 * o.accuracy:.1f} ± {100 * o.stderr:.1f} %"
        rows.append(
            [o.attention, number(o.parameters), scientific(o.flops_per_token), accuracy, number(o.step_seconds, 2)]
        )
    hardware = describe_hardware(device).name
    print(f"{hardware}, float32; chance {100 / task.patterns:.1f} %")
    print(markdown_table(header, rows))
    print(json.dumps(asdict(settings) | {"hardware": hardware, "outcomes": [asdict(o) for o in outcomes]}))


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    return run(Settings, body, "bench_patterns", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
