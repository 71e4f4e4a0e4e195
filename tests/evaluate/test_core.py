"""The evaluator against a naive one, on made-up items and on the real bundle, and its edge cases."""

import math
import os
from pathlib import Path

import pytest
from evaluate_fakes import FakeModel, FakeTokenizer, OracleModel, make_items, make_network, write_bundle
from naive_evaluator import check_against_naive

from nanogka.common.distributed import Ranks
from nanogka.evaluate import core
from nanogka.evaluate.bundle import open_bundle, open_core_tasks
from nanogka.evaluate.core import core_evaluation, evaluate_task, judge, make_questions
from nanogka.evaluate.loglikelihood import GPTScorer, Score
from nanogka.evaluate.task import TYPES, LoadedTask, Task, make_question
from tasks import CORE

DATA = os.environ.get("NANOGKA_TEST_DATA")  # the folder with `eval_bundle/`
# Tasks of CORE whose prompts are long; another one has the same form.
LONG = {"hellaswag", "arc_challenge", "agi_eval_lsat_ar", "squad", "boolq", "bigbench_language_identification"}


def data_of(type_, count=40, num_fewshot=0, delimiter=" "):
    return LoadedTask(Task("made_up", type_, num_fewshot, delimiter=delimiter), make_items(type_, count))


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("num_fewshot,delimiter,limit", [(0, " ", None), (3, "\nAnswer: ", None), (5, " ", 17)])
def test_predictions_and_losses_are_those_of_the_naive_evaluator(type_, num_fewshot, delimiter, limit):
    data, tokenizer = data_of(type_, 20, num_fewshot, delimiter), FakeTokenizer()
    exact = FakeModel().double()
    for model, tolerance, batch_tokens in ((FakeModel(), 2e-5, 300), (exact, 1e-12, 1), (exact, 1e-12, 100_000)):
        result, predictions = evaluate_task(model, tokenizer, data, max_items=limit, batch_tokens=batch_tokens)
        check_against_naive(predictions, exact, tokenizer, data, tolerance, limit)
        assert result.items == len(predictions) == (limit or 20)


@pytest.mark.skipif(not DATA, reason="no NANOGKA_TEST_DATA")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in CORE]
)
def test_tasks_of_the_real_bundle(name):
    data, exact = open_bundle(Path(DATA) / "eval_bundle").load(name), FakeModel(sequence_len=100_000).double()
    _, predictions = evaluate_task(exact, FakeTokenizer(), data, max_items=12)
    check_against_naive(predictions, exact, FakeTokenizer(), data, 1e-10, 12)


@pytest.mark.parametrize("type_", TYPES)
def test_prompts_for_other_libraries_models_are_cropped(type_):
    data, exact = data_of(type_, num_fewshot=3), FakeModel(sequence_len=24).double()
    result, predictions = evaluate_task(exact, FakeTokenizer(), data)
    check_against_naive(predictions, exact, FakeTokenizer(), data, 1e-12, None, 24)
    assert (result.truncated, result.unscorable) == (40, 0)


@pytest.mark.parametrize("name,having", [("core", CORE), ("core_partial", ("copa", "winograd"))])
def test_the_mean_in_training_is_over_all_tasks_or_over_those_there_are(tmp_path, name, having):
    write_bundle(tmp_path / "bundle", having, make_items("multiple_choice", 12), num_fewshot=1)
    tasks = open_core_tasks(str(tmp_path / "bundle"), CORE, None)
    assert {data.task.name for data in tasks} == set(having)
    model = make_network(512).train()
    centered = [evaluate_task(GPTScorer(model), FakeTokenizer(), data)[0].centered for data in tasks]
    measured = core_evaluation(tasks, CORE, FakeTokenizer(), Ranks())(model)
    assert model.training  # as it was before
    assert measured == {name: pytest.approx(sum(centered) / len(having))}


