"""The step of fixed shapes: it is the growing cache's step, recorded or not, and an engine with it says the same."""

import contextlib
import dataclasses
import logging

import pytest
import torch
from generate_models import byte_tokenizer, random_prompt, small_model

from nanogka.generate import DecodeCache, Engine, KeptCache, SamplingSettings
from nanogka.generate.static import StaticStep

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENIZER = byte_tokenizer()
LENGTH = 48
SETTINGS = SamplingSettings(temperature=1.0, seed=3, repetition_penalty=1.3)
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")


def windowed_model(pattern, window=10):
    model = small_model(pattern, windows="SL", sequence_len=LENGTH)
    for block in model.blocks:
        block.mixer.window = block.mixer.window and window
    return model.to(DEVICE)


def prefilled(model, lengths):
    """A growing cache with rows of these lengths, and tokens to come (rows, 20)."""
    ids = torch.tensor([random_prompt(max(lengths) + 20, row) for row in range(len(lengths))])
    padded = torch.full((len(lengths), max(lengths)), -1)
    for row, length in enumerate(lengths):
        padded[row, :length] = ids[row, :length]
    cache = DecodeCache(model, len(lengths))
    model.hidden(padded.to(DEVICE), cache)
    return cache, torch.stack([ids[row, length : length + 20] for row, length in enumerate(lengths)]).to(DEVICE)


@torch.no_grad()
def check_steps(model, lengths, steps, mode="plain", decode_backend="auto", capacity=LENGTH, atol=1e-5):
    """The step's logits are the growing cache's, and a row without a token stays as it was."""
    cache, tokens = prefilled(model, lengths)
    step = StaticStep(model, len(lengths), capacity, mode)
    step.load(cache.layers, cache.lengths)
    for number in range(steps):
        for block in model.blocks:
            block.mixer.decode_backend = "torch"
        expected = model(tokens[:, number : number + 1], cache=cache)[:, 0]
        for block in model.blocks:
            block.mixer.decode_backend = decode_backend
        if number % 3 == 1:  # all but one row wait
            given = tokens[:, number].clone()
            given[:-1] = -1
            torch.testing.assert_close(step(given)[-1], expected[-1], atol=atol, rtol=0)
            given = tokens[:, number].clone()
            given[-1] = -1
            torch.testing.assert_close(step(given)[:-1], expected[:-1], atol=atol, rtol=0)
        else:
            if number % 3:  # as when a step is recorded
                step(torch.full_like(tokens[:, number], -1))
            torch.testing.assert_close(step(tokens[:, number]), expected, atol=atol, rtol=0)
    assert step.cache.lengths.tolist() == cache.lengths


@pytest.mark.parametrize("pattern", ["G", "D", "GD"])
@pytest.mark.parametrize("lengths", [[1], [3, 10, 11, 28]])
def test_the_step_is_that_of_the_growing_cache(pattern, lengths):
    check_steps(windowed_model(pattern), lengths, 13)


def test_kernels_are_tried_before_the_first_token(monkeypatch):
    tried = []
    monkeypatch.setattr("nanogka.model.mixer.decode_backend", lambda *arguments: tried.append(arguments) or "torch")
    model = windowed_model("GD")
    Engine(model, TOKENIZER)
    assert tried == [("auto", model.device, torch.float32, model.config.head_dim)] * len(model.blocks)


def test_a_ring_as_large_as_the_capacity():
    check_steps(windowed_model("G"), [3, 7], 4, capacity=11)


@pytest.mark.parametrize("pattern", ["G", "D"])
def test_the_step_with_our_kernels_is_the_step_without(pattern):
    pytest.importorskip("triton")
    check_steps(windowed_model(pattern), [9, 25], 2, decode_backend="triton")


@pytest.mark.parametrize("pattern", ["G", "D"])
def test_the_growing_cache_with_our_kernels_is_the_network(pattern):
    pytest.importorskip("triton")
    model = windowed_model(pattern)
    for block in model.blocks:
        block.mixer.decode_backend = "triton"
    ids = torch.tensor([random_prompt(34, 0)]).to(DEVICE)
    with torch.no_grad():
        whole = model(ids)
        cache = DecodeCache(model)
        model(ids[:, :31], cache=cache)
        for at in range(31, 34):
            logits = model(ids[:, at : at + 1], cache=cache)[:, 0]
            torch.testing.assert_close(logits, whole[:, at], atol=2e-5, rtol=0)


def test_a_step_is_used_again_for_other_streams():
    model = windowed_model("GD")
    with torch.no_grad():
        step = StaticStep(model, 2, LENGTH, "plain")
        for lengths in ([20, 3], [4, 1]):
            cache, tokens = prefilled(model, lengths)
            step.load(cache.layers, cache.lengths)
            for number in range(3):
                expected = model(tokens[:, number : number + 1], cache=cache)[:, 0]
                torch.testing.assert_close(step(tokens[:, number]), expected, atol=1e-5, rtol=0)


def events_of(engine, prompts, **arguments):
    steps = engine.stream(prompts, SETTINGS, **arguments)
    return [[(e.sample, e.token, e.text, e.finish) for e in events] for events in steps]


@pytest.mark.parametrize("samples", [1, 3])
def test_an_engine_with_it_generates_the_same(samples):
    """Samples end at different times, so that rows are left empty and the batch is halved on the way."""
    model = windowed_model("GD")
    prompts = [random_prompt(length, length) for length in (12, 3, 20, 5, 7)]
    arguments = {"samples": samples, "max_tokens": 20, "stop_tokens": range(0, 256, 9)}
    growing, static = (events_of(Engine(model, TOKENIZER, step=s), prompts, **arguments) for s in ("growing", "plain"))
    assert static == growing
    assert len({len(events) for events in growing}) > 3


