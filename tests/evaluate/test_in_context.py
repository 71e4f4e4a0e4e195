"""The fast evaluator against the naive one, at chance, with an oracle, and at the edges."""

import math

import pytest
from evaluate_fakes import (
    FakeModel,
    FakeTokenizer,
    LetterTokenizer,
    OracleModel,
    RandomModel,
    UniformModel,
    make_items,
)
from naive_evaluator import naive_evaluate

from nanogka.evaluate import Task, TaskData, evaluate_task
from nanogka.evaluate.in_context import judge, make_questions
from nanogka.evaluate.scoring import Score
from nanogka.evaluate.task import TYPES


def data_of(type_, count=40, shots=0, delimiter=" ", seed=0, chance=None):
    return TaskData(Task("made_up", type_, shots, chance, delimiter=delimiter), make_items(type_, count, seed))


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("shots,delimiter,limit", [(0, " ", None), (3, "\nAnswer: ", None), (5, " ", 17)])
def test_same_predictions_and_losses_as_the_naive_evaluator(type_, shots, delimiter, limit):
    data = data_of(type_, shots=shots, delimiter=delimiter)
    model, exact = FakeModel(), FakeModel().double()
    expected = naive_evaluate(exact, FakeTokenizer(), type_, data.items, shots, delimiter, limit)
    for own, tolerance in ((model, 2e-5), (exact, 1e-12)):
        result, predictions = evaluate_task(own, FakeTokenizer(), data, max_items=limit, batch_tokens=300)
        assert [p.prediction for p in predictions] == [prediction for prediction, _ in expected]
        for prediction, (_, losses) in zip(predictions, expected):
            assert prediction.losses == pytest.approx(losses, abs=tolerance)
        assert result.items == len(expected) == (limit or 40)


@pytest.mark.parametrize("type_", TYPES)
def test_left_truncation_agrees_with_the_naive_evaluator(type_):
    data = data_of(type_, shots=3)
    exact = FakeModel(sequence_len=24).double()
    expected = naive_evaluate(exact, FakeTokenizer(), type_, data.items, 3, " ", None, 24)
    result, predictions = evaluate_task(exact, FakeTokenizer(), data)
    assert [p.prediction for p in predictions] == [prediction for prediction, _ in expected]
    for prediction, (_, losses) in zip(predictions, expected):
        assert prediction.losses == pytest.approx(losses, abs=1e-12)
    assert result.truncated == 40
    assert result.unscorable == 0


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("batch_tokens", [1, 64, 100_000])
def test_the_batch_size_changes_nothing(type_, batch_tokens):
    data = data_of(type_, shots=2)
    model = FakeModel().double()
    _, expected = evaluate_task(model, FakeTokenizer(), data)
    _, predictions = evaluate_task(model, FakeTokenizer(), data, batch_tokens=batch_tokens)
    for one, other in zip(predictions, expected):
        assert one.prediction == other.prediction
        assert one.losses == pytest.approx(other.losses, abs=1e-12)


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("kind", [UniformModel, RandomModel])
def test_a_model_that_knows_nothing_scores_at_chance(type_, kind):
    data = data_of(type_, count=400, shots=1)
    result, _ = evaluate_task(kind(), FakeTokenizer(), data)
    assert abs(result.centered) <= 3 * result.centered_stderr + 1e-9


def test_every_token_of_an_answer_must_be_the_argmax():
    items = [{"context": f"say {word}", "continuation": "north cedar"} for word in ("stone", "river", "cloud")]
    data = TaskData(Task("words", "language_modeling"), items)
    right = [q.candidates[0].tokens for q in make_questions(FakeTokenizer(), data, [0, 1, 2], range(3), 64)]
    assert evaluate_task(OracleModel(right), FakeTokenizer(), data)[0].correct == 3
    assert evaluate_task(OracleModel([tokens[:-1] for tokens in right]), FakeTokenizer(), data)[0].correct == 0


def test_the_first_choice_wins_a_tie():
    data = data_of("multiple_choice")
    _, predictions = evaluate_task(UniformModel(), FakeTokenizer(), data)
    assert {p.prediction for p in predictions} == {0}


