"""Continuous batching: a text is the same as alone, whichever other texts join and leave the batch."""

from dataclasses import replace

import pytest
import torch
from generate_models import by_sample, random_prompt, windowed_engine

from nanogka.generate.continuous import Request
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SamplingParams

PATTERNS = {"G": {}, "GD": {}, "S": {}, "GM": {}, "SD": {"short_conv": 3}}


def requests() -> list[Request]:
    """Requests of all kinds: greedy and not, with a penalty, limits, several prompts and samples, early ends."""
    kinds = [
        (9, {"temperature": 0}, {"max_tokens": 30}),
        (20, {"seed": 5}, {"stop_tokens": range(0, 256, 9)}),
        (3, {"seed": 6, "repetition_penalty": 1.7, "frequency_penalty": 0.5}, {"max_tokens": 20, "n": 3}),
        (40, {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "seed": 7}, {"stop_strings": ["a", "b", "\n"]}),
        (17, {"seed": 5}, {"max_tokens": 1}),
    ]
    return [
        Request(
            [random_prompt(length, length + n) for n in range(1 + i % 2)],
            SamplingParams(**{"temperature": 1.0} | settings),
            **more,
        )
        for i, (length, settings, more) in enumerate(kinds)
    ]


def alone(engine: Engine, request: Request) -> dict[int, list]:
    """{sample: outputs} of the engine's own stream."""
    names = ("prompts", "params", "max_tokens", "n", "stop_tokens", "stop_strings")
    return by_sample(engine.stream(**{name: getattr(request, name) for name in names}))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_does_not_depend_on_its_neighbors(pattern):
    engine = windowed_engine(pattern, **PATTERNS[pattern])
    batch, found = engine.batch(), {}
    waiting, late = requests(), Request([random_prompt(12, 0)], SamplingParams(temperature=0))
    arrivals = {0: waiting[:1], 3: waiting[1:3], 4: waiting[3:4], 11: [*waiting[4:], late]}
    step = 0
    while len(batch) or step < 12:
        batch.add(arrivals.get(step, []))
        if step == 14:
            batch.abort(late)
        for request, output in batch.step():
            found.setdefault(request, {}).setdefault(output.sample, []).append(output)
        step += 1
    for request in [*waiting, late]:
        expected = alone(engine, request)
        assert found[request].keys() == expected.keys()
        for number, outputs in found[request].items():
            expected[number] = expected[number][: 3 if request is late else None]
            for output, wanted in zip(outputs, expected[number], strict=True):
                assert output.logprob == pytest.approx(wanted.logprob, abs=1e-4)
                assert replace(output, logprob=0) == replace(wanted, logprob=0)


def test_a_request_can_be_aborted_before_its_first_step_and_what_cannot_be_used_changes_nothing():
    engine = windowed_engine("GD")
    batch, (first, second, *_) = engine.batch(), requests()
    batch.add([first, second])
    assert len(batch) == 3
    with pytest.raises(ValueError, match="max-tokens: got -1"):
        batch.add([requests()[0], Request([[1]], max_tokens=-1)])
    batch.abort(second)
    assert len(batch) == 1
    assert {request for request, _ in batch.step()} == {first}
    batch.abort(first)
    assert (len(batch), batch.step()) == (0, [])


def test_top_logprobs_are_the_likeliest_tokens_under_the_model_itself():
    engine = windowed_engine("GD")
    batch, prompt = engine.batch(), random_prompt(9, 0)
    settings = SamplingParams(0.3, top_k=3, repetition_penalty=100.0, seed=3)
    batch.add([Request([prompt], settings, max_tokens=8, top_logprobs=264), Request([prompt], max_tokens=1)])
    (_, first), (_, without) = batch.step()
    with torch.no_grad():
        logits = engine.model(torch.tensor([prompt]))[0, -1, : engine.tokenizer.vocab_size]
    best = torch.log_softmax(logits, -1).topk(264)
    assert [token for token, _ in first.top_logprobs] == best.indices.tolist()
    assert [value for _, value in first.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert without.top_logprobs == ()
    outputs = [first]
    while len(batch):
        outputs += [output for _, output in batch.step()]
    for output in outputs:
        assert output.logprob == dict(output.top_logprobs)[output.token]  # exactly
    said = [output.token for output in outputs]
    assert len({*said, *prompt}) == len(said) + len({*prompt})  # such a penalty forbids what was seen
