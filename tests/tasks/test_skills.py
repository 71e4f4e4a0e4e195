"""The embedded skills: answers are right by another way of computing them, and what is held out is never trained."""

import calendar
import datetime
import importlib
import importlib.util
import inspect
import random
import re
import sys
from fractions import Fraction
from functools import cache
from unittest import mock

import pytest

from tasks import limits, python_words
from tasks.skills import HELD_OUT, REWORDED, SKILLS, SPLITS, TRAIN, conversations, evaluations, showcase
from tasks.words import real_words

IN_SECONDS = {"minutes": 60, "seconds": 1, "hours": 3600, "days": 86_400, "weeks": 604_800}
IN_METERS = {"kilometers": 1000, "meters": 1, "centimeters": Fraction(1, 100), "millimeters": Fraction(1, 1000)}
IN_INCHES = {"yards": 36, "feet": 12, "inches": 1}
SYSTEMS = (IN_SECONDS, IN_METERS, IN_INCHES, {"kilograms": 1000, "grams": 1}, {"liters": 1000, "milliliters": 1})
SYSTEMS += ({"years": 12, "months": 1}, {"years": 52, "weeks": 1}, {"dollars": 100, "cents": 1})
LONG = {"h": "hours", "min": "minutes", "sec": "seconds", "km": "kilometers", "m": "meters", "cm": "centimeters"}
LONG |= {"mm": "millimeters", "kg": "kilograms", "kilos": "kilograms", "g": "grams", "l": "liters", "ml": "milliliters"}
LONG |= {"ft": "feet", "in": "inches", "euros": "dollars", "kilometres": "kilometers", "metres": "meters"}
LONG |= {"centimetres": "centimeters", "litres": "liters", "an hour": "hours", "a minute": "minutes", "a day": "days"}
LONG |= {"a week": "weeks", "a year": "years"}


def drawn(name, count=400):
    rng = random.Random(name)
    return [SKILLS[name].draw(rng) for _ in range(count)]


def calculated(expression):
    """The value of an expression as a question writes it, as an exact fraction."""
    for sign, written in (("*", r"multiplied by|times|x"), ("/", "divided by"), ("+", "plus|and"), ("-", "minus")):
        expression = re.sub(written, sign, expression)
    numbers = [Fraction(text) for text in re.split(r"\s*[-+*/]\s*", expression)]
    total, (sign, *_) = numbers[0], re.findall(r"[-+*/]", expression)
    for number in numbers[1:]:
        total = {"+": total + number, "-": total - number, "*": total * number}.get(sign) or (
            total / number if sign == "/" else Fraction(0)
        )
    return total


def test_words_are_spelled_counted_and_repeated_right():
    for item in drawn("spelling"):
        assert item.answer == "".join(f"{letter} " for letter in item.slots["text"])[:-1]
    for item in drawn("counting"):
        letter, word = (item.slots[name].strip('"') for name in ("letter", "word"))
        assert item.answer == str(len(word.split(letter)) - 1) == item.reply()[1].text
    for item in drawn("copying"):
        assert item.answer == item.slots["text"]


@pytest.mark.parametrize("name", ["addition", "arithmetic"])
def test_sums_are_right_and_the_calculator_finds_them(name):
    for item in drawn(name):
        assert Fraction(item.answer) == calculated(item.slots["expression"])
        assert [part.type for part in item.reply()] == ["python", "python_output", "text"]
        assert item.reply()[1].text == item.answer
        assert item.reply(calculator=False) == item.answer


def test_dates_are_those_of_the_calendar():
    months, days = list(calendar.month_name), list(calendar.day_name)
    for item in drawn("dates", 900):
        kind, _, what = item.key.partition(" ")
        if item.key.startswith("length"):
            number = months.index(item.slots["text"].capitalize())
            assert item.answer.startswith(str(calendar.monthrange(2023, number)[1]))
        elif item.key.startswith("leap"):
            assert item.answer == ("Yes." if calendar.isleap(int(item.slots["text"])) else "No.")
        elif kind in ("1", "-1"):  # the next or the previous one
            names = months[1:] if what in months else days
            assert names[(names.index(what) + int(kind)) % len(names)] + "." == item.answer
        else:
            month = months.index(item.slots["month"].capitalize())
            first, second = (datetime.date(2024, month, int(item.slots[name])) for name in ("first", "second"))
            assert item.answer == f"{(second - first).days} days."


def test_units_are_converted_right():
    for item in drawn("units", 900):
        source, target = (LONG.get(item.slots[name], item.slots[name]) for name in ("unit", "to"))
        system = next(system for system in SYSTEMS if {source, target} <= set(system))
        count, number = item.slots.get("count") or 1, item.answer.split()[0]
        assert Fraction(number) * system[target] == int(count) * system[source]
        assert item.answer == f"{number} {target}."