def test_choices_that_are_word_for_word_the_same_tie_exactly():
    items = [{"query": "say", "choices": ["red stone", "ash", "ash", "red stone"], "gold": i % 4} for i in range(40)]
    model = FakeModel()
    _, predictions = evaluate_task(model, FakeTokenizer(), TaskData(Task("same", "multiple_choice"), items))
    # scored once, not merely alike: a matrix product may round equal rows differently
    assert model.positions_unembedded == 40 * (len(FakeTokenizer().encode(" red stone")) + 1)
    for prediction in predictions:
        assert prediction.losses[0] == prediction.losses[3]
        assert prediction.losses[1] == prediction.losses[2]


def test_letter_choices_are_one_row_and_only_scored_positions_are_unembedded():
    query = "pick the letter that names the largest of these: A. ant B. cat C. cow D. elk Answer:"
    items = [{"query": f"{query} {i}", "choices": list("ABCD"), "gold": 2} for i in range(10)]
    model = FakeModel()
    evaluate_task(model, FakeTokenizer(), TaskData(Task("letters", "multiple_choice"), items))
    length = len(FakeTokenizer().encode(query + " 0"))
    assert model.tokens_run == 10 * (length + 1)  # bos and the query, once an item
    assert model.positions_unembedded == 10 * 4


def test_too_few_items_for_the_shots_is_a_clear_error():
    data = data_of("multiple_choice", count=20, shots=10)
    with pytest.raises(ValueError, match="made_up.*got 10 items, takes at least 11: 10 examples"):
        evaluate_task(FakeModel(), FakeTokenizer(), data, max_items=10)


def test_an_item_longer_than_the_context_is_counted_and_reported():
    items = make_items("language_modeling", 5)
    items[2] = {"context": "short", "continuation": " ".join(["stone"] * 40)}
    data = TaskData(Task("long", "language_modeling"), items, lines=(1, 2, 4, 5, 6))
    result, predictions = evaluate_task(FakeModel(sequence_len=24), FakeTokenizer(), data)
    bad = next(p for p in predictions if p.line == 4)
    assert (bad.prediction, bad.correct, bad.losses) == (None, False, [])
    assert bad.note == "the scored part does not fit the context"
    assert (result.items, result.unscorable) == (5, 1)


@pytest.mark.parametrize("choices", [["ash", "ash"], ["ash", "ash tree"]])
def test_a_choice_with_no_tokens_of_its_own_is_counted_and_reported(choices):
    data = TaskData(Task("same", "multiple_choice"), [{"query": "an", "choices": choices, "gold": 0}])
    result, predictions = evaluate_task(FakeModel(), FakeTokenizer(), data)
    assert (result.correct, result.unscorable) == (0, 1)
    assert predictions[0].note == "a choice has no tokens of its own"


def test_equal_contexts_of_a_schema_are_counted_and_reported():
    item = {"context_options": ["it rained so", "it rained so"], "continuation": "we stayed", "gold": 0}
    result, predictions = evaluate_task(FakeModel(), FakeTokenizer(), TaskData(Task("same", "schema"), [item]))
    assert result.unscorable == 1
    assert predictions[0].note == "the sequences are all the same"


def test_an_answer_that_shares_a_token_with_its_prompt_is_scored_from_there():
    # "…a" + "b…" is one token "ab": the prompt is no token prefix of prompt and answer
    data = TaskData(Task("merge", "language_modeling", delimiter=""), [{"context": "la", "continuation": "bc"}])
    exact = FakeModel().double()
    result, predictions = evaluate_task(exact, LetterTokenizer(), data)
    ((_, losses),) = naive_evaluate(exact, LetterTokenizer(), "language_modeling", data.items, 0, "")
    assert predictions[0].losses == pytest.approx(losses, abs=1e-12)
    assert result.unaligned == 1
    assert result.unscorable == 0
    (question,) = make_questions(LetterTokenizer(), data, [0], [0], 64)
    assert len(question.candidates[0].targets) == 2  # "ab" and "c"


def test_losses_that_are_not_finite_are_no_prediction():
    assert judge("multiple_choice", [Score(math.nan, False)] * 2, 0) == (None, False)
    assert judge("multiple_choice", [Score(math.nan, False), Score(9.0, False)], 1) == (1, True)
    assert judge("multiple_choice", [Score(math.inf, False), Score(9.0, False)], 0) == (1, False)


def test_the_model_returns_to_the_mode_it_was_in():
    model = FakeModel()
    for mode in (True, False):
        model.train(mode)
        evaluate_task(model, FakeTokenizer(), data_of("schema", count=3))
        assert model.training is mode
