"""CORE: its 22 tasks on the real bundle (if `NANOGKA_TEST_DATA` names the folder with `eval_bundle/`), and its mean."""

import os
from pathlib import Path

import pytest
from evaluate_fakes import FakeModel, FakeTokenizer, write_bundle
from naive_evaluator import check_against_naive

from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.evaluate.bundle import open_bundle
from nanogka.evaluate.core import core_evaluation, evaluate_task
from nanogka.evaluate.results import PAPER_TASKS
from nanogka.evaluate.sources import open_core_tasks
from tasks import CORE

DATA = os.environ.get("NANOGKA_TEST_DATA")
needs_bundle = pytest.mark.skipif(not DATA, reason="no NANOGKA_TEST_DATA")


@pytest.fixture(scope="module")
def bundle():
    return open_bundle(Path(DATA) / "eval_bundle")


# Examples in the prompt and chance level of each task, as nanochat's bundle has them.
MULTIPLE_CHOICE = {
    "hellaswag_zeroshot": (0, 0.25), "hellaswag": (10, 0.25), "arc_easy": (10, 0.25), "arc_challenge": (10, 0.25),
    "copa": (0, 0.5), "commonsense_qa": (10, 0.2), "piqa": (10, 0.5), "openbook_qa": (0, 0.25),
    "agi_eval_lsat_ar": (3, 0.2), "boolq": (10, 0.62), "bigbench_language_identification": (10, 0.091),
}  # fmt: skip
SCHEMA = {"winograd": (0, 0.5), "winogrande": (0, 0.5)}


@needs_bundle
def test_the_bundle_has_core_with_nanochats_examples_and_chance_levels(bundle):
    assert len(CORE) == len(set(CORE)) == 22
    assert set(bundle.tasks) == set(CORE) > set(PAPER_TASKS)
    for name in CORE:
        data = bundle.load(name)
        assert len(data.items) >= 32
        type_ = "multiple_choice" if name in MULTIPLE_CHOICE else "schema" if name in SCHEMA else "language_modeling"
        examples = 0 if name in ("lambada_openai", "coqa") else 10
        expected = (MULTIPLE_CHOICE | SCHEMA).get(name, (examples, 0))
        assert (data.task.type, (data.task.shots, data.chance)) == (type_, expected)


@needs_bundle
@pytest.mark.parametrize("name", CORE)
def test_same_predictions_and_losses_as_the_naive_evaluator(name, bundle):
    data, exact = bundle.load(name), FakeModel(sequence_len=100_000).double()
    _, predictions = evaluate_task(exact, FakeTokenizer(), data, max_items=12)
    check_against_naive(predictions, exact, FakeTokenizer(), data, 1e-10, 12)


@pytest.mark.parametrize("name,having", [("core", CORE), ("core_partial", ("copa", "winograd"))])
def test_the_mean_in_training_is_over_all_tasks_or_over_those_there_are(tmp_path, name, having):
    errors, model, tokenizer = Errors(), FakeModel(), FakeTokenizer()
    tasks = open_core_tasks(str(write_bundle(tmp_path, having)), CORE, None, errors)
    assert {data.task.name for data in tasks} == set(having)
    centered = [evaluate_task(model, tokenizer, data)[0].centered for data in tasks]
    measured = core_evaluation(tasks, CORE, tokenizer, Ranks())(model)
    assert measured == {name: pytest.approx(sum(centered) / len(having))}
    assert not errors.lines
