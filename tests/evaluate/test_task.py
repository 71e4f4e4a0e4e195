"""The rules that make scores comparable: the draw, the rendering, the scored tokens."""

import random

import pytest

from nanogka.evaluate.task import Task, common_prefix, draw_examples, item_order, make_question, render

MC = [{"query": "Q1 ", "choices": ["a", "b"], "gold": 1}, {"query": "Q2\n", "choices": ["c", "d"], "gold": 0}]
SCHEMA = [{"context_options": ["x1", "x2"], "continuation": "e1", "gold": 1}] * 2
LM = [{"context": " one \n", "continuation": "two"}, {"context": "\tthree ", "continuation": "four "}]


def test_the_order_is_the_shuffle_of_seed_1337_then_the_cut():
    items = list(range(50))
    random.Random(1337).shuffle(items)
    assert item_order(50) == items
    assert item_order(50, 8) == items[:8]
    assert item_order(10) == [0, 3, 7, 2, 1, 6, 4, 5, 8, 9]


@pytest.mark.parametrize("count,shots", [(11, 10), (40, 3), (300, 10), (5, 1)])
def test_examples_are_the_sample_of_the_other_items(count, shots):
    for index in range(0, count, 7):
        others = [i for i in range(count) if i != index]
        expected = random.Random(1234 + index).sample(others, shots)
        assert draw_examples(index, count, shots) == expected
        assert index not in expected


def test_the_draw_is_pinned():
    assert draw_examples(0, 32, 5) == [31, 25, 15, 4, 1]
    assert draw_examples(7, 32, 5) == [20, 16, 25, 6, 10]


def test_multiple_choice_keeps_white_space_and_separates_examples_by_a_blank_line():
    task = Task("t", "multiple_choice", delimiter="\nAnswer: ")
    expected = "Q2\n\nAnswer: c\n\nQ1 \nAnswer: "
    assert render(task, MC[0], [MC[1]]) == [expected + "a", expected + "b"]


def test_schema_shows_the_right_context_of_an_example():
    task = Task("t", "schema")
    assert render(task, SCHEMA[0], [SCHEMA[1]]) == ["x2 e1\n\nx1 e1", "x2 e1\n\nx2 e1"]


def test_language_modelling_trims_contexts_and_the_prompt_without_the_answer():
    task = Task("t", "language_modeling")
    assert render(task, LM[0], [LM[1]]) == ["three four \n\none", "three four \n\none two"]


@pytest.mark.parametrize(
    "sequences,length",
    [([[1, 2, 3], [1, 2, 4]], 2), ([[1, 2], [1, 2, 3]], 2), ([[1], [2]], 0), ([[5, 6]], 2), ([[], [1]], 0)],
)
def test_common_prefix(sequences, length):
    assert common_prefix(sequences) == length


def test_common_prefix_is_the_longest_at_every_length():
    rng = random.Random(0)
    for _ in range(200):
        a = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
        b = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
        expected = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        assert common_prefix([a, b]) == expected


def test_truncation_keeps_the_right_end_and_moves_the_start():
    question = make_question("multiple_choice", [[9, 1, 2, 3, 4], [9, 1, 2, 5]], 4)
    assert [(c.tokens, c.start) for c in question.candidates] == [([1, 2, 3, 4], 2), ([9, 1, 2, 5], 3)]
    assert question.truncated
    assert make_question("multiple_choice", [[9, 1, 2, 3, 4], [9, 1, 2, 5]], 5).truncated is False


@pytest.mark.parametrize("sequence_len,fits", [(3, True), (2, False)])
def test_the_first_scored_token_needs_one_before_it(sequence_len, fits):
    question = make_question("schema", [[9, 1, 2, 3], [9, 4, 2, 3]], sequence_len)
    assert bool(question.candidates) is fits
    assert (question.unscorable is None) is fits
