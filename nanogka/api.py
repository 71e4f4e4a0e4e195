"""A trained model in Python: `nanogka.load`.

    import nanogka

    model = nanogka.load("d3-successor-chat")       # a run's tag or folder; None for the latest run
    model.chat("How do you spell banana?", temperature=0)
    for text in model.stream("The with statement", max_tokens=64):
        print(text, end="", flush=True)
    model.bits_per_byte("A list is an ordered collection.")

`generate`, `stream` and `chat` accept `temperature`, `top_k`, `top_p`, `min_p`, penalties and `seed` as
`SamplingParams` has them, and `max_tokens` (None: as many as fit into the context).
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nanogka.common.runtime import pick_device, pick_dtype
from nanogka.data.conversation import TEXT, Conversation
from nanogka.evaluate.bpb import BitsPerByte, measure_bits_per_byte, most_rows
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import prompt_of
from nanogka.generate.settings import SamplingParams
from nanogka.runs import LoadedRun, load_run
from nanogka.tokenizer import check_text


def load(
    run: str | Path | None = None, *, step: int | None = None, device: str = "auto", dtype: str = "auto"
) -> "Model":
    """Load a trained model: a run's tag or folder, or None for the latest run.

    `step` None is the newest checkpoint that verifies; `device`: auto, cpu, cuda, cuda:N or mps; `dtype`:
    auto, float32, bfloat16 or float16, of computation.
    """
    chosen = pick_device(device)
    return Model(load_run(run, chosen, step, pick_dtype(dtype, chosen, decode=True)))


class Model:
    """A trained model: `run.model`, `run.tokenizer`, `run.step`, `run.kind` …; `engine` for several prompts at once."""

    def __init__(self, run: LoadedRun) -> None:
        self.run, self.engine = run, Engine(run.model, run.tokenizer)
        self.is_chat_model = run.kind == "chat"  # it replies in conversations; a base model continues texts

    def __repr__(self) -> str:
        return f"<nanogka.Model {self.run.folder.name}, step {self.run.step}, on {self.run.model.device}>"

    def generate(self, prompt: str, **options) -> str:
        """Return the continuation of `prompt`. The options are those of `stream`.

        model.generate("The with statement", max_tokens=64)
        """
        return "".join(self.stream(prompt, **options))

    def chat(self, messages: str | Sequence[dict], **options) -> str:
        """Return a chat model's reply to a message or to a whole conversation. The options are those of `stream`.

        model.chat("How do you spell banana?", temperature=0)
        """
        given = Conversation.of(messages) if isinstance(messages, str) else messages
        return "".join(self.stream(given, **options))

    def stream(
        self,
        prompt: str | Sequence[dict] | Conversation,
        *,
        max_tokens: int | None = 256,
        stop: str | Sequence[str] = (),
        **sampling,
    ) -> Iterator[str]:
        """Generate text and yield each part as soon as it is final. A bad prompt or option is an error at once.

        `prompt` is a text to continue or, for a chat model, a conversation: messages, of which the last is the user's,
        such as `{"role": "user", "content": "…"}`. The oldest exchanges are left out if the context is too short. The
        text ends before the first of the `stop` strings. `sampling` are fields of `SamplingParams`.
        """
        settings = SamplingParams(**sampling)
        stop = [stop] if isinstance(stop, str) else stop
        if not isinstance(prompt, str) and not self.is_chat_model:
            name = self.run.folder.name
            raise ValueError(
                f"messages: {name} is a base model, which cannot chat; continue a text with generate(), or make a "
                f"chat model with `python -m scripts.chat_sft --base {name}`"
            )
        if not isinstance(prompt, str | Conversation):
            prompt = Conversation.from_json(list(prompt), complete=False)
        engine = self.engine
        asked = prompt_of(engine.tokenizer, prompt, engine.context, truncate=True, max_tokens=max_tokens)
        outputs = engine.reply(asked, settings, max_tokens=max_tokens, stop_strings=stop)
        return (output.text for output in outputs if output.text and output.part == TEXT)

    def bits_per_byte(self, text: str) -> float:
        """Bits per UTF-8 byte of `text`. A text longer than the context is cut into pieces, as in the evaluation."""
        return self._measure(text).value

    def loss(self, text: str) -> float:
        """Mean cross entropy per token of `text` in nats, on the same rows as `bits_per_byte`."""
        measured = self._measure(text)
        return measured.nats / measured.tokens

    def _measure(self, text: str) -> BitsPerByte:
        if not check_text(text):
            raise ValueError("text: got '', expected at least one character")
        return measure_bits_per_byte(self.run.model, self._rows(text), self.run.tokenizer.token_bytes())

    def _rows(self, text: str) -> Iterable[tuple[Tensor, Tensor]]:
        """Inputs and targets (B, T) of a text. The target of padding is −1."""
        length, bos = self.engine.context, self.run.tokenizer.bos_id
        ids = torch.as_tensor(self.run.tokenizer.encode(text))
        rows = most_rows(self.run.model.config.vocab_size, length)
        for part in ids.split(rows * length):
            targets = pad_sequence(list(part.split(length)), batch_first=True, padding_value=-1)
            inputs = torch.cat([torch.full((len(targets), 1), bos), targets[:, :-1].clamp_min(0)], dim=1)
            yield inputs, targets
