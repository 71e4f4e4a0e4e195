"""Running a shared prefix once: the same losses, less work."""

import pytest
import torch
from evaluate_fakes import FakeTokenizer, make_items, make_network
from naive_evaluator import check_against_naive

from nanogka.evaluate.in_context import evaluate_task
from nanogka.evaluate.task import TYPES, Task, TaskData


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("sequence_len", [256, 40])  # 40: all prompts are cut on the left, the window is 20
def test_the_network_gives_the_predictions_and_losses_of_the_naive_evaluator(type_, sequence_len):
    data = TaskData(Task("made_up", type_, shots=3), make_items(type_, 24))
    exact = make_network(sequence_len, torch.float64)  # its rotations and logits are float32 all the same
    for model, tolerance, batch_tokens in ((exact, 1e-6, 1000), (make_network(sequence_len), 1e-5, 64)):
        _, predictions = evaluate_task(model, FakeTokenizer(), data, batch_tokens=batch_tokens)
        check_against_naive(predictions, exact, FakeTokenizer(), data, tolerance, None, sequence_len)


def test_the_prefix_of_an_items_choices_is_run_once():
    model, tokens = make_network(512), []
    embed = model.embedding.forward
    model.embedding.forward = lambda ids: (tokens.append(ids.numel()), embed(ids))[1]
    query = " ".join(["stone"] * 99)
    choices = ["river river", "cloud ember", "willow north"]
    data = TaskData(Task("one", "multiple_choice"), [{"query": query, "choices": choices, "gold": 0}])
    evaluate_task(model, FakeTokenizer(), data)
    # bos and all words but the last, of which the choices' first words are read; then that and a choice's first word
    assert tokens == [99, 3 * 2]
