"""Measure the decoding speed of token mixers.

    python -m scripts.bench generate
    python -m scripts.bench generate --depth 20 --contexts 8192 --batch-sizes 1,16,64 --dtype bfloat16
    python -m scripts.bench generate --depth 4 --mixers successor,dot_product --successor-keys

The mixers take turns, so that anything else that slows the machine down affects all of them alike. A decoding step
reads all weights and caches once, so its time has a floor: their bytes over the memory's bandwidth.

Shapes: B sequences, S tokens of context.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanogka.bench.common import BenchSettings, check_mixers, integers, seconds, table, take_turns
from nanogka.common.cli import flag
from nanogka.common.errors import Errors
from nanogka.model import GPT, GPTConfig, KVCache

PREFILL_CHUNK = 512  # positions at once, as in the engine
COLUMNS = {
    "mixer": lambda cost: cost["mixer"],
    "context": lambda cost: f"{cost['context']:,}",
    "batch": lambda cost: f"{cost['batch_size']}",
    "prefill ms": lambda cost: f"{cost['prefill_seconds'] * 1e3:,.0f}",
    "step ms": lambda cost: f"{cost['token_seconds'] * 1e3:.3f}",
    "tokens/s": lambda cost: f"{cost['tokens_per_second']:,.0f}",
    "cache MiB": lambda cost: f"{cost['cache_bytes'] / 2**20:,.1f}",
    "bytes/token": lambda cost: f"{cost['bytes_per_token']:,.0f}",
    "context in 8 GB": lambda cost: f"{8e9 / cost['bytes_per_token']:,.0f}",  # of one sequence, windows in proportion
    "GB/s read": lambda cost: f"{cost['bandwidth'] / 1e9:,.1f}",
}


@dataclass(frozen=True)
class Settings(BenchSettings):
    """Settings."""

    mixers: str = flag("gaussian,dot_product", "token mixers or patterns of letters, separated by commas")
    depth: int = flag(6, "depth of the models", ge=1)
    vocab_size: int = flag(32768, "vocabulary of the models", ge=1)
    sequence_len: int | None = flag(
        None, "context of the models, which sets their windows (default: the longest measured)", ge=2
    )
    contexts: str = flag("256,1024,2048", "lengths of context at the last timed token, separated by commas")
    batch_sizes: str = flag("1,16", "numbers of sequences decoded together, separated by commas")
    successor_keys: bool = flag(False, "give `dot_product` successor keys, which `successor` has")
    tokens: int = flag(16, "tokens per sequence in one repeat", ge=1)
    repeats: int = flag(7, "number of repeats; the median is reported", ge=1)

    @property
    def timed(self) -> int:
        return (self.repeats + 1) * self.tokens  # the first repeat only warms up


class _Decoding:
    """A model with random weights that decodes after random prompts (B, S)."""

    def __init__(self, model: GPT, ids: Tensor, context: int) -> None:
        self.model, ids = model, ids.to(model.device)
        first = ids[:, :PREFILL_CHUNK]
        self._prefill(first, model.new_cache(*first.shape))  # compiles kernels
        self.cache, self.context = model.new_cache(len(ids), context), context
        self.prefill_seconds = seconds(lambda: self._prefill(ids, self.cache), model.device)
        self.last = ids[:, -1:]

    @torch.no_grad()
    def _prefill(self, ids: Tensor, cache: KVCache) -> None:
        for chunk in ids.split(PREFILL_CHUNK, dim=1):
            hidden = self.model.hidden(chunk, cache)
        self.model.unembed(hidden[:, -1])

    @torch.no_grad()
    def step(self) -> None:
        self.last = self.model.unembed(self.model.hidden(self.last, self.cache)[:, -1:]).argmax(-1)

    def cost(self, step: float) -> dict:
        """The costs, from the seconds of a step. A step adds one token to every sequence."""
        linears = [module.weight for module in self.model.modules() if isinstance(module, nn.Linear)]
        read = sum(weight.nbytes for weight in linears) + self.cache.bytes()
        return {
            "batch_size": len(self.last),
            "prefill_seconds": self.prefill_seconds,
            "token_seconds": step,
            "tokens_per_second": len(self.last) / step,
            "cache_bytes": self.cache.bytes(),
            "bytes_per_token": self.cache.bytes() / len(self.last) / self.context,
            "bandwidth": read / step,  # bytes of weights and caches read per second
        }


def compare_decoding(
    settings: Settings, contexts: Sequence[int], batch_sizes: Sequence[int], device: torch.device, dtype: torch.dtype
) -> list[dict]:
    """Measure each mixer at every context and batch size."""
    shape = {"vocab_size": settings.vocab_size, "sequence_len": settings.sequence_len or max(contexts)}
    names, costs = settings.mixers.split(","), []
    models = {}
    for name in names:
        config = GPTConfig.from_depth(settings.depth, name, **shape)
        if settings.successor_keys and any("successor_keys" in mixer.options for mixer in config.mixers()):
            config = GPTConfig.from_depth(settings.depth, name, successor_keys=True, **shape)
        models[name] = _model(config, device, dtype)
    for context, batch_size in itertools.product(sorted(contexts), batch_sizes):
        generator = torch.Generator().manual_seed(context)
        ids = torch.randint(0, settings.vocab_size, (batch_size, context - settings.timed), generator=generator)
        decodings = {name: _Decoding(model, ids, context) for name, model in models.items()}
        steps = {name: decoding.step for name, decoding in decodings.items()}
        times = take_turns(steps, device, settings.repeats, settings.tokens)
        for name, decoding in decodings.items():
            cost = decoding.cost(statistics.median(times[name]))
            costs.append({"mixer": name, "context": context} | cost)
    return costs


@torch.no_grad()
def _model(config: GPTConfig, device: torch.device, dtype: torch.dtype) -> GPT:
    """A model with random weights, initialized on the device, which is faster for a large one."""
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
    title = f"depth {settings.depth}, vocabulary {settings.vocab_size:,}"
    settings.report(device, dtype, title, table(COLUMNS, costs), results=costs)
