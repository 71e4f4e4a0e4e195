"""Batched generation: prompts in, one token per text and step out.

engine = Engine(model, tokenizer)
engine.generate("The with statement", max_tokens=32, temperature=0)

prompts = [engine.encode("The with statement"), engine.encode("A list")]
for outputs in engine.stream(prompts, SamplingParams(), max_tokens=32):
    for output in outputs:
        print(output.sample, output.text)
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nanogka.generate.continuous import ContinuousBatch, PrefixCache, Request, TokenOutput
from nanogka.generate.prompt import Prompt, prompt_of
from nanogka.generate.settings import SamplingParams
from nanogka.model import GPT
from nanogka.tokenizer import Tokenizer


class Engine:
    """Generates with a model and the tokenizer that it was trained with.

    `prefill_chunk` positions of the prompts pass through the model at once, which bounds the memory of long prompts.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, prefill_chunk: int = 512) -> None:
        if tokenizer.vocab_size > model.config.vocab_size:
            expected = f"at most the model's {model.config.vocab_size}"
            raise ValueError(f"tokenizer: got {tokenizer.vocab_size} ids, expected {expected}")
        self.model, self.tokenizer, self.prefill_chunk = model, tokenizer, prefill_chunk

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together that the model was trained for."""
        return self.model.config.sequence_len

    def encode(self, text: str) -> list[int]:
        """Return the ids of a document that begins with `text`. Raises ValueError on a lone surrogate."""
        return list(prompt_of(self.tokenizer, text).ids)

    def batch(self, capacity: int | None = None) -> ContinuousBatch:
        """Return an empty batch for texts of up to `capacity` positions (None: the context)."""
        return ContinuousBatch(self.model, self.tokenizer, self.prefill_chunk, capacity or self.context)

    def generate(self, prompt: str, *, max_tokens: int | None = 256, **sampling: Any) -> str:
        """Return the continuation of `prompt`. `sampling` are fields of `SamplingParams`."""
        steps = self.stream([self.encode(prompt)], SamplingParams(**sampling), max_tokens=max_tokens)
        return "".join(output.text for outputs in steps for output in outputs)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        *,
        max_tokens: int | None = None,
        n: int = 1,
        stop_tokens: Iterable[int] | None = None,
        stop_strings: Sequence[str] = (),
        calculator: bool = False,
        prefix: PrefixCache | None = None,
    ) -> Iterator[list[TokenOutput]]:
        """Yield the new tokens of each step, one for each unfinished text. Arguments are those of `Request`.

        `prefix` is for a single prompt and sample: the part that need not be prefilled again; it grows with the reply.
        """
        stops = None if stop_tokens is None else tuple(stop_tokens)
        params = params or SamplingParams()
        request = Request(prompts, params, max_tokens, n, stops, stop_strings, calculator=calculator)
        request.check(self.context, self.tokenizer.vocab_size)  # now, and not when the first token is asked for
        return ([output for _, output in step] for step in self.steps([request], prefix))

    def reply(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        max_tokens: int | None = None,
        stop_strings: Sequence[str] = (),
        prefix: PrefixCache | None = None,
    ) -> Iterator[TokenOutput]:
        """Yield the tokens of the one text that continues `prompt`. Arguments are those of `stream`."""
        ends: dict[str, Any] = {
            "stop_tokens": prompt.stop_ids,
            "stop_strings": stop_strings,
            "calculator": prompt.calculator,
        }
        steps = self.stream([prompt.ids], params, max_tokens=max_tokens, prefix=prefix, **ends)
        return (output for (output,) in steps)

    def steps(
        self, requests: Sequence[Request], prefix: PrefixCache | None = None
    ) -> Iterator[list[tuple[Request, TokenOutput]]]:
        """Yield the new tokens of each step of requests that are generated together; `prefix` is that of `stream`."""
        # Only as many positions as these texts can come to have: many short ones need no cache of the whole context.
        longest = max(len(ids) + (one.longest or self.context) for one in requests for ids in one.prompts)
        batch = self.batch(min(longest, self.context))
        batch.add(requests, prefix)
        while len(batch):
            outputs = batch.step()
            if prefix is not None:
                prefix.append(outputs[0][1].token)
            yield outputs
