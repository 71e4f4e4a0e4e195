"""Models, a tokenizer and sessions for the tests of generation, and generation without a cache to compare with."""

from pathlib import Path

import torch

from nanogka.checkpoint import Checkpoint, save_checkpoint
from nanogka.generate.engine import Engine
from nanogka.generate.session import Session
from nanogka.generate.settings import SessionSettings
from nanogka.model import GPT, GPTConfig
from nanogka.runs import LoadedRun, write_config
from nanogka.tokenizer import SPECIAL_TOKENS, Tokenizer

LETTERS = range(97, 123)


def byte_tokenizer(extra=()):
    """Each byte a token, then `extra` tokens."""
    tokens = [*(bytes([byte]) for byte in range(256)), *extra]
    return Tokenizer(tokens, {name: len(tokens) + i for i, name in enumerate(SPECIAL_TOKENS)})


def small_model(pattern="G", windows="SSL", sequence_len=32, seed=0, dtype=torch.float32, vocab_size=300, kind=GPT,
                **options):  # fmt: skip
    """A model whose every layer matters: what is zero or one at the start gets random values."""
    shape = {"n_layer": 3, "n_head": 2, "n_embd": 64, "vocab_size": vocab_size, "sequence_len": sequence_len}
    config = GPTConfig.from_dict(shape | {"mixer_pattern": pattern, "window_pattern": windows} | options)
    model = kind(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("c_proj.weight", "gate.weight")):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
            elif any(part in name for part in ("smear", "scale", "shift", "conv_", "log_precisions", "log_weights")):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
        model.lm_head.weight.copy_(torch.randn(model.lm_head.weight.shape, generator=generator) * 0.3)
    return model.to(dtype).to_compute(dtype).eval()


@torch.no_grad()
def assert_decodes(model, lengths, chunk, steps):
    """Rows of these lengths, cached in chunks with padding, then token by token after a copy, are as if alone."""
    ids = torch.randint(0, 256, (len(lengths), max(lengths) + steps), generator=torch.Generator().manual_seed(0))
    padded = ids[:, : max(lengths)].clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = -1
    cache = model.new_cache(len(lengths))
    prefilled = torch.cat([model(part, cache=cache) for part in padded.split(chunk, dim=1)], dim=1)
    assert cache.lengths == lengths
    cache = cache.select(range(len(lengths)))  # a copy
    alone = [model(ids[row : row + 1, : length + steps])[0] for row, length in enumerate(lengths)]
    for row, length in enumerate(lengths):
        torch.testing.assert_close(prefilled[row, :length], alone[row][:length], atol=2e-5, rtol=0)
    for step in range(steps):
        new = torch.stack([ids[row, length + step] for row, length in enumerate(lengths)])[:, None]
        logits = model(new, cache=cache)[:, 0]
        expected = torch.stack([alone[row][length + step] for row, length in enumerate(lengths)])
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)


def windowed_engine(pattern, chunk=512, sequence_len=64, **options):
    """An engine with windows of 16, so that prompts of several windows fit."""
    model = small_model(pattern, windows="SL", sequence_len=sequence_len, **options)
    for block in model.blocks:
        block.mixer.window = block.mixer.window and 16
    return Engine(model, byte_tokenizer(), prefill_chunk=chunk)


def by_sample(steps):
    """{sample: outputs} of a stream."""
    found = {}
    for outputs in steps:
        for output in outputs:
            found.setdefault(output.sample, []).append(output)
    return found


@torch.no_grad()
def greedy_without_cache(model, prompt, max_tokens, vocab_size):
    """(tokens, logprobs): the whole text passes the model for each token."""
    ids, logprobs = list(prompt), []
    for _ in range(max_tokens):
        logits = model(torch.tensor([ids]))[0, -1, :vocab_size]
        token = int(logits.argmax())
        logprobs.append(float(torch.log_softmax(logits, -1)[token]))
        ids.append(token)
    return ids[len(prompt) :], logprobs


