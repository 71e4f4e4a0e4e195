"""Batched generation: prompts in, one event per text and step out.

engine = Engine(model, tokenizer)
engine.generate("The with statement", max_tokens=32, temperature=0)

prompts = [engine.encode("The with statement"), engine.encode("A list")]
for events in engine.stream(prompts, SamplingSettings(), max_tokens=32):
    for event in events:
        print(event.sample, event.text)
"""

from collections.abc import Iterable, Iterator, Sequence

from nanogka.generate.continuous import ContinuousBatch, Event, Job, PrefixCache
from nanogka.generate.settings import SamplingSettings
from nanogka.model import GPT
from nanogka.tokenizer import Tokenizer


class Engine:
    """Generates with a model and the tokenizer that it was trained with.

    `prefill_chunk` positions of the prompts pass through the model at once, which bounds the memory of long prompts.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, prefill_chunk: int = 512) -> None:
        if tokenizer.vocab_size > model.config.vocab_size:
            takes = f"at most the model's {model.config.vocab_size}"
            raise ValueError(f"tokenizer: got {tokenizer.vocab_size} ids, expected {takes}")
        self.model, self.tokenizer, self.prefill_chunk = model, tokenizer, prefill_chunk

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together that the model was trained for."""
        return self.model.config.sequence_len

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt: a document that begins with `text`. Raises ValueError on a lone surrogate."""
        return [self.tokenizer.bos_id, *self.tokenizer.encode(text)]

    def batch(self, capacity: int | None = None) -> ContinuousBatch:
        """An empty batch, whose texts may grow to `capacity` positions (None: the context)."""
        return ContinuousBatch(self.model, self.tokenizer, self.prefill_chunk, capacity or self.context)

    def generate(self, prompt: str, *, max_tokens: int | None = 256, **sampling: float) -> str:
        """The continuation of `prompt`; `sampling` are fields of `SamplingSettings`."""
        steps = self.stream([self.encode(prompt)], SamplingSettings(**sampling), max_tokens=max_tokens)
        return "".join(event.text for events in steps for event in events)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        settings: SamplingSettings | None = None,
        *,
        max_tokens: int | None = None,
        samples: int = 1,
        stop_tokens: Iterable[int] | None = None,
        stop_strings: Sequence[str] = (),
        prefix: PrefixCache | None = None,
    ) -> Iterator[list[Event]]:
        """The events of each step, one for each text that goes on; arguments as of `Job`, checked at once.

        `prefix` is for a single prompt and sample: the part that need not be prefilled again; it grows with the reply.
        """
        stops = None if stop_tokens is None else tuple(stop_tokens)
        job = Job(prompts, settings or SamplingSettings(), max_tokens, samples, stops, stop_strings)
        job.check(self.context, self.tokenizer.vocab_size)
        return self._follow(job, prefix)

    def _follow(self, job: Job, prefix: PrefixCache | None) -> Iterator[list[Event]]:
        # Only as many positions as these texts can come to have: many short ones need no cache of the whole context.
        longest = max(map(len, job.prompts)) + (job.max_tokens or self.context)
        batch = self.batch(min(longest, self.context))
        batch.join([job], prefix)
        while len(batch):
            events = [event for _, event in batch.step()]
            if prefix is not None:
                prefix.append(events[0].token)
            yield events
