"""The rules that make scores comparable, beside those of `naive_evaluator`: the draw, the prompts, where to cut."""

import random

import pytest

from nanogka.evaluate.task import Task, common_prefix, draw_examples, item_order, make_question, render

ASKED = {
    "multiple_choice": {"query": "Q1 ", "choices": ["a", "b"], "gold": 1},
    "schema": {"context_options": ["x1", "x2"], "continuation": "e1", "gold": 1},
    "language_modeling": {"context": " one \n", "continuation": "two"},
}
SHOWN = {
    "multiple_choice": {"query": "Q2\n", "choices": ["c", "d"], "gold": 0},
    "schema": ASKED["schema"],
    "language_modeling": {"context": "\tthree ", "continuation": "four "},
}


def test_the_draw_of_items_and_examples_is_pinned():
    assert item_order(10) == [0, 3, 7, 2, 1, 6, 4, 5, 8, 9]
    assert item_order(10, 4) == [0, 3, 7, 2]
    assert draw_examples(0, 32, 5) == [31, 25, 15, 4, 1]
    assert draw_examples(7, 32, 5) == [20, 16, 25, 6, 10]


@pytest.mark.parametrize(
    "type_,delimiter,texts",
    [
        ("multiple_choice", "\nAnswer: ", ["Q2\n\nAnswer: c\n\nQ1 \nAnswer: a", "Q2\n\nAnswer: c\n\nQ1 \nAnswer: b"]),
        ("schema", " ", ["x2 e1\n\nx1 e1", "x2 e1\n\nx2 e1"]),
        ("language_modeling", " ", ["three four \n\none", "three four \n\none two"]),
    ],
)
def test_prompts_keep_white_space_but_that_around_the_contexts_of_language_modelling(type_, delimiter, texts):
    assert render(Task("t", type_, delimiter=delimiter), ASKED[type_], [SHOWN[type_]]) == texts


def test_common_prefix_is_the_longest():
    rng = random.Random(0)
    for _ in range(200):
        rows = [[rng.randrange(2) for _ in range(rng.randrange(12))] for _ in range(rng.choice((1, 2, 3)))]
        different = (i for i, column in enumerate(zip(*rows)) if len(set(column)) > 1)
        assert common_prefix(rows) == next(different, min(map(len, rows)))


@pytest.mark.parametrize("sequence_len,fits", [(3, True), (2, False)])
def test_the_first_scored_token_needs_one_before_it(sequence_len, fits):
    question = make_question("schema", [[9, 1, 2, 3], [9, 4, 2, 3]], sequence_len)
    assert bool(question.candidates) is fits
    assert (question.unscorable is None) is fits
