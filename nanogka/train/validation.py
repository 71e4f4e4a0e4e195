"""Measure a base model during its training: bits per byte with their error, and samples."""

import math
from collections.abc import Callable, Sequence

import torch

from nanogka.common.distributed import Ranks
from nanogka.common.formatting import printable
from nanogka.data.corpus import Corpus
from nanogka.data.loader import validation_batches
from nanogka.evaluate.bpb import BitsPerByte, draw_samples, measure_bits_per_byte
from nanogka.model import GPT
from nanogka.train.plan import TrainPlan
from nanogka.train.settings import TrainSettings


def validation(plan: TrainPlan[TrainSettings], corpus: Corpus) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures bits per byte on the validation split, which the ranks share.

    It gives `val_bpb`, its standard error `val_bpb_se`, and the number of tokens behind it, `val_tokens`.
    """
    token_bytes = torch.from_numpy(plan.own_tokenizer.token_bytes()).to(plan.device)

    def measure(model: GPT) -> dict[str, float]:
        data = validation_batches(
            corpus,
            plan.own_tokenizer,
            batch_size=plan.batch.rows,
            sequence_len=plan.config.sequence_len,
            max_tokens=plan.settings.eval_tokens,
            packing=plan.settings.packing,
            ranks=plan.ranks,
        )
        parts = [measure_bits_per_byte(model, [(batch.inputs, batch.targets)], token_bytes) for batch in data]
        whole, error = pool(parts, plan.ranks, plan.device)
        values = {"val_bpb": whole.value, "val_tokens": whole.tokens}
        return values if error is None else values | {"val_bpb_se": error}

    return measure


def pool(parts: Sequence[BitsPerByte], ranks: Ranks, device: torch.device) -> tuple[BitsPerByte, float | None]:
    """Return all measurements of all ranks as one, and its standard error, None for fewer than two.

    The parts are taken for a random sample of text, so the error is that of a ratio of two sums. It says how far the
    figure of other text of the same kind and length would lie. Two checkpoints measured on the same text differ with
    less noise.
    """
    sums = [len(parts), sum(p.nats for p in parts), sum(p.bytes for p in parts), sum(p.tokens for p in parts)]
    sums += [sum(p.nats * p.nats for p in parts), sum(p.nats * p.bytes for p in parts)]
    sums += [sum(p.bytes * p.bytes for p in parts)]
    n, nats, size, tokens, nats_nats, nats_bytes, bytes_bytes = ranks.sum([float(one) for one in sums], device)
    whole = BitsPerByte(nats, int(size), int(tokens))
    if n < 2 or not size:
        return whole, None
    rate = nats / size
    residuals = max(0.0, nats_nats - 2 * rate * nats_bytes + rate * rate * bytes_bytes)
    return whole, math.sqrt(n / (n - 1) * residuals) / (math.log(2) * size)


def samples(plan: TrainPlan) -> Callable[[GPT], dict[str, list[str]]]:
    """Return a function that lets rank 0 continue a few prompts."""

    def sample(model: GPT) -> dict[str, list[str]]:
        drawn = draw_samples(model, plan.own_tokenizer) if plan.ranks.is_main else ()
        return {"samples": [printable(f"> {one['prompt']}{one['text']}") for one in drawn]}

    return sample
