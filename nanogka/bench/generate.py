"""What decoding costs: `gaussian` against `dot_product` in several kinds of step, beside the floor under all.

The floor is a bare loop of the matrix-vector products of one token over the same weights, made as the model makes
them: no norm, no attention, no sampling. Beside it, the same loop of torch's own products. They and the contestants
take turns, so that whatever else slows the machine down slows all of them.

Shapes: S positions of context, V vocabulary.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from nanogka.generate.decoder import STEPS, Decoders
from nanogka.model import GPT, GPTConfig
from nanogka.model.kv_cache import DecodeCache
from nanogka.model.layers import Linear
from nanogka.problems import Problems

MIXERS = ("gaussian", "dot_product")


@dataclass(frozen=True)
class DecodeSettings:
    """What is measured.

    Attributes:
        depth, vocab_size, window_pattern: of the models, as in `GPTConfig.from_depth`.
        sequence_len: the context they are for, which sets the windows; 0: the longest measured.
        all_windowed: give the last layer a window too, as no trained model has: then no cost depends on the context.
        contexts: tokens before and with the last one timed, one measurement each; the longest is the context length.
        streams: how many prompts are decoded together, one measurement each; the first is 1.
        tokens: decoded in one go; its mean time counts as one repeat.
        repeats: whose median counts.
        steps: how a token is computed, see `nanogka.generate.decoder.Decoders`; one measurement each.
        token_by_token: also feed the prompt one token at a time, to compare with reading it in chunks.
    """

    depth: int = 6
    vocab_size: int = 32768
    window_pattern: str = "SSSL"
    sequence_len: int = 0
    all_windowed: bool = False
    contexts: tuple[int, ...] = (256, 1024, 2048)
    streams: tuple[int, ...] = (1, 16)
    tokens: int = 16
    repeats: int = 7
    token_by_token: bool = True
    steps: tuple[str, ...] = ("auto",)

    def check(self, problems: Problems) -> None:
        """Record every value that cannot be, by the name of its flag."""
        least = {"depth": 1, "vocab_size": 1, "tokens": 1, "repeats": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            problems.check(value >= smallest, flag, value, f"an integer of at least {smallest}")
        long = self.sequence_len == 0 or self.sequence_len >= 2
        problems.check(
            long, "--sequence-len", self.sequence_len, "an integer of at least 2, or 0 for the longest context"
        )
        shortest = (self.repeats + 1) * self.tokens + 1
        takes = f"integers of at least {shortest}: a prompt and the tokens timed after it"
        problems.check(bool(self.contexts) and min(self.contexts) >= shortest, "--contexts", self.contexts, takes)
        known = bool(self.steps) and set(self.steps) <= set(STEPS)
        problems.check(known, "--steps", ",".join(self.steps), f"some of {', '.join(STEPS)}, with commas")
        right = bool(self.streams) and min(self.streams) >= 1
        problems.check(right, "--streams", self.streams, "integers of at least 1")


@dataclass(frozen=True)
class DecodeCost:
    """One mixer and kind of step at one context and number of streams.

    Attributes:
        first_token_seconds: reading one stream's prompt in chunks and making the first logits.
        token_seconds: median time of a step, which gives every stream one token.
        floor_seconds: median time of the bare loop of matrix-vector products over the same weights, for one stream.
        torch_seconds: the same by `torch.nn.functional.linear`, which is what the floor is where we have no better.
        cache_bytes: held by the cache of all streams.
        read_bytes: weights and caches that a step must read.
        one_by_one_seconds: reading the same prompt token by token; None where it was not measured.
    """

    mixer: str
    step: str
    context: int
    streams: int
    first_token_seconds: float
    token_seconds: float
    floor_seconds: float
    torch_seconds: float
    cache_bytes: int
    read_bytes: int
    one_by_one_seconds: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of all streams together."""
        return self.streams / self.token_seconds

    @property
    def over_floor(self) -> float:
        """A step's time over the floor's."""
        return self.token_seconds / self.floor_seconds

    @property
    def over_torch(self) -> float:
        """A step's time over that of torch's own products."""
        return self.token_seconds / self.torch_seconds

    @property
    def bandwidth(self) -> float:
        """Bytes read a second, if each is read once."""
        return self.read_bytes / self.token_seconds

    def to_dict(self) -> dict:
        """For JSON."""
        names = ("tokens_per_second", "over_floor", "over_torch", "bandwidth")
        return asdict(self) | {name: getattr(self, name) for name in names}


