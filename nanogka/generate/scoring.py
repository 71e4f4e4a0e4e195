"""Log-probabilities of the tokens of a prompt, as if each of them had been generated.

Shapes: T positions, C model width, V vocabulary of the tokenizer.
"""

from collections.abc import Sequence

import torch

from nanogka.generate.continuous import TokenOutput
from nanogka.generate.engine import Engine
from nanogka.generate.text import TextStream

CHUNK = 256  # positions whose logits over the vocabulary exist at the same time


@torch.no_grad()
def score_prompt(engine: Engine, ids: Sequence[int], top: int = 0) -> list[TokenOutput]:
    """Return the log-probability of each token of a prompt given the earlier ones, and the `top` likeliest tokens.

    The first token has no earlier ones: its log-probability is None. `text` is what the token adds to the text.
    """
    model, tokenizer, text = engine.model, engine.tokenizer, TextStream(engine.tokenizer)
    tokens = torch.tensor([list(ids)], device=model.device)
    hidden = model.hidden(tokens)[0]  # (T, C)
    scores: list[tuple] = [(None, ())]
    for start in range(0, len(ids) - 1, CHUNK):
        following = tokens[0, start + 1 : start + 1 + CHUNK]
        logits = model.unembed(hidden[start : start + len(following)])[:, : tokenizer.vocab_size]
        log_p = logits.log_softmax(-1)  # (T, V)
        values, others = log_p.topk(min(top, log_p.shape[1]))
        pairs = [tuple(zip(*row)) for row in zip(others.tolist(), values.tolist())]
        scores += zip(log_p.gather(1, following[:, None])[:, 0].tolist(), pairs)
    outputs = []
    for token, (logprob, likeliest) in zip(ids, scores):
        offset = text.decoded
        outputs.append(TokenOutput(0, token, logprob, text.push(token), offset, None, likeliest))
    return outputs