def random_prompt(length, seed):
    """Ids of ordinary bytes."""
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def talking_model(favorites, sequence_len=256):
    """A model that says the tokens `favorites` and nothing else, in no order; its layers add nothing."""
    config = GPTConfig(n_layer=3, n_head=2, n_embd=64, vocab_size=300, sequence_len=sequence_len)
    model = GPT(config)
    with torch.no_grad():
        # Hidden states keep a part of the token itself, so a row of one sign would not do: a direction they all share.
        model.embedding.weight[:, 0] = 8
        model.lm_head.weight.normal_(0, 0.01, generator=torch.Generator().manual_seed(0))
        model.lm_head.weight[:, 0] = -4
        model.lm_head.weight[list(favorites), 0] = 4
    return model.eval()


def scripted_model(scripts, sequence_len=64):
    """A model that writes a script after a prompt that ends with its key. Each token decides the next one."""
    following = [byte_tokenizer().special_tokens["<|assistant_end|>"]] * 300
    for token, script in scripts.items():
        for before, after in zip([token, *script], script):
            following[before] = after
    table, model = torch.tensor(following), small_model(sequence_len=sequence_len)
    hidden = model.hidden
    model.hidden = lambda ids, cache: 0 * hidden(ids, cache)[..., :1] + ids[..., None]
    model.unembed = lambda last: 9 * torch.nn.functional.one_hot(table[last[..., 0].long()], 300).float()
    return model


def calling_model(sequence_len=64):
    """A chat model that replies `yes` after a call of the calculator, 12*3."""
    special = byte_tokenizer().special_tokens
    start, end, output_end = (special[f"<|{name}|>"] for name in ("python_start", "python_end", "output_end"))
    script = [start, *b"12*3", end, output_end, *b"yes"]
    return scripted_model({special["<|assistant_start|>"]: script}, sequence_len)


def reciting_model(script, sequence_len=128):
    """A model that writes `script`, one token after the other, whatever the prompt; for one text at a time."""
    model, at = small_model(sequence_len=sequence_len), [0]
    hidden = model.hidden

    def recite(ids, cache):
        at[0] = 0 if ids.shape[1] > 1 else at[0] + 1
        return 0 * hidden(ids, cache)[..., :1] + at[0]

    model.hidden = recite
    model.unembed = lambda last: (
        9 * torch.nn.functional.one_hot(torch.tensor([script[int(last.flatten()[0])]]), 300).float()
    )
    return model


def chat_session(favorites=LETTERS, sequence_len=256, max_tokens=8, chat=True, **arguments):
    """A session with a model that says `favorites` at random."""
    engine = Engine(talking_model(favorites, sequence_len), byte_tokenizer())
    return Session(engine, SessionSettings(temperature=1.0, max_tokens=max_tokens), chat, **arguments)


def say(session, *prompts):
    """The replies to prompts, one after the other."""
    return ["".join(session.reply(prompt)) for prompt in prompts]


def loaded_run(model, kind="base", tokenizer=None):
    """A run with this model and tokenizer (None: `byte_tokenizer`) that is in no folder."""
    nowhere, config = Path("tiny"), {"run": {"kind": kind}, "settings": {}, "model": model.config.to_dict()}
    return LoadedRun(nowhere, config, tokenizer or byte_tokenizer(), 7, nowhere, model)


def save_run(folder, model, kind="base", tokenizer=None, step=7, **settings):
    """Make the folder of a run with this model and tokenizer (None: `byte_tokenizer`), or add a checkpoint."""
    save_checkpoint(folder / "checkpoints", Checkpoint(step, dict(model.state_dict()), {}, {}))
    (tokenizer or byte_tokenizer()).save(folder / "tokenizer")
    write_config(folder, {"run": {"kind": kind}, "settings": settings, "model": model.config.to_dict()})
    return folder
