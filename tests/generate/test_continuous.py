"""Continuous batching: a text is what the engine gives it alone, whoever joins and leaves beside it."""

import pytest
import torch
from generate_models import by_sample, random_prompt, windowed_engine

from nanogka.generate.continuous import Job
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SamplingSettings

PATTERNS = {"G": {}, "GD": {}, "S": {}, "GM": {}, "SD": {"short_conv": 3}}


def jobs() -> list[Job]:
    """Jobs of all kinds: greedy and not, with a penalty, limits, several prompts and samples, early ends."""
    kinds = [
        (9, {"temperature": 0}, {"max_tokens": 30}),
        (20, {"seed": 5}, {"stop_tokens": range(0, 256, 9)}),
        (3, {"seed": 6, "repetition_penalty": 1.7, "frequency_penalty": 0.5}, {"max_tokens": 20, "samples": 3}),
        (40, {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "seed": 7}, {"stop_strings": ["a", "b", "\n"]}),
        (17, {"seed": 5}, {"max_tokens": 1}),
    ]
    return [
        Job(
            [random_prompt(length, length + n) for n in range(1 + i % 2)],
            SamplingSettings(**{"temperature": 1.0} | settings),
            **more,
        )
        for i, (length, settings, more) in enumerate(kinds)
    ]


def alone(engine: Engine, job: Job) -> dict[int, list]:
    """{sample: events} of the engine's own stream."""
    names = ("prompts", "settings", "max_tokens", "samples", "stop_tokens", "stop_strings")
    return by_sample(engine.stream(**{name: getattr(job, name) for name in names}))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_does_not_depend_on_its_neighbors(pattern):
    engine = windowed_engine(pattern, **PATTERNS[pattern])
    batch, found = engine.batch(), {}
    waiting, late = jobs(), Job([random_prompt(12, 0)], SamplingSettings(temperature=0))
    arrivals = {0: waiting[:1], 3: waiting[1:3], 4: waiting[3:4], 11: [*waiting[4:], late]}
    step = 0
    while len(batch) or step < 12:
        batch.join(arrivals.get(step, []))
        if step == 14:
            batch.leave(late)
        for job, event in batch.step():
            found.setdefault(job, {}).setdefault(event.sample, []).append(event)
        step += 1
    for job in [*waiting, late]:
        expected = alone(engine, job)
        assert found[job].keys() == expected.keys()
        for number, events in found[job].items():
            expected[number] = expected[number][: 3 if job is late else None]
            for event, wanted in zip(events, expected[number], strict=True):
                assert (event.token, event.text, event.finish) == (wanted.token, wanted.text, wanted.finish)
                assert event.log_probability == pytest.approx(wanted.log_probability, abs=1e-4)


def test_a_job_can_leave_before_its_first_step_and_what_cannot_be_used_changes_nothing():
    engine = windowed_engine("GD")
    batch, (first, second, *_) = engine.batch(), jobs()
    batch.join([first, second])
    assert len(batch) == 3
    with pytest.raises(ValueError, match="max-tokens: got -1"):
        batch.join([jobs()[0], Job([[1]], max_tokens=-1)])
    batch.leave(second)
    assert len(batch) == 1
    assert {job for job, _ in batch.step()} == {first}
    batch.leave(first)
    assert (len(batch), batch.step()) == (0, [])


def test_alternatives_are_the_likeliest_tokens_under_the_model_itself():
    engine = windowed_engine("GD")
    batch, prompt = engine.batch(), random_prompt(9, 0)
    settings = SamplingSettings(0.3, top_k=3, repetition_penalty=100.0, seed=3)
    batch.join([Job([prompt], settings, max_tokens=8, alternatives=264), Job([prompt], max_tokens=1)])
    (_, first), (_, without) = batch.step()
    with torch.no_grad():
        logits = engine.model(torch.tensor([prompt]))[0, -1, : engine.tokenizer.vocab_size]
    best = torch.log_softmax(logits, -1).topk(264)
    assert [token for token, _ in first.alternatives] == best.indices.tolist()
    assert [value for _, value in first.alternatives] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert without.alternatives == ()
    events = [first]
    while len(batch):
        events += [event for _, event in batch.step()]
    for event in events:
        assert event.log_probability == dict(event.alternatives)[event.token]  # exactly
    said = [event.token for event in events]
    assert len({*said, *prompt}) == len(said) + len({*prompt})  # such a penalty forbids what was seen
