"""The embedded skills: answers are right by another way of computing them, held-out items are never trained on."""

import dataclasses
import importlib.util
import inspect
import random
import re
import sys
from functools import cache
from unittest import mock

import pytest

from tasks.skills import HELD_OUT, SKILLS, SPLITS, conversations


@cache
def written_in_python(name):
    """A module of the library without its counterpart in C, whose documentation may be other."""
    with mock.patch.dict(sys.modules, {f"_{name}": None}):
        spec = importlib.util.find_spec(name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def look_up(question):
    """The answer to a question on the world or on Python, from the function itself."""
    named = re.search(r"([a-z0-9_.]+)\.([A-Za-z0-9_]+)", question)
    if named is None:
        return "I don't know."
    function = getattr(written_in_python("posixpath" if named[1] == "os.path" else named[1]), named[2], None)
    return " ".join(inspect.getdoc(function).split("\n\n")[0].split()) if function else "I don't know."


def solve(name, slots):
    """The answer, computed from what the question is filled with."""
    if name == "spelling":
        return "".join(f"{letter} " for letter in slots[0])[:-1]
    if name == "counting":
        letter, word = slots
        return str(len(word.split(letter)) - 1)
    if name == "copying":
        return slots[0]
    return str(len("".join("x" * int(number) for number in slots[0].split(" + "))))


@pytest.mark.parametrize("name", [name for name in SKILLS if name != "small_talk"])
def test_answers_are_right(name):
    rng = random.Random(0)
    for _ in range(500):
        item = SKILLS[name].draw(rng)
        if name == "knowledge":  # the first sentence of the first paragraph
            assert look_up(item.slots[0]).startswith(item.answer)
        else:
            assert item.answer == solve(name, item.slots)
        if name in ("counting", "addition"):  # the calculator finds it
            assert [part.type for part in item.reply] == ["python", "python_output", "text"]
            assert item.reply[1].text == item.answer


def test_every_greeting_of_the_readme_is_a_question_of_some_split():
    rng = random.Random(0)
    asked = {SKILLS["small_talk"].draw(rng).slots[0] for _ in range(20_000)}
    assert {"Hello", "Hello!", "Hello, who are you?", "Who are you?", "What can you do?", "Hi, I am Ada."} <= asked


@pytest.mark.parametrize("name", SKILLS)
def test_no_held_out_item_is_ever_in_training_whatever_the_seed(name):
    slots = "{} in {}" if name == "counting" else "{}"
    bare = dataclasses.replace(SKILLS[name], wordings=(slots,))  # a question is then the item alone
    asked = {
        split: {bare.ask(rng, split)[0] for rng in map(random.Random, range(3)) for _ in range(400)} for split in SPLITS
    }
    assert asked["train"]
    assert asked[HELD_OUT]
    assert not asked["train"] & asked[HELD_OUT]


def test_the_same_sum_in_another_order_is_the_same_item():
    addition = SKILLS["addition"]
    rng = random.Random(0)
    by_summands = {}
    for _ in range(4000):
        item = addition.draw(rng)
        splits = by_summands.setdefault(tuple(sorted(item.slots[0].split(" + "))), {})
        splits[item.slots] = addition.split_of(item)
    orders = [splits for splits in by_summands.values() if len(splits) > 1]
    assert len(orders) > 100
    assert all(len(set(splits.values())) == 1 for splits in orders)


@pytest.mark.parametrize("name", SKILLS)
def test_questions_are_held_out_all_different_and_not_answered_by_one_answer(name):
    task = SKILLS[name].task(200)
    assert len({item.prompt for item in task.items}) == len(task.items)
    assert len(task.items) >= 60
    assert task.chance < 0.8
    trained = {c.turns[0].text for c in conversations("train", 4000, seed=1)}
    assert not trained & {item.prompt for item in task.items}


def test_conversations_without_the_calculator_are_the_same_ones():
    pairs = list(zip(conversations("train", 70, 1), conversations("train", 70, 1, calculator=False)))
    assert all([message.text for message in one.turns] == [m.content for m in other.turns] for one, other in pairs)
    assert sum(one != other for one, other in pairs) == 30  # counting, and addition twice
