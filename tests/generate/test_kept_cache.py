"""The cache that outlives a call: the tokens of a fresh one, and nothing read twice."""

import pytest
import torch
from generate_models import byte_tokenizer, greedy_without_cache, random_prompt, small_model

from nanogka.generate import DecodeCache, Engine, KeptCache, SamplingSettings

GREEDY = SamplingSettings(temperature=0)
TOKENIZER = byte_tokenizer()


@pytest.fixture
def read(monkeypatch):
    """The number of tokens in each call of a network."""
    counts = []
    original = DecodeCache.begin

    def counting(self, ids):
        counts.append(ids.shape[1])
        return original(self, ids)

    monkeypatch.setattr(DecodeCache, "begin", counting)
    return counts


def windowed_engine(pattern, chunk=512, step="auto"):
    model = small_model(pattern, windows="SL", sequence_len=128)
    for block in model.blocks:  # a window of 16, so that each turn moves the rings on
        block.mixer.window = block.mixer.window and 16
    return Engine(model, TOKENIZER, prefill_chunk=chunk, step=step)


@pytest.mark.parametrize("pattern, chunk, step", [("G", 5, "growing"), ("GD", 512, "growing"), ("GD", 5, "plain")])
def test_turns_on_a_kept_cache_are_the_tokens_of_a_fresh_prefill(pattern, chunk, step, read):
    engine = windowed_engine(pattern, chunk, step)
    kept, ids = KeptCache(engine), []
    for turn, length in enumerate((9, 1, 30, 16)):
        ids += random_prompt(length, turn)
        del read[:]
        events = list(kept.stream(ids, GREEDY, max_tokens=10, stop_tokens=()))
        # All but the last of the turn before, which no step had read.
        assert kept.reused == (len(ids) - length - 1 if turn else 0)
        assert sum(read) == len(ids) - kept.reused + (9 if step == "growing" else 0)
        tokens, log_probabilities = greedy_without_cache(engine.model, ids, 10, TOKENIZER.vocab_size)
        assert [event.token for event in events] == tokens
        assert [event.log_probability for event in events] == pytest.approx(log_probabilities, abs=1e-5)
        ids += tokens


def test_a_stop_token_is_part_of_the_text_but_not_read():
    engine = windowed_engine("G")
    kept, ids = KeptCache(engine), random_prompt(12, 0)
    tokens, _ = greedy_without_cache(engine.model, ids, 4, TOKENIZER.vocab_size)
    assert [e.token for e in kept.stream(ids, GREEDY, stop_tokens=[tokens[3]])] == tokens
    ids += [*tokens, 5, 6]
    list(kept.stream(ids, GREEDY, max_tokens=1))
    assert kept.reused == 12 + 3


@pytest.mark.parametrize("change", ["shorter", "same", "all of it", "other"])
def test_a_text_that_does_not_go_on_is_read_again(change):
    engine = windowed_engine("G")
    kept, ids = KeptCache(engine), random_prompt(20, 0)
    reply = [event.token for event in kept.stream(ids, GREEDY, max_tokens=6, stop_tokens=())]
    other = [ids[0] ^ 1, *ids[1:], *random_prompt(10, 1)]
    ids = {"shorter": ids[:12], "same": ids, "all of it": [*ids, *reply[:5]], "other": other}[change]
    tokens = [event.token for event in kept.stream(ids, GREEDY, max_tokens=6, stop_tokens=())]
    assert kept.reused == 0
    assert tokens == greedy_without_cache(engine.model, ids, 6, TOKENIZER.vocab_size)[0]


@pytest.mark.parametrize("step", ["growing", "plain"])
def test_an_abandoned_reply_is_kept_as_far_as_it_was_read(step):
    engine = windowed_engine("G", step=step)
    kept, ids = KeptCache(engine), random_prompt(20, 0)
    steps = kept.stream(ids, GREEDY, stop_tokens=())
    ids += [next(steps).token for _ in range(4)]
    ids += random_prompt(5, 1)
    tokens = [event.token for event in kept.stream(ids, GREEDY, max_tokens=6, stop_tokens=())]
    assert kept.reused == 23
    assert tokens == greedy_without_cache(engine.model, ids, 6, TOKENIZER.vocab_size)[0]
    assert not list(steps)  # ended by the next


def test_an_interruption_in_the_middle_of_a_step_costs_the_cache_and_nothing_else():
    engine = windowed_engine("G")
    kept, ids = KeptCache(engine), random_prompt(20, 0)
    steps = kept.stream(ids, GREEDY, stop_tokens=())
    ids += [next(steps).token for _ in range(2)]

    def interrupt(*_):
        raise KeyboardInterrupt

    # In the last layer: the rings of the others have dropped their oldest entry already.
    handle = engine.model.blocks[-1].mlp.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    handle.remove()
    ids += random_prompt(5, 1)
    tokens = [event.token for event in kept.stream(ids, GREEDY, max_tokens=6, stop_tokens=())]
    assert kept.reused == 0
    assert tokens == greedy_without_cache(engine.model, ids, 6, TOKENIZER.vocab_size)[0]


def test_a_prompt_that_is_refused_leaves_what_was_read():
    engine = windowed_engine("G")
    kept, ids = KeptCache(engine), random_prompt(20, 0)
    ids += [event.token for event in kept.stream(ids, GREEDY, max_tokens=2, stop_tokens=())]
    with pytest.raises(ValueError, match="prompt: got 128 tokens, takes at most 127"):
        kept.stream([*ids, *random_prompt(106, 1)], GREEDY)
    list(kept.stream([*ids, 7], GREEDY, max_tokens=1))
    assert kept.reused == 21


def test_a_cache_that_cannot_be_used_is_refused():
    engine = windowed_engine("G")
    cache = DecodeCache(engine.model)
    engine.model.hidden(torch.tensor([[1, 2, 3]]), cache)
    with pytest.raises(ValueError, match="cache: got 3 tokens, takes at most 2: of a prompt's tokens one at least"):
        engine.stream([[1, 2, 3]], cache=cache)
    with pytest.raises(ValueError, match="cache: takes one row"):
        engine.stream([[1, 2, 3, 4], [1, 2, 3, 5]], cache=cache)
    cache.begin(torch.tensor([[4]]))
    with pytest.raises(ValueError, match="cache: takes one row"):
        engine.stream([[1, 2, 3, 4]], cache=cache)
