"""The engine: neither the cache, a kept prefix nor the batch changes a token, and every end has its reason."""

import pytest
import torch
from generate_models import (
    by_sample,
    byte_tokenizer,
    greedy_without_cache,
    random_prompt,
    small_model,
    talking_model,
    windowed_engine,
)

from nanogka.generate.continuous import PrefixCache
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SamplingParams

GREEDY = SamplingParams(temperature=0)
TOKENIZER = byte_tokenizer()


def tokens_of(outputs):
    return [output.token for output in outputs]


@pytest.mark.parametrize("pattern", ["G", "GD"])
@pytest.mark.parametrize("chunk", [5, 512])
def test_greedy_with_the_cache_is_greedy_without(pattern, chunk):
    engine = windowed_engine(pattern, chunk)
    prompts = [random_prompt(length, length) for length in (1, 9, 17, 33, 48)]
    got = by_sample(engine.stream(prompts, GREEDY, max_tokens=12, n=2, stop_tokens=()))
    for number in got:
        tokens, logprobs = greedy_without_cache(engine.model, prompts[number // 2], 12, TOKENIZER.vocab_size)
        assert tokens_of(got[number]) == tokens
        assert [output.logprob for output in got[number]] == pytest.approx(logprobs, abs=1e-5)


@torch.no_grad()
def test_presence_and_frequency_penalties_count_what_the_reply_has():
    engine = Engine(talking_model(range(97, 101)), TOKENIZER)
    ids, counts = [97, 98, 97], torch.zeros(TOKENIZER.vocab_size)
    settings = SamplingParams(temperature=0, presence_penalty=0.1, frequency_penalty=0.2)
    got = tokens_of(by_sample(engine.stream([ids], settings, max_tokens=30))[0])
    for token in got:
        logits = engine.model(torch.tensor([ids]))[0, -1, : TOKENIZER.vocab_size]
        assert token == int((logits - 0.2 * counts - 0.1 * (counts > 0)).argmax())
        ids, counts[token] = [*ids, token], counts[token] + 1
    assert len(set(got)) == 4


@torch.no_grad()
def test_the_repetition_penalty_sees_the_prompt():
    engine = Engine(talking_model(range(97, 101)), TOKENIZER)
    ids = [97, 98, 99]
    got = tokens_of(
        by_sample(engine.stream([ids], SamplingParams(temperature=0, repetition_penalty=1.5), max_tokens=3))[0]
    )
    for token in got:
        logits = engine.model(torch.tensor([ids]))[0, -1, : TOKENIZER.vocab_size]
        for seen in set(ids):
            logits[seen] = logits[seen] / 1.5 if logits[seen] > 0 else logits[seen] * 1.5
        assert token == int(logits.argmax())
        ids = [*ids, token]
    assert got[0] == 100  # the only favorite that the prompt lacks


def test_each_end_has_its_reason():
    engine = Engine(small_model(sequence_len=32), TOKENIZER)
    prompt = random_prompt(30, 0)
    full, other = by_sample(engine.stream([prompt, prompt[:20]], GREEDY, max_tokens=50, stop_tokens=())).values()
    assert [output.finish_reason for output in full] == [None, "context"]
    assert [output.finish_reason for output in other] == [None] * 11 + ["context"]
    short = by_sample(engine.stream([prompt], GREEDY, max_tokens=1, stop_tokens=()))[0]
    assert [output.finish_reason for output in short] == ["length"]
    stopped = by_sample(engine.stream([prompt], GREEDY, stop_tokens=[full[0].token]))[0]
    assert [(output.finish_reason, output.text) for output in stopped] == [("stop", "")]


def test_ids_that_the_tokenizer_lacks_are_never_chosen_and_a_damaged_model_is_named():
    model = small_model(vocab_size=300)
    with torch.no_grad():
        model.lm_head.weight[TOKENIZER.vocab_size :] *= 100
    outputs = by_sample(Engine(model, TOKENIZER).stream([[1, 2, 3]], SamplingParams(1.0), max_tokens=20))[0]
    assert max(tokens_of(outputs)) < TOKENIZER.vocab_size
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        Engine(model, TOKENIZER).generate("Hi")


def test_bad_arguments_are_named_at_once():
    engine = Engine(small_model(), TOKENIZER)
    with pytest.raises(ValueError) as error:
        engine.stream([[1] * 32, [], [999]], max_tokens=0, n=0, stop_strings=[""])
    lines = str(error.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["max-tokens", "n", "stop strings"] + ["prompt"] * 3
    assert "got 32 tokens, expected at most 31" in lines[3]
    with pytest.raises(ValueError, match="prompts: got 0"):
        engine.stream([])
    with pytest.raises(ValueError, match="tokenizer: got 265 ids"):
        Engine(small_model(vocab_size=260), TOKENIZER)


# ---- a kept prefix ----


def follow(engine, ids, prefix, **arguments):
    """The outputs of one sample, and how many tokens the model was given for it."""
    given, original = [], engine.model.hidden
    engine.model.hidden = lambda ids, cache: given.append(ids.shape[1]) or original(ids, cache)
    try:
        outputs = [output for (output,) in engine.stream([ids], GREEDY, prefix=prefix, **arguments)]
    finally:
        del engine.model.hidden
    return outputs, sum(given)


@pytest.mark.parametrize("pattern, chunk", [("G", 5), ("GD", 512)])
def test_turns_on_a_kept_prefix_are_the_tokens_of_a_fresh_prefill_and_only_the_new_is_read(pattern, chunk):
    engine = windowed_engine(pattern, chunk, sequence_len=128)
    prefix, ids = PrefixCache(), []
    for turn, length in enumerate((9, 1, 30, 16)):
        ids += random_prompt(length, turn)
        outputs, given = follow(engine, ids, prefix, max_tokens=10, stop_tokens=())
        assert prefix.reused == (len(ids) - length - 1 if turn else 0)  # the last token of a reply is never read
        assert given == len(ids) - prefix.reused + 9
        tokens, logprobs = greedy_without_cache(engine.model, ids, 10, TOKENIZER.vocab_size)
        assert tokens_of(outputs) == tokens
        assert [output.logprob for output in outputs] == pytest.approx(logprobs, abs=1e-5)
        ids += tokens


@pytest.mark.parametrize("change", ["shorter", "all of it", "other"])
def test_a_text_that_does_not_continue_the_prefix_is_read_again(change):
    engine, prefix, ids = windowed_engine("G"), PrefixCache(), random_prompt(20, 0)
    reply = tokens_of(follow(engine, ids, prefix, max_tokens=6, stop_tokens=())[0])
    other = [ids[0] ^ 1, *ids[1:], *random_prompt(10, 1)]
    ids = {"shorter": ids[:12], "all of it": [*ids, *reply[:5]], "other": other}[change]
    outputs, _ = follow(engine, ids, prefix, max_tokens=6, stop_tokens=())
    assert prefix.reused == 0
    assert tokens_of(outputs) == greedy_without_cache(engine.model, ids, 6, TOKENIZER.vocab_size)[0]


@pytest.mark.parametrize("in_a_step", [False, True])
def test_an_abandoned_reply_is_kept_as_far_as_it_was_read_unless_a_step_was_interrupted(in_a_step):
    engine = windowed_engine("G")
    prefix, ids = PrefixCache(), random_prompt(20, 0)
    steps = engine.stream([ids], GREEDY, stop_tokens=(), prefix=prefix)
    ids = ids + [next(steps)[0].token for _ in range(4)]
    if in_a_step:

        def interrupt(*_):
            raise KeyboardInterrupt

        # In the last layer: those before have cached the new token already.
        handle = engine.model.blocks[-1].mlp.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(steps)
        handle.remove()
    ids += random_prompt(5, 1)
    outputs, _ = follow(engine, ids, prefix, max_tokens=6, stop_tokens=())
    assert prefix.reused == (0 if in_a_step else 23)
    assert tokens_of(outputs) == greedy_without_cache(engine.model, ids, 6, TOKENIZER.vocab_size)[0]
