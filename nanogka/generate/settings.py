"""Settings of sampling, of a chat session and of the chat command line."""

from dataclasses import dataclass
from functools import cache

from nanogka.common.cli import DeviceSettings, WhichRun, flag, flags_of
from nanogka.common.errors import Errors

sampling_flags = cache(flags_of)  # the engine makes settings for every text
CAN_BE_OFF = ("top_k", "max_tokens")  # settings for which 0 and None mean "no limit"


@dataclass(frozen=True)
class SamplingParams:
    """Sampling. In a session these are also commands. Raises ValueError naming every parameter that is out of range."""

    temperature: float = flag(0.8, "0: always the likeliest token; 1: the model's own probabilities", ge=0, le=100)
    top_k: int | None = flag(None, "sample from the k likeliest tokens; 0 samples from all", ge=0)
    top_p: float = flag(
        1.0, "sample from the smallest set of likeliest tokens with this total probability; 1: from all", gt=0, le=1
    )
    min_p: float = flag(0.0, "drop tokens below this fraction of the likeliest token's probability", ge=0, le=1)
    # A smaller penalty would make logits infinite.
    repetition_penalty: float = flag(1.0, "repetition penalty; above 1 gives fewer repetitions", ge=0.01, le=100)
    presence_penalty: float = flag(0.0, "subtracted from the logits of tokens already in the reply", ge=-2, le=2)
    frequency_penalty: float = flag(
        0.0, "subtracted from the logits of a token for each time that the reply has it", ge=-2, le=2
    )
    seed: int = flag(0, "seed of the first text; the same seed gives the same text", ge=0)

    def __post_init__(self) -> None:
        errors = Errors()
        for name, option in sampling_flags(type(self)).items():
            value = getattr(self, name)
            if value is not None or not (option.default is None or name in CAN_BE_OFF):
                errors.capture(lambda: option.convert(value, name, strict=True))  # noqa: B023
        errors.raise_if_any()

    @property
    def penalizes(self) -> bool:
        """True if the tokens so far change the next one's probabilities."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True)
class SessionSettings(SamplingParams):
    """Session, whose settings can be changed while it runs."""

    top_k: int | None = flag(50, "sample from the k likeliest tokens; 0 samples from all", ge=0)
    max_tokens: int | None = flag(
        256, "maximum tokens per reply, without results of the calculator; 0: as many as the context holds", ge=0
    )


@dataclass(frozen=True)
class ChatSettings(SessionSettings, WhichRun, DeviceSettings):
    """Settings."""

    prompt: str | None = flag(
        None, "reply to this prompt and exit (default: read standard input, unless it is a terminal)", short="p"
    )
    examples: bool = flag(False, "answer the run's example questions and exit")
    system: str | None = flag(None, "system prompt of a chat model")