def test_two_streams_of_one_engine_do_not_disturb_each_other():
    engine = Engine(windowed_model("G"), TOKENIZER, step="plain")
    prompts = [random_prompt(12, seed) for seed in (0, 1)]
    alone = [events_of(engine, [prompt], max_tokens=8) for prompt in prompts]
    steps = [engine.stream([prompt], SETTINGS, max_tokens=8) for prompt in prompts]
    together = [[], []]
    for pair in zip(*steps):
        for found, events in zip(together, pair):
            found.append([(e.sample, e.token, e.text, e.finish) for e in events])
    assert together == alone


def test_a_kept_cache_has_read_the_reply():
    model = windowed_model("GD")
    settings = SamplingSettings(temperature=0)
    outcomes = []
    for step in ("growing", "plain"):
        kept, ids, tokens = KeptCache(Engine(model, TOKENIZER, step=step)), random_prompt(5, 0), []
        for turn in range(3):
            stream = kept.stream(ids, settings, max_tokens=7, stop_tokens=())
            new = [event.token for event, _ in zip(stream, range(7 - turn))]  # the later ones are left early
            del stream
            tokens.append((kept.reused, *new))
            ids = [*ids, *new, *random_prompt(4, turn)]
        outcomes.append(tokens)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1][0] == 11


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch, caplog):
    def refuse(*_, **__):
        def compiled():
            raise RuntimeError("no compiler\nhere")

        return compiled

    monkeypatch.setattr(torch, "compile", refuse)
    with caplog.at_level(logging.WARNING):
        check_steps(windowed_model("G"), [5], 2, mode="compiled")
    assert "decoding step: cannot compile it: RuntimeError: no compiler here" in caplog.text


class PretendedGraph:
    """A CUDA graph without CUDA: replaying runs the function again, into the tensor that recording gave."""

    step = None

    def replay(self):
        self.step._logits.copy_(self.step._compute())


@pytest.fixture
def pretended_cuda(monkeypatch):
    """Streams that order nothing; recording runs the function once, as without tokens."""

    class Stream(contextlib.nullcontext):
        def wait_stream(self, other):
            assert isinstance(other, Stream)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PretendedGraph)
    monkeypatch.setattr(torch.cuda, "graph", contextlib.nullcontext)
    original = StaticStep.__init__

    def recordable(self, *arguments):
        original(self, *arguments)
        self._recordable, PretendedGraph.step = True, self

    monkeypatch.setattr(StaticStep, "__init__", recordable)


def test_preparing_to_record_changes_nothing_that_is_remembered(pretended_cuda, caplog):
    with caplog.at_level(logging.WARNING):
        check_steps(windowed_model("GD"), [3, 28], 6, mode="graph")
    assert not caplog.text


def test_what_cannot_be_recorded_runs_as_it_is(pretended_cuda, monkeypatch, caplog):
    def refuse(graph):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    with caplog.at_level(logging.WARNING):
        check_steps(windowed_model("G"), [5], 3, mode="graph")
    assert caplog.text.count("decoding step: cannot record it: RuntimeError: operation not permitted when") == 1


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="mode: got 'fast', takes plain, graph, compiled"):
        StaticStep(windowed_model("G"), 1, LENGTH, "fast")
    with pytest.raises(ValueError, match="step: got 'fast', takes auto, growing, plain, graph, compiled"):
        Engine(windowed_model("G"), TOKENIZER, step="fast")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["G", "D"])
@pytest.mark.parametrize("backend", ["triton", "cpp", "torch"])
def test_a_compiled_step_is_the_step(pattern, backend, caplog):
    if backend == "triton":
        pytest.importorskip("triton")
    with caplog.at_level(logging.WARNING, "nanogka"):
        check_steps(windowed_model(pattern), [9, 25], 6, mode="compiled", decode_backend=backend, atol=2e-5)
    assert "cannot" not in caplog.text


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("pattern,mode", [("G", "graph"), ("D", "graph"), ("GD", "graph"), ("GD", "compiled")])
def test_a_recorded_step_is_the_step(pattern, mode, caplog):
    with caplog.at_level(logging.WARNING):
        check_steps(windowed_model(pattern), [3, 10, 11, 28], 20, mode=mode, decode_backend="triton", atol=1e-4)
    assert "cannot" not in caplog.text


@pytest.mark.gpu
@needs_gpu
def test_an_engine_with_a_recorded_step_generates_the_same():
    model = windowed_model("GD")
    prompts = [random_prompt(length, length) for length in (12, 3, 20, 5, 7)]
    engine = Engine(model, TOKENIZER)
    growing = Engine(model, TOKENIZER, step="growing")
    for _ in range(2):  # the second time with what was recorded the first
        steps = [
            [[event.token for event in events] for events in e.stream(prompts, SamplingSettings(0), max_tokens=16)]
            for e in (engine, growing)
        ]
        assert steps[0] == steps[1]


@pytest.mark.skipif(DEVICE.type != "cpu", reason="what was compiled is told apart in the same way there")
def test_compiled_steps_of_models_alike_but_for_a_setting_are_told_apart():
    """Guards look at tensors alone: what differs otherwise must not share code."""
    models = [windowed_model("G") for _ in range(2)]
    models[1].config = dataclasses.replace(models[1].config, logit_cap=3.0)
    for model in models:
        check_steps(model, [9], 2, mode="compiled", atol=2e-5)
