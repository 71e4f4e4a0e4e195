"""Decoding speed of token mixers, beside the floor: the bare matrix products of a step.

The floor is a loop of the same matrix products over the same weights, made as the model makes them: no norm, no
attention, no sampling. Mixers and floors take turns, so that whatever else slows the machine down slows all of them.

Shapes: B sequences, S tokens of context.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanogka.bench.train import check_mixers
from nanogka.cli import flag
from nanogka.formatting import markdown_table
from nanogka.model import GPT, GPTConfig, KVCache
from nanogka.problems import Problems

PREFILL_CHUNK = 512  # positions at once, as the engine does


@dataclass(frozen=True)
class DecodeSettings:
    """Settings of the benchmark; each field is a flag."""

    mixers: str = flag("gaussian,dot_product", "token mixers (names, or patterns of letters), with commas")
    depth: int = flag(6, "depth of the models")
    vocab_size: int = flag(32768, "vocabulary of the models")
    sequence_len: int | None = flag(None, "context of the models, which sets windows (default: the longest measured)")
    contexts: str = flag("256,1024,2048", "tokens up to the last one timed, with commas")
    batch_sizes: str = flag("1,16", "sequences decoded together, with commas")
    tokens: int = flag(16, "tokens per sequence in one repeat")
    repeats: int = flag(7, "repeats, of which the median counts")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "auto, float32, bfloat16 or float16")

    def check(self, problems: Problems) -> None:
        """Record every value that is out of range."""
        for name, least in {"depth": 1, "vocab_size": 1, "tokens": 1, "repeats": 1, "sequence_len": 2}.items():
            value, takes = getattr(self, name), f"an integer of at least {least}"
            problems.check(value is None or value >= least, f"--{name.replace('_', '-')}", value, takes)
        check_mixers(self.names, problems)
        least, takes = self.timed + 1, "integers with commas, of at least {}"
        contexts, sizes = integers(self.contexts), integers(self.batch_sizes)
        longer = f"{takes.format(least)}: a prompt and the {self.timed} tokens decoded after it"
        problems.check(min(contexts, default=0) >= least, "--contexts", self.contexts, longer)
        problems.check(min(sizes, default=0) >= 1, "--batch-sizes", self.batch_sizes, takes.format(1))

    @property
    def names(self) -> list[str]:
        """The mixers."""
        return self.mixers.split(",")

    @property
    def timed(self) -> int:
        """Tokens per sequence that are decoded, the first repeat included, which only warms up."""
        return (self.repeats + 1) * self.tokens


@dataclass(frozen=True)
class DecodeCost:
    """Costs of one mixer at one context and batch size.

    Attributes:
        prefill_seconds: time to prefill the prompts and compute the first logits.
        token_seconds: median time of a step, which gives every sequence one token.
        floor_seconds: median time of the bare matrix products of a step.
        tokens_per_second: of all sequences together.
        over_floor: a step's time over the floor's.
        cache_bytes: size of the KV cache of all sequences.
        bandwidth: bytes of weights and caches read per second.
    """

    mixer: str
    context: int
    batch_size: int
    prefill_seconds: float
    token_seconds: float
    floor_seconds: float
    tokens_per_second: float
    over_floor: float
    cache_bytes: int
    bandwidth: float


class _Decoding:
    """A model of random weights that decodes after random prompts (B, S), one turn at a time."""

    def __init__(self, mixer: str, model: GPT, ids: Tensor, context: int) -> None:
        self.mixer, self.model, self.context, self.ids = mixer, model, context, ids.to(model.device)
        self.linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        sizes = {linear.in_features for linear in self.linears}
        self.inputs = {n: torch.randn(len(ids), n, device=model.device, dtype=model.compute_dtype) for n in sizes}
        self.steps: list[float] = []
        self.floors: list[float] = []
        first = self.ids[:, :PREFILL_CHUNK]
        self._seconds(lambda: self._prefill(first, KVCache(model, *first.shape)))  # compiles kernels
        self.cache = KVCache(model, len(ids), context)
        self.prefill_seconds = self._seconds(lambda: self._prefill(self.ids, self.cache))
        self.last = self.ids[:, -1:]

    def _prefill(self, ids: Tensor, cache: KVCache) -> None:
        for chunk in ids.split(PREFILL_CHUNK, dim=1):
            hidden = self.model.hidden(chunk, cache)
        self.model.unembed(hidden[:, -1])

    def _step(self) -> None:
        self.last = self.model.unembed(self.model.hidden(self.last, self.cache)[:, -1:]).argmax(-1)

    def _floor(self) -> None:
        for linear in self.linears:
            linear(self.inputs[linear.in_features])

    def turn(self, count: int) -> None:
        """Time `count` floors, then `count` steps."""
        self._floor()
        self.floors.append(self._seconds(self._floor, count))
        self.steps.append(self._seconds(self._step, count))

    def cost(self) -> DecodeCost:
        """Medians without the first turn, which warms up."""
        weights = sum(linear.weight.numel() * linear.weight.element_size() for linear in self.linears)
        step, floor = statistics.median(self.steps[1:]), statistics.median(self.floors[1:])
        return DecodeCost(
            mixer=self.mixer,
            context=self.context,
            batch_size=len(self.ids),
            prefill_seconds=self.prefill_seconds,
            token_seconds=step,
            floor_seconds=floor,
            tokens_per_second=len(self.ids) / step,
            over_floor=step / floor,
            cache_bytes=self.cache.bytes(),
            bandwidth=(weights + self.cache.bytes()) / step,
        )

    @torch.no_grad()
    def _seconds(self, function: Callable[[], object], count: int = 1) -> float:
        """Mean time of `count` calls, to the end of the work that they start on the device."""
        device = self.model.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(count):
            function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / count


def compare_decoding(settings: DecodeSettings, device: torch.device, dtype: torch.dtype) -> list[DecodeCost]:
    """Measure each mixer at every context and batch size."""
    contexts = sorted(integers(settings.contexts))
    config = {"vocab_size": settings.vocab_size, "sequence_len": settings.sequence_len or contexts[-1]}
    configs = {name: GPTConfig.from_depth(settings.depth, name, **config) for name in settings.names}
    models = {name: _model(config, device, dtype) for name, config in configs.items()}
    costs = []
    for context in contexts:
        for batch_size in integers(settings.batch_sizes):
            generator = torch.Generator().manual_seed(context)
            shape = (batch_size, context - settings.timed)
            ids = torch.randint(0, settings.vocab_size, shape, generator=generator)
            decodings = [_Decoding(name, model, ids, context) for name, model in models.items()]
            for _ in range(settings.repeats + 1):
                for decoding in decodings:
                    decoding.turn(settings.tokens)
            costs += [decoding.cost() for decoding in decodings]
    return costs


@torch.no_grad()
def _model(config: GPTConfig, device: torch.device, dtype: torch.dtype) -> GPT:
    """A model of random weights, made on the device: on the host a large one would take longer than the benchmark."""
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device=device)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, config.n_embd**-0.5)
        else:
            parameter.fill_(0.5)
    return model.to_compute(dtype).eval()


def cost_table(costs: Sequence[DecodeCost]) -> str:
    """The costs as a Markdown table."""
    header = ["mixer", "context", "batch", "prefill ms", "step ms", "tokens/s", "over floor", "cache MiB", "GB/s read"]
    rows = []
    for c in costs:
        times = [f"{c.prefill_seconds * 1e3:,.0f}", f"{c.token_seconds * 1e3:.3f}", f"{c.tokens_per_second:,.0f}"]
        memory = [f"{c.cache_bytes / 2**20:,.1f}", f"{c.bandwidth / 1e9:,.1f}"]
        rows.append([c.mixer, f"{c.context:,}", str(c.batch_size), *times, f"{c.over_floor:.2f}", *memory])
    return markdown_table(header, rows)


def integers(text: str) -> tuple[int, ...]:
    """Integers with commas between them; () if one of them is not an integer."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