@cache
def written_in_python(name):
    """A module of the library without its counterpart in C, whose documentation may be other."""
    with mock.patch.dict(sys.modules, {f"_{name}": None}):
        spec = importlib.util.find_spec(name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def test_sentences_on_python_are_of_the_documentation_and_functions_exist():
    assert len(python_words.sentences()) > 30
    for name, sentence in python_words.sentences().items():
        module, _, function = name.rpartition(".")
        found = getattr(written_in_python("posixpath" if module == "os.path" else module), function)
        assert " ".join(inspect.getdoc(found).split()).startswith(sentence)
    for name in python_words.functions():
        module, _, attribute = name.rpartition(".")
        owner = importlib.import_module("builtins")
        if module:
            owner = getattr(owner, module, None) or importlib.import_module(module)
        assert hasattr(owner, attribute)


def test_every_greeting_of_the_readme_is_a_question_of_some_split():
    rng = random.Random(0)
    asked = {SKILLS["small_talk"].ask(rng, split)[0] for split in (TRAIN, HELD_OUT) for _ in range(8000)}
    assert {"Hello", "hi", "Hello, who are you?", "Who are you?", "What can you do?", "thanks"} <= asked


@pytest.mark.parametrize("name", SKILLS)
def test_no_held_out_item_is_ever_in_training_whatever_the_seed(name):
    skill, keys = SKILLS[name], {}
    for split in (TRAIN, *skill.measured):
        items = [skill.ask(rng, split)[1] for rng in map(random.Random, range(3)) for _ in range(300)]
        keys[split] = {item.key for item in items if not item.closed}
    for split in skill.measured:
        assert not keys[TRAIN] & keys[split]
    assert name == "knowledge" or (keys[TRAIN] and all(keys[split] for split in skill.measured))


@pytest.mark.parametrize("name", SKILLS)
def test_new_wordings_are_not_among_the_known_ones(name):
    for item in drawn(name):
        assert not {text.strip(".?") for text in item.wordings.known} & {text.strip(".?") for text in item.wordings.new}


@pytest.mark.parametrize("sign", [" + ", " * "])
def test_the_same_numbers_in_another_order_are_the_same_item(sign):
    name = "addition" if sign == " + " else "arithmetic"
    keys = {}
    for item in drawn(name, 6000):
        numbers = re.findall(r"\d+", item.code)
        if sign.strip() in item.code:
            keys.setdefault(tuple(sorted(numbers, key=int)), set()).add(item.key)
    assert len(keys) > 100
    assert all(len(found) == 1 for found in keys.values())


@pytest.mark.parametrize("name", evaluations())
def test_an_evaluation_asks_one_question_per_item_and_one_answer_does_not_do(name):
    task = evaluations()[name](100)
    assert len({item.prompt for item in task.items}) == len(task.items) >= 40
    assert task.chance < 0.8
    trained = {turn.content for c in conversations(TRAIN, 2000, seed=1) for turn in c.turns[::2]}
    assert not trained & {item.prompt for item in task.items}


def test_a_task_has_one_prompt_per_item(monkeypatch):
    asked = []
    skill = SKILLS["addition"]
    monkeypatch.setattr(
        type(skill), "ask", lambda self, rng, split: asked.append(original(self, rng, split)) or asked[-1]
    )
    task = skill.task(HELD_OUT, 60)
    key_of = {prompt: item.key for prompt, item in asked}
    assert len({key_of[item.prompt] for item in task.items}) == len(task.items) == 60


original = type(SKILLS["addition"]).ask


def test_honest_answers_are_the_same_few_for_everything_else():
    answers = {item.answer for item in drawn("limits")}
    assert answers == {limits.UNKNOWN, limits.CANNOT, limits.NO_OPINION, limits.UNCLEAR}


def test_words_are_real_and_have_three_to_eight_letters():
    assert {"banana", "print", "cheese"} <= {*real_words(), "print"}
    assert all(3 <= len(word) <= 8 and word.islower() for word in real_words())
    assert len(real_words()) > 700


def test_conversations_without_the_calculator_are_the_same_ones():
    pairs = list(zip(conversations(TRAIN, 70, 1), conversations(TRAIN, 70, 1, calculator=False)))
    assert all([message.text for message in one.turns] == [m.content for m in other.turns] for one, other in pairs)
    assert 20 < sum(one != other for one, other in pairs) < 60


def test_conversations_have_up_to_four_exchanges_and_every_skill():
    made = conversations(TRAIN, 2000, seed=2)
    lengths = {len(conversation.turns) // 2 for conversation in made}
    assert lengths == {1, 2, 3, 4}
    assert made == conversations(TRAIN, 2000, seed=2) != conversations(TRAIN, 2000, seed=3)
    assert set(SPLITS) == {TRAIN, HELD_OUT, REWORDED}


def test_what_is_shown_first_is_held_out():
    trained = {turn.content for c in conversations(TRAIN, 3000, seed=1) for turn in c.turns[::2]}
    shown = [conversation.turns[0].content for conversation in showcase()]
    assert len(shown) >= 4
    assert not trained & set(shown)
