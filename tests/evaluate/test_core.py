"""The evaluator against a naive one, at chance level, with an oracle, and in edge cases."""

import math

import pytest
from evaluate_fakes import FakeModel, FakeTokenizer, LetterTokenizer, OracleModel, UniformModel, make_items
from naive_evaluator import check_against_naive

from nanogka.evaluate.core import evaluate_task, judge, make_questions
from nanogka.evaluate.loglikelihood import Score
from nanogka.evaluate.task import TYPES, Task, TaskData, make_question


def data_of(type_, count=40, shots=0, delimiter=" "):
    return TaskData(Task("made_up", type_, shots, delimiter=delimiter), make_items(type_, count))


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("shots,delimiter,limit", [(0, " ", None), (3, "\nAnswer: ", None), (5, " ", 17)])
def test_same_predictions_and_losses_as_the_naive_evaluator(type_, shots, delimiter, limit):
    data, tokenizer = data_of(type_, shots=shots, delimiter=delimiter), FakeTokenizer()
    exact = FakeModel().double()
    for model, tolerance, batch_tokens in ((FakeModel(), 2e-5, 300), (exact, 1e-12, 1), (exact, 1e-12, 100_000)):
        result, predictions = evaluate_task(model, tokenizer, data, max_items=limit, batch_tokens=batch_tokens)
        check_against_naive(predictions, exact, tokenizer, data, tolerance, limit)
        assert result.items == len(predictions) == (limit or 40)


@pytest.mark.parametrize("type_", TYPES)
def test_prompts_of_other_libraries_models_are_cropped_as_by_the_naive_evaluator(type_):
    data, exact = data_of(type_, shots=3), FakeModel(sequence_len=24).double()
    result, predictions = evaluate_task(exact, FakeTokenizer(), data)
    check_against_naive(predictions, exact, FakeTokenizer(), data, 1e-12, None, 24)
    assert (result.truncated, result.unscorable) == (40, 0)


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("kind", [UniformModel, FakeModel])
def test_a_model_that_knows_nothing_scores_at_chance(type_, kind):
    data = data_of(type_, count=400, shots=1)
    result, _ = evaluate_task(kind(), FakeTokenizer(), data)
    assert abs(result.centered) <= 3 * result.centered_stderr + 1e-9


def test_every_token_of_an_answer_must_be_the_argmax():
    tokenizer = FakeTokenizer()
    tokenizer.ids = {}  # all that earlier tests met would not fit: two words would share an id
    items = [{"context": f"say {word}", "continuation": "north cedar"} for word in ("stone", "river", "cloud")]
    data = TaskData(Task("words", "language_modeling"), items)
    right = [q.candidates[0].tokens for q in make_questions(tokenizer, data, [0, 1, 2], range(3), 64)]
    assert evaluate_task(OracleModel(right), tokenizer, data)[0].correct == 3
    assert evaluate_task(OracleModel([tokens[:-1] for tokens in right]), tokenizer, data)[0].correct == 0


def test_choices_that_are_word_for_word_the_same_tie_exactly_and_the_first_wins():
    items = [{"query": "say", "choices": ["red stone", "ash", "ash", "red stone"], "gold": i % 4} for i in range(40)]
    model, data = FakeModel(), TaskData(Task("same", "multiple_choice"), items)
    _, predictions = evaluate_task(model, FakeTokenizer(), data)
    # scored once, not merely alike: a matrix product may round equal rows differently
    assert model.positions_unembedded == 40 * (len(FakeTokenizer().encode(" red stone")) + 1)
    for prediction in predictions:
        assert prediction.losses == prediction.losses[::-1]
    _, predictions = evaluate_task(UniformModel(), FakeTokenizer(), data)
    assert {p.prediction for p in predictions} == {0}


def test_an_item_longer_than_the_context_is_counted_and_reported():
    items = make_items("language_modeling", 5)
    items[2] = {"context": "short", "continuation": " ".join(["stone"] * 40)}
    data = TaskData(Task("long", "language_modeling"), items, lines=(1, 2, 4, 5, 6))
    result, predictions = evaluate_task(FakeModel(sequence_len=24), FakeTokenizer(), data)
    bad = next(p for p in predictions if p.line == 4)
    assert (bad.prediction, bad.correct, bad.losses) == (None, False, [])
    assert bad.note == "the scored part does not fit the context"
    assert (result.items, result.unscorable) == (5, 1)


@pytest.mark.parametrize("limit,fits", [(None, True), (3, True), (2, False)])
def test_the_first_scored_token_needs_one_before_it(limit, fits):
    question = make_question("schema", [[9, 1, 2, 3], [9, 4, 2, 3]], limit)
    assert bool(question.candidates) is fits
    assert (question.unscorable is None) is fits


EMPTY, SAME = "a choice has no tokens of its own", "the sequences are all the same"


@pytest.mark.parametrize(
    "type_,item,note",
    [
        ("multiple_choice", {"query": "an", "choices": ["ash", "ash tree"], "gold": 0}, EMPTY),
        ("schema", {"context_options": ["it rained so"] * 2, "continuation": "we stayed", "gold": 0}, SAME),
    ],
)
def test_an_item_without_anything_to_tell_apart_is_counted_and_reported(type_, item, note):
    result, predictions = evaluate_task(FakeModel(), FakeTokenizer(), TaskData(Task("same", type_), [item]))
    assert (result.correct, result.unscorable) == (0, 1)
    assert predictions[0].note == note


def test_an_answer_that_shares_a_token_with_its_prompt_is_scored_from_there():
    # "…a" + "b…" is one token "ab": the prompt is no token prefix of prompt and answer
    data = TaskData(Task("merge", "language_modeling", delimiter=""), [{"context": "la", "continuation": "bc"}])
    exact = FakeModel().double()
    result, predictions = evaluate_task(exact, LetterTokenizer(), data)
    check_against_naive(predictions, exact, LetterTokenizer(), data, 1e-12)
    assert result.unaligned == 1
    assert result.unscorable == 0
    (question,) = make_questions(LetterTokenizer(), data, [0], [0], 64)
    assert len(question.candidates[0].targets) == 2  # "ab" and "c"


def test_losses_that_are_not_finite_are_no_prediction():
    assert judge("multiple_choice", [Score(math.nan, False)] * 2, 0) == (None, False)
    assert judge("multiple_choice", [Score(math.nan, False), Score(9.0, False)], 1) == (1, True)
    assert judge("multiple_choice", [Score(math.inf, False), Score(9.0, False)], 0) == (1, False)
