"""scripts.chat_eval on a tiny chat model: processes share the questions, and only a finished evaluation is complete."""

import json
from functools import partial

import pytest
from evaluate_fakes import write_bundle
from generate_models import byte_tokenizer, save_run, small_model
from rank_worlds import run_training

from nanogka.common.cli import command
from nanogka.common.digest import digest_of_code
from nanogka.evaluate import chat
from nanogka.evaluate.settings import ChatEvalSettings
from scripts import chat_eval
from tasks import BENCHMARKS
from tasks.skills import evaluations

FLAGS = "--run talk --tasks arc_easy,copying --max-per-task 5 --device cpu --dtype float32".split()


@pytest.fixture
def flags(base):
    """Flags of an evaluation of a new run, by letters and by generation."""
    save_run(base / "runs/talk", small_model(sequence_len=256), kind="chat", tokenizer=byte_tokenizer())
    items = [{"query": f"stone {i}", "choices": ["river", "cloud"], "gold": i % 2} for i in range(9)]
    return [*FLAGS, "--eval-bundle", str(write_bundle(base / "bundle", ["arc_easy"], items))]


def results(base):
    """The results without times, and whether they are complete."""
    document = json.loads((base / "runs/talk/chat_evaluation.json").read_text())
    return [{k: v for k, v in task.items() if k != "seconds"} for task in document["tasks"]], document["complete"]


def test_two_processes_write_the_results_of_one(base, flags):
    assert chat_eval.main(flags) == 0
    alone, complete = results(base)
    assert [(task["type"], task["items"]) for task in alone] == [("generation", 5), ("letter", 5)]
    assert complete
    assert run_training(2, flags, base, script="chat_eval") == [(0, ""), (0, "")]
    assert results(base) == (alone, True)


def test_a_finished_evaluation_is_not_repeated_unless_something_changed(base, flags, monkeypatch, capsys):
    assert chat_eval.main(flags) == 0
    asked, evaluate = [], chat.evaluate_chat_task
    monkeypatch.setattr(chat, "evaluate_chat_task", lambda *args: asked.append(args[1].name) or evaluate(*args))
    capsys.readouterr()
    for more, expected in (
        ([], []),
        (["--no-cache"], ["copying", "arc_easy"]),
        (["--max-per-task", "4"], ["copying", "arc_easy"]),
    ):
        asked.clear()
        assert chat_eval.main([*flags, *more]) == 0
        assert asked == expected
    assert chat_eval.main([*flags, "--max-per-task", "4"]) == 0
    assert len(capsys.readouterr().out.splitlines()[-2:]) == 2


def test_a_question_that_is_judged_differently_is_asked_again(base, flags, monkeypatch):
    """Answers, length of replies, judges with their arguments and code: each decides the score."""
    asked, evaluate = [], chat.evaluate_chat_task
    monkeypatch.setattr(chat, "evaluate_chat_task", lambda *args: asked.append(args[1].name) or evaluate(*args))

    def is_asked(*, answer="one", judge=chat.exactly, max_tokens=4, chance=0.5) -> bool:
        task = chat.ChatTask("mine", [chat.ChatItem("Which?", answer, judge)], chance, max_tokens)
        asked.clear()
        words = [f"--{name}={value}" for name, value in (("run", "talk"), ("device", "cpu"), ("dtype", "float32"))]
        body = partial(chat.evaluate_chat, groups={"mine": {"mine": lambda most: task}}, benchmarks={}, chatcore={})
        assert command("chat_eval", ChatEvalSettings, lambda settings, errors: body(settings, errors), "")(words) == 0
        return bool(asked)

    assert [is_asked(), is_asked()] == [True, False]
    with_tests = [{"judge": partial(judge, tests)} for tests in "ab"]
    others = [{"answer": "two"}, {"max_tokens": 5}, {"chance": 0.25}, {"judge": judge_by_tests}, *with_tests]
    more = {}
    for change in others:  # one at a time: each call differs from the one before in one fact
        more |= change
        assert is_asked(**more), more
        assert not is_asked(**more), more
    known = digest_of_code
    monkeypatch.setattr("nanogka.common.digest.digest_of_code", lambda name: f"{name == __name__}{known(name)}")
    assert is_asked(**more)


def judge(tests: str, reply: str, answer: str) -> bool:
    return reply == answer + tests


def judge_by_tests(reply: str, answer: str) -> bool:
    return reply == answer


def test_the_chance_level_is_not_that_of_the_few_questions_that_are_asked(base, flags, capsys):
    assert chat_eval.main([*flags, "--tasks", "counting", "--max-per-task", "1"]) == 0
    (task,), _ = results(base)
    assert task["items"] == 1
    assert task["chance"] == evaluations()["counting"](150).chance < 0.9


def test_a_stopped_evaluation_is_not_complete(base, flags, monkeypatch):
    evaluate = chat.evaluate_chat_task

    def stopped(model, task, ranks):
        if task.name == "arc_easy":
            raise KeyboardInterrupt
        return evaluate(model, task, ranks)

    monkeypatch.setattr(chat, "evaluate_chat_task", stopped)
    assert chat_eval.main(flags) == 130
    tasks, complete = results(base)
    assert ([task["name"] for task in tasks], complete) == (["copying"], False)


def test_programs_of_a_model_run_only_on_demand(flags, monkeypatch, capsys):
    asked = []
    monkeypatch.setitem(BENCHMARKS, "humaneval", lambda source: asked.append(source))
    words = [*flags, "--tasks", "humaneval"]
    assert chat_eval.main(words) == 2
    assert asked == []
    assert chat_eval.main([*words, "--run-code"]) == 2  # the stand-in has no questions
    assert len(asked) == 1
    assert "--tasks" in capsys.readouterr().err