class Contestant:
    """One model of random weights, ready to read a prompt of random tokens and to decode."""

    def __init__(self, mixer: str, settings: DecodeSettings, device: torch.device, dtype: torch.dtype) -> None:
        config = GPTConfig.from_depth(
            settings.depth, mixer, vocab_size=settings.vocab_size, window_pattern=settings.window_pattern,
            sequence_len=settings.sequence_len or max(settings.contexts),
        )  # fmt: skip
        self.mixer, self.device = mixer, device
        with torch.device("meta"):
            self.model = GPT(config)
        self.model.to_empty(device=device)
        if settings.all_windowed:
            for block in self.model.blocks:
                block.mixer.window = config.sequence_len // 2
        with torch.no_grad():  # on the device: on the host, random weights of a large model take longer than all else
            for parameter in self.model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, config.n_embd**-0.5)
                else:
                    parameter.fill_(0.5)
        self.model.to_compute(dtype).eval()
        self.linears = [module for module in self.model.modules() if isinstance(module, Linear)]
        self.weights = [linear.weight for linear in self.linears]
        self.vectors = {
            size: torch.randn(1, size, device=device).to(dtype) for size in {weight.shape[1] for weight in self.weights}
        }

    @torch.no_grad()
    def floor(self) -> None:
        """The matrix-vector products of one token, and nothing else."""
        for linear in self.linears:
            linear(self.vectors[linear.in_features])

    @torch.no_grad()
    def torch_floor(self) -> None:
        """The same by torch."""
        for weight in self.weights:
            F.linear(self.vectors[weight.shape[1]], weight)

    @torch.no_grad()
    def read(self, ids: torch.Tensor, capacity: int, chunk: int = 512) -> DecodeCache:
        """A cache that holds prompts (B, S), read in chunks, with the first logits made."""
        cache = DecodeCache(self.model, len(ids), capacity)
        for part in ids.split(chunk, dim=1):
            hidden = self.model.hidden(part, cache)
        self.model.unembed(hidden[:, -1])
        return cache

    def read_bytes(self, context: int, streams: int) -> int:
        """Weights and caches that a step reads."""
        mixers = [block.mixer for block in self.model.blocks]
        slots = sum(m.remembered * (context if m.window is None else min(context, m.window + 1)) for m in mixers)
        weights = sum(weight.numel() for weight in self.weights)
        return (weights + streams * slots * self.model.config.n_embd) * self.weights[0].element_size()


class _Lane:
    """One contestant with one kind of step, at one context and number of streams, taking its turns.

    Args:
        ids: (B, S) prompts.
        context: S and what is decoded after it.
        one_by_one: also read one prompt token by token.
    """

    def __init__(self, contestant: Contestant, step: str, ids: torch.Tensor, context: int, one_by_one: bool) -> None:
        self.step = step
        self.contestant, self.context, self.streams = contestant, context, len(ids)
        self.steps: list[float] = []
        self.floors: list[float] = []
        self.torch_floors: list[float] = []
        self.one_by_one: float | None = None
        ids = ids.to(contestant.device)
        contestant.read(ids[:1, :8], 8)  # what the first call must set up is not the prompt's
        self.first = self._seconds(lambda: contestant.read(ids[:1], context))
        if one_by_one:
            self.one_by_one = self._seconds(lambda: contestant.read(ids[:1], context, chunk=1))
        self.cache, self.tokens = contestant.read(ids, context), ids[:, -1]
        self.decoder = Decoders(contestant.model, step).begin(self.cache, context)

    def turn(self, count: int) -> None:
        """Torch's products, the floor's and the steps, `count` times each."""

        def decode() -> None:
            self.tokens = self.decoder.step(self.tokens).argmax(-1)

        self.torch_floors.append(self._seconds(self.contestant.torch_floor, count) / count)
        self.contestant.floor()  # torch's products on a CPU are of one thread: wake the others
        self.floors.append(self._seconds(self.contestant.floor, count) / count)
        self.steps.append(self._seconds(decode, count) / count)

    def finish(self) -> DecodeCost:
        """Medians, the first turn left out: it compiles, where the step is compiled."""
        self.decoder.close()
        return DecodeCost(
            mixer=self.contestant.mixer,
            step=self.step,
            context=self.context,
            streams=self.streams,
            first_token_seconds=self.first,
            token_seconds=statistics.median(self.steps[1:]),
            floor_seconds=statistics.median(self.floors[1:]),
            torch_seconds=statistics.median(self.torch_floors[1:]),
            cache_bytes=self.cache.bytes(),
            read_bytes=self.contestant.read_bytes(self.context, self.streams),
            one_by_one_seconds=self.one_by_one,
        )

    def _seconds(self, function: Callable[[], object], count: int = 1) -> float:
        """Time of so many calls, to the end of what they start on the device."""
        device = self.contestant.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(count):
            function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began


def compare_decoding(settings: DecodeSettings, device: torch.device, dtype: torch.dtype) -> list[DecodeCost]:
    """The costs at every context, number of streams and kind of step, in pairs in the order of `MIXERS`."""
    contestants = [Contestant(mixer, settings, device, dtype) for mixer in MIXERS]
    longest, timed = max(settings.contexts), (settings.repeats + 1) * settings.tokens
    costs = []
    for context in sorted(settings.contexts):
        for streams in settings.streams:
            generator = torch.Generator().manual_seed(context)
            ids = torch.randint(0, settings.vocab_size, (streams, context - timed), generator=generator)
            slowly = settings.token_by_token and context == longest and streams == settings.streams[0]
            lanes = [
                _Lane(contestant, step, ids, context, slowly and step == settings.steps[0])
                for step in settings.steps
                for contestant in contestants
            ]
            for _ in range(settings.repeats + 1):
                for lane in lanes:
                    lane.turn(settings.tokens)
            costs += [lane.finish() for lane in lanes]
    return costs