def test_every_token_of_an_answer_must_be_the_argmax():
    tokenizer = FakeTokenizer()
    tokenizer.ids = {}  # all pieces that earlier tests met would not fit: two words would share an id
    items = [{"context": f"say {word}", "continuation": "north cedar"} for word in ("stone", "river", "cloud")]
    data = LoadedTask(Task("words", "language_modeling"), items)
    right = [q.candidates[0].tokens for q in make_questions(tokenizer, data, [0, 1, 2], range(3), 64)]
    assert evaluate_task(OracleModel(right), tokenizer, data)[0].correct == 3
    assert evaluate_task(OracleModel([tokens[:-1] for tokens in right]), tokenizer, data)[0].correct == 0


def test_equal_choices_tie_exactly():
    items = [{"query": "say", "choices": ["red stone", "ash", "ash", "red stone"], "gold": i % 4} for i in range(40)]
    model, data = FakeModel(), LoadedTask(Task("same", "multiple_choice"), items)
    _, predictions = evaluate_task(model, FakeTokenizer(), data)
    # Equal choices are scored once, because a matrix product may round equal rows differently.
    assert model.positions_unembedded == 40 * (len(FakeTokenizer().encode(" red stone")) + 1)
    for prediction in predictions:
        assert prediction.losses == prediction.losses[::-1]


def test_an_item_longer_than_the_context_is_counted_and_reported():
    items = make_items("language_modeling", 5)
    items[2] = {"context": "short", "continuation": " ".join(["stone"] * 40)}
    data = LoadedTask(Task("long", "language_modeling"), items)
    result, predictions = evaluate_task(FakeModel(sequence_len=24), FakeTokenizer(), data)
    bad = next(p for p in predictions if p.line == 3)
    assert (bad.prediction, bad.correct, bad.losses) == (None, False, [])
    assert bad.note == "the scored part does not fit the context"
    assert (result.items, result.unscorable) == (5, 1)


@pytest.mark.parametrize(
    "type_,sequences,limit,expected",
    [
        ("schema", [[9, 1, 2, 3], [9, 4, 2, 3]], None, [2, 2]),  # starts of the scored parts
        ("schema", [[9, 1, 2, 3], [9, 4, 2, 3]], 3, [1, 1]),
        ("schema", [[9, 1, 2, 3], [9, 4, 2, 3]], 2, "does not fit"),  # no token is left to predict the first one from
        ("schema", [[9, 1, 2], [9, 1, 2]], None, "all the same"),
        ("multiple_choice", [[9, 1, 2], [9, 1, 2, 3]], None, "adds no tokens"),
        ("language_modeling", [[9, 1, 2], [9, 1, 3, 4]], None, [2]),  # token 3 merges the prompt's end and the answer
    ],
)
def test_the_scored_part_of_an_item(type_, sequences, limit, expected):
    question = make_question(type_, sequences, limit)
    if isinstance(expected, str):
        assert expected in question.unscorable
        assert question.candidates == []
    else:
        assert [candidate.start for candidate in question.candidates] == expected


def test_the_lowest_finite_loss_is_the_prediction_and_the_first_of_equals():
    nan, inf, high, low = (Score(loss, False) for loss in (math.nan, math.inf, 9.0, 1.0))
    assert judge("multiple_choice", [high, low, low], 1) == (1, True)
    assert judge("multiple_choice", [nan, high], 0) == judge("multiple_choice", [inf, high], 0) == (1, False)
    assert judge("multiple_choice", [nan, nan], 0) == judge("schema", [], 0) == (None, False)


def test_the_bar_of_a_task_leaves_the_terminal_with_it(monkeypatch):
    bars = []
    monkeypatch.setattr(core, "tqdm", lambda parts, **how: bars.append(how) or parts)
    evaluate_task(FakeModel(), FakeTokenizer(), data_of("multiple_choice", 3))
    assert bars == [{"desc": "made_up", "unit": "chunk", "leave": False, "disable": None}]
