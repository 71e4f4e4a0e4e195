"""Continuous batching: a text is what the engine gives it alone, whoever joins and leaves beside it."""

import pytest
import torch
from generate_models import byte_tokenizer, random_prompt, small_model

from nanogka.generate import Engine, SamplingSettings
from nanogka.generate.continuous import Job

TOKENIZER = byte_tokenizer()
PATTERNS = {"G": {}, "GD": {}, "S": {}, "GM": {}, "SD": {"short_conv": 3}}


def small_engine(name: str = "GD") -> Engine:
    model = small_model(name.rstrip("+"), windows="SL", sequence_len=64, **PATTERNS[name])
    for block in model.blocks:
        block.mixer.window = block.mixer.window and 16
    return Engine(model, TOKENIZER)


def jobs() -> list[Job]:
    """Jobs of all kinds: greedy and not, with a penalty, limits, several prompts and samples, early ends."""
    settings = [
        SamplingSettings(temperature=0),
        SamplingSettings(1.0, seed=5),
        SamplingSettings(1.0, seed=6, repetition_penalty=1.7),
        SamplingSettings(0.7, top_k=40, top_p=0.9, seed=7),
        SamplingSettings(1.0, seed=5),
    ]
    more = [
        {"max_tokens": 30},
        {"stop_tokens": range(0, 256, 9)},
        {"max_tokens": 20, "samples": 3},
        {"stop_strings": ["a", "b", "\n"]},
        {"max_tokens": 1},
    ]
    return [
        Job([random_prompt(length, length + n) for n in range(1 + i % 2)], settings[i], **more[i])
        for i, length in enumerate((9, 20, 3, 40, 17))
    ]


def alone(engine: Engine, job: Job) -> dict[int, list]:
    """{sample: events} of the engine's own stream."""
    options = {"max_tokens": job.max_tokens, "samples": job.samples}
    options |= {"stop_tokens": job.stop_tokens, "stop_strings": job.stop_strings}
    found = {}
    for events in engine.stream(job.prompts, job.settings, **options):
        for event in events:
            found.setdefault(event.sample, []).append(event)
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_does_not_depend_on_its_neighbours(pattern):
    engine = small_engine(pattern)
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
            assert [(e.token, e.text, e.finish) for e in events] == [
                (e.token, e.text, e.finish) for e in expected[number]
            ]
            values = [e.log_probability for e in expected[number]]
            assert [e.log_probability for e in events] == pytest.approx(values, abs=1e-4)


def test_a_job_can_leave_before_its_first_step_and_what_cannot_be_used_changes_nothing():
    engine = small_engine()
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
    engine = small_engine()
    batch, prompt = engine.batch(), random_prompt(9, 0)
    settings = SamplingSettings(0.3, top_k=3, repetition_penalty=1.3, seed=3)
    batch.join([Job([prompt], settings, alternatives=4), Job([prompt])])
    (_, with_them), (_, without) = batch.step()
    with torch.no_grad():
        logits = engine.model(torch.tensor([prompt]))[0, -1, : TOKENIZER.vocab_size]
    expected = torch.log_softmax(logits, -1)
    best = expected.topk(4)
    assert [token for token, _ in with_them.alternatives] == best.indices.tolist()
    assert [value for _, value in with_them.alternatives] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert with_them.log_probability == pytest.approx(expected[with_them.token].item(), abs=1e-5)
    assert without.alternatives == ()


def test_a_token_has_the_same_log_probability_as_in_the_list_of_alternatives():
    engine = small_engine()
    batch = engine.batch()
    batch.join([Job([random_prompt(length, length)], SamplingSettings(0.5), 8, alternatives=264) for length in (5, 9)])
    while len(batch):
        for _, event in batch.step():
            assert event.log_probability == dict(event.alternatives)[event.token]  # exactly
