"""scripts.chat_eval on a tiny chat model: processes share the questions, and only a finished evaluation is complete."""

import json

import pytest
from generate_models import save_run, small_model
from rank_worlds import run_training

from nanogka.evaluate import chat
from scripts import chat_eval
from tasks import BENCHMARKS

FLAGS = "--run talk --tasks spelling,copying --max-per-task 5 --device cpu --dtype float32".split()


@pytest.fixture
def results(base):
    """`results()`: the run's results without times and devices; the run is made first."""
    save_run(base / "runs" / "talk", small_model(sequence_len=64), kind="chat")

    def read():
        document = json.loads((base / "runs/talk/chat_evaluation.json").read_text())
        return [{k: v for k, v in task.items() if k != "seconds"} for task in document["tasks"]], document["complete"]

    return read


def test_two_processes_write_the_results_of_one(base, results, capsys):
    assert chat_eval.main(FLAGS) == 0
    alone, complete = results()
    assert complete
    assert [task["items"] for task in alone] == [5, 5]
    assert run_training(2, FLAGS, base, script="chat_eval") == [(0, ""), (0, "")]
    assert results() == (alone, True)


def test_an_evaluation_that_was_stopped_is_not_complete(results, monkeypatch):
    evaluate = chat.evaluate_chat_task

    def stopped(model, task, ranks):
        if task.name == "copying":
            raise KeyboardInterrupt
        return evaluate(model, task, ranks)

    monkeypatch.setattr(chat, "evaluate_chat_task", stopped)
    assert chat_eval.main(FLAGS) == 130
    tasks, complete = results()
    assert ([task["name"] for task in tasks], complete) == (["spelling"], False)


def test_programs_of_a_model_run_only_if_asked_for(results, monkeypatch, capsys):
    asked = []
    monkeypatch.setitem(BENCHMARKS, "humaneval", lambda source: asked.append(source))
    words = ["--run", "talk", "--tasks", "humaneval", "--eval-bundle", "hub", "--device", "cpu"]
    assert chat_eval.main(words) == 2
    assert asked == []
    assert chat_eval.main([*words, "--run-code"]) == 2  # the stand-in has no questions
    assert len(asked) == 1
    assert "--tasks" in capsys.readouterr().err
