"""Measure the decoding speed of token mixers and compare it with a floor: the bare matrix products of a step.

    python -m scripts.bench generate
    python -m scripts.bench generate --depth 20 --contexts 8192 --batch-sizes 1,16,64 --dtype bfloat16

The floor is a loop of the same matrix products over the same weights, without norms, attention and sampling. Mixers and
floors take turns, so that anything else that slows the machine down affects all of them alike.

Shapes: B sequences, S tokens of context.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanogka.bench.common import BenchSettings, check_mixers, integers, seconds, take_turns
from nanogka.common.cli import flag
from nanogka.common.errors import Errors
from nanogka.common.formatting import markdown_table
from nanogka.model import GPT, GPTConfig, KVCache

PREFILL_CHUNK = 512  # positions at once, as in the engine


@dataclass(frozen=True)
class Settings(BenchSettings):
    """Settings."""

    mixers: str = flag("gaussian,dot_product", "token mixers or patterns of letters, separated by commas")
    depth: int = flag(6, "depth of the models", ge=1, le=1000)
    vocab_size: int = flag(32768, "vocabulary of the models", ge=1, le=2**20)
    sequence_len: int | None = flag(
        None, "context of the models, which sets their windows (default: the longest measured)", ge=2
    )
    contexts: str = flag("256,1024,2048", "lengths of context at the last timed token, separated by commas")
    batch_sizes: str = flag("1,16", "numbers of sequences decoded together, separated by commas")
    tokens: int = flag(16, "tokens per sequence in one repeat", ge=1, le=10**6)
    repeats: int = flag(7, "repeats; the median counts", ge=1, le=10**4)

    @property
    def timed(self) -> int:
        return (self.repeats + 1) * self.tokens  # the first repeat only warms up


class _Decoding:
    """A model with random weights that decodes after random prompts (B, S)."""

    def __init__(self, model: GPT, ids: Tensor, context: int) -> None:
        self.model, self.ids = model, ids.to(model.device)
        self.linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        sizes = {linear.in_features for linear in self.linears}
        self.inputs = {n: torch.randn(len(ids), n, device=model.device, dtype=model.compute_dtype) for n in sizes}
        first = self.ids[:, :PREFILL_CHUNK]
        self._prefill(first, KVCache(model, *first.shape))  # compiles kernels
        self.cache = KVCache(model, len(ids), context)
        self.prefill_seconds = seconds(lambda: self._prefill(self.ids, self.cache), model.device)
        self.last = self.ids[:, -1:]

    @torch.no_grad()
    def _prefill(self, ids: Tensor, cache: KVCache) -> None:
        for chunk in ids.split(PREFILL_CHUNK, dim=1):
            hidden = self.model.hidden(chunk, cache)
        self.model.unembed(hidden[:, -1])

    @torch.no_grad()
    def step(self) -> None:
        self.last = self.model.unembed(self.model.hidden(self.last, self.cache)[:, -1:]).argmax(-1)

    @torch.no_grad()
    def floor(self) -> None:
        for linear in self.linears:
            linear(self.inputs[linear.in_features])

    def cost(self, step: float, floor: float) -> dict:
        """Return the costs, from the seconds of a step and of the floor. A step adds one token to every sequence."""
        weights = sum(linear.weight.numel() * linear.weight.element_size() for linear in self.linears)
        return {
            "batch_size": len(self.ids),
            "prefill_seconds": self.prefill_seconds,
            "token_seconds": step,
            "floor_seconds": floor,
            "tokens_per_second": len(self.ids) / step,
            "over_floor": step / floor,
            "cache_bytes": self.cache.bytes(),
            "bandwidth": (weights + self.cache.bytes()) / step,  # bytes of weights and caches read per second
        }


def compare_decoding(
    settings: Settings, contexts: Sequence[int], batch_sizes: Sequence[int], device: torch.device, dtype: torch.dtype
) -> list[dict]:
    """Measure each mixer at every context and batch size."""
    config = {"vocab_size": settings.vocab_size, "sequence_len": settings.sequence_len or max(contexts)}
    configs = {name: GPTConfig.from_depth(settings.depth, name, **config) for name in settings.mixers.split(",")}
    models = {name: _model(config, device, dtype) for name, config in configs.items()}
    costs = []
    for context, batch_size in itertools.product(sorted(contexts), batch_sizes):
        generator = torch.Generator().manual_seed(context)
        shape = (batch_size, context - settings.timed)
        ids = torch.randint(0, settings.vocab_size, shape, generator=generator)
        decodings = {name: _Decoding(model, ids, context) for name, model in models.items()}
        steps = {(name, part): getattr(one, part) for name, one in decodings.items() for part in ("floor", "step")}
        times = take_turns(steps, device, settings.repeats, settings.tokens)
        for name, one in decodings.items():
            cost = one.cost(*(statistics.median(times[name, part]) for part in ("step", "floor")))
            costs.append({"mixer": name, "context": context, **cost})
    return costs


@torch.no_grad()
def _model(config: GPTConfig, device: torch.device, dtype: torch.dtype) -> GPT:
    """A model of random weights, initialized on the device: on the host a large one takes longer than the benchmark."""
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device=device)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, config.n_embd**-0.5)
        else:
            parameter.fill_(0.5)
    return model.to_compute(dtype).eval()


def bench(settings: Settings, errors: Errors) -> None:
    """Time decoding of every mixer, in turns, and print the table."""
    check_mixers(settings.mixers.split(","), errors)
    # A context holds at least one token of prompt and all tokens that are decoded.
    contexts = integers("--contexts", settings.contexts, errors, settings.timed + 1)
    batch_sizes = integers("--batch-sizes", settings.batch_sizes, errors)
    device, dtype = settings.start(errors)
    costs = compare_decoding(settings, contexts, batch_sizes, device, dtype)
    header = ["mixer", "context", "batch", "prefill ms", "step ms", "tokens/s", "over floor", "cache MiB", "GB/s read"]
    rows = []
    for c in costs:
        shape = [c["mixer"], f"{c['context']:,}", str(c["batch_size"])]
        times = [f"{c['prefill_seconds'] * 1e3:,.0f}", f"{c['token_seconds'] * 1e3:.3f}"]
        speed = [f"{c['tokens_per_second']:,.0f}", f"{c['over_floor']:.2f}"]
        memory = [f"{c['cache_bytes'] / 2**20:,.1f}", f"{c['bandwidth'] / 1e9:,.1f}"]
        rows.append([*shape, *times, *speed, *memory])
    title = f"depth {settings.depth}, vocabulary {settings.vocab_size:,}"
    settings.report(device, dtype, title, markdown_table(header, rows), results=costs)
