"""Our network: a shared prefix is run once, and prompts longer than the context are read whole, as in nanochat."""

import pytest
import torch
from evaluate_fakes import FakeTokenizer, beyond, make_items, make_network
from naive_evaluator import check_against_naive

from nanogka.evaluate.core import evaluate_task
from nanogka.evaluate.loglikelihood import GPTScorer
from nanogka.evaluate.task import TYPES, LoadedTask, Task


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("sequence_len", [256, 40])  # all prompts are longer than 40 tokens; short windows are then 20
def test_the_network_gives_the_predictions_and_losses_of_the_naive_evaluator(type_, sequence_len):
    data = LoadedTask(Task("made_up", type_, num_fewshot=3), make_items(type_, 24))
    # Rotations and logits are float32 even in the float64 network.
    for model, tolerance, batch_tokens in (
        (make_network(sequence_len, torch.float64), 1e-6, 1000),
        (make_network(sequence_len), 1e-5, 64),
    ):
        result, predictions = evaluate_task(GPTScorer(model), FakeTokenizer(), data, batch_tokens=batch_tokens)
        check_against_naive(predictions, beyond(sequence_len), FakeTokenizer(), data, tolerance)
        assert result.truncated == result.unscorable == 0
        assert [block.mixer.window for block in model.blocks] == [sequence_len // 2, None, None]


def test_the_prefix_of_an_items_choices_is_run_once():
    model, tokens = make_network(512), []
    embed = model.embedding.forward
    model.embedding.forward = lambda ids: (tokens.append(ids.numel()), embed(ids))[1]
    query = " ".join(["stone"] * 99)
    choices = ["river river", "cloud ember", "willow north"]
    data = LoadedTask(Task("one", "multiple_choice"), [{"query": query, "choices": choices, "gold": 0}])
    evaluate_task(GPTScorer(model), FakeTokenizer(), data)
    # First bos and all words but the last. Then, for each choice, the last word and the first word of the choice.
    assert tokens == [99, 3 * 2]
