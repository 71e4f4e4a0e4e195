"""The embedded skills: answers are right for the question as it is typed, and what is held out is never trained."""

import functools
import hashlib
import itertools
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest
from question_oracle import computed, converted, counted, dated, greeted, repeated, spelled

from nanogka.generate.calculator import calculate
from tasks import sums, words
from tasks.dates import MONTHS, WEEKDAYS
from tasks.items import Wordings, as_typed, is_for, neat
from tasks.promise import PROMISE, REFUSAL
from tasks.skills import HELD_OUT, KNOWN, REWORDED, SKILLS, TRAIN, conversations, evaluations
from tasks.small_talk import TALK
from tasks.words import any_name, any_word, names, real_words

ORACLES = {
    "spelling": spelled,
    "counting": counted,
    "copying": repeated,
    "units": converted,
    "dates": dated,
    "names": greeted,
}
MEASURED = [name for name, skill in SKILLS.items() if skill.measured]


def asked(name, split, count=400):
    """The first questions that a skill asks. Further tests take those that were made before."""
    rng, made = started(name, split)
    made += [SKILLS[name].ask(rng, split) for _ in range(count - len(made))]
    return made[:count]


@functools.cache
def started(name, split):
    return random.Random(f"{name} {split}"), []


@functools.cache
def taught_conversations(split):
    return conversations(split, 3000, seed=1)


@pytest.mark.parametrize("split", [TRAIN, HELD_OUT, REWORDED])
@pytest.mark.parametrize("name", ORACLES)
def test_the_answer_is_that_of_the_question_as_it_is_typed(name, split):
    for question, item in asked(name, split):
        assert item.answer.strip() == ORACLES[name](question), question
        assert not item.code or item.reply()[2].text == item.reply(calculator=False) == item.answer


@pytest.mark.parametrize("split", [TRAIN, HELD_OUT, REWORDED])
@pytest.mark.parametrize("name", ["addition", "arithmetic"])
def test_the_calculator_gives_the_value_of_the_question_with_four_decimals(name, split):
    for question, item in asked(name, split):
        exact = computed(question)
        assert exact is not None, question
        assert abs(Fraction(item.answer) - exact) <= Fraction(1, 20_000) + abs(exact) / 10**14, question
        assert exact.denominator > 1 or item.answer == str(int(exact))
        assert [part.type for part in item.reply()] == ["python", "python_output", "text"]
        assert item.reply()[1].text == item.answer == item.reply(calculator=False)


@pytest.mark.parametrize("name", [*SKILLS, "conversations"])
def test_a_seed_draws_the_questions_with_which_the_scores_were_measured(name, monkeypatch):
    """In every version of Python. After a change of the data, docs/RESULTS.md needs new scores, or says so."""
    monkeypatch.setattr(words, "real_words", words.everyday_words)  # the others are those of Python's documentation
    if name == "conversations":
        made = conversations(TRAIN, 1000, seed=5)
        drawn = [[(said.role, [part.text for part in said.parts]) for said in one.messages] for one in made]
    else:
        rng = random.Random(f"{name} {TRAIN}")  # not `asked`, whose questions have the other words
        questions = [SKILLS[name].ask(rng, TRAIN) for _ in range(2000)]
        drawn = [(question, item.answer, item.code) for question, item in questions]
        tasks = [SKILLS[name].task(split, 12) for split in SKILLS[name].measured]
        drawn += [(task.max_tokens, [item.prompt for item in task.items]) for task in tasks]
    lines = (Path(__file__).parent / "drawn.txt").read_text(encoding="utf-8").splitlines()
    assert f"{name} {hashlib.sha256(repr(drawn).encode()).hexdigest()[:16]}" in lines


@pytest.mark.parametrize("name", ["limits", "near_misses"])
def test_what_is_refused_is_no_question_that_another_skill_answers(name):
    for split in (TRAIN, HELD_OUT, REWORDED):
        for question, item in asked(name, split):
            assert item.answer == REFUSAL
            assert not item.code or (item.code.endswith("/0") and calculate(item.code) is None)
            answers = [read(question) for read in (spelled, counted, computed, converted, dated, greeted)]
            assert answers == [None] * len(answers), question


# how many of 4,000 near misses are of a kind, at least, and the pattern of the kind
NEAR_KINDS = {
    "a letter that is no letter": (
        60,
        r"how many (?:letters|vowels|words|syllables) (?:are |are there |do you see |)in",
    ),
    "units that are not promised": (6, r"(?:convert|what is|how many \w+ are) .*\b(?:miles?|pounds?|ounces)\b"),
    "one of a unit": (60, r"how many \w+ (?:are in|are there in|in|are|is) (?:a|an|one|1) \w+$"),
    "units without a pair": (
        6,
        r"how many (?:hours|seconds|minutes|weeks|days) [a-z ]*(?:years?|days?|week|month|months)$",
    ),
    "a division by 0": (12, r"(?:^|what is |calculate )[\d.,]+ ?/ ?0$"),
    "a percentage": (6, r"[\d.,]+(?:%| percent) of [\d.,]+$"),
    "a power": (2, r"(?:^|what is |what's |calculate )[\d.,]+(?: ?\^ ?|\*\*)\d+$"),
    "repeated how": (12, r"(?:say|repeat|write|print|type) \w+ (?:twice|slowly|backwards|(?:ten|three|\d+) times)$"),
    "a feeling, not a name": (6, r"\b(?:i'm|im|i am) (?:sad|tired|happy|hungry|bored|fine|angry|sick|late|hot)\b"),
    "what follows no day": (10, r"what (?:comes|follows) after (?!monday)\w+$"),
}


@pytest.mark.parametrize("kind", NEAR_KINDS)
def test_every_skill_has_near_misses_in_its_own_words(kind):
    least, pattern = NEAR_KINDS[kind]
    assert len({question for question in near_misses() if re.search(pattern, question)}) >= least


@functools.cache
def near_misses():
    return [question.lower().rstrip("?!. ") for question, _ in asked("near_misses", TRAIN, 4000)]


def test_people_introduce_themselves_in_small_letters_and_with_accents():
    typed = [question for question, _ in asked("names", TRAIN, 3000)]
    for begin in ("im", "i'm", "its", "hi im"):
        assert sum(bool(re.fullmatch(rf"{begin} \w+", question)) for question in typed) >= 2, begin
    assert sum(not question.isascii() for question in typed) > 60


def test_the_letters_of_words_meet_as_they_do_in_english():
    rng = random.Random(0)
    seen = " ".join(any_word(rng) for _ in range(4000))
    for letters in "rh yt yn kn wr dge tch sch ps qu squ zz gh ght aw oy ui".split():
        assert seen.count(letters) >= 5, letters


def test_equal_digits_within_numbers_are_trained():
    code = [item.code for _, item in asked("addition", TRAIN, 1500)]
    assert sum(bool(re.search(r"([1-9])(?!\1)([1-9])\2\2", text)) for text in code) > 15


def test_one_of_every_unit_is_trained():
    larger = "hour minute day week year kilometer meter centimeter kilogram liter foot yard dollar"
    asked_for = [(question, item.answer) for question, item in asked("units", TRAIN, 1200)]
    assert {f"1 {unit}." for unit in larger.split()} <= {answer for _, answer in asked_for}
    one = {answer for question, answer in asked_for if re.search(r"\b(an?|one|1) (hour|day|week|inch)\b", question)}
    assert {"3600 seconds.", "1440 minutes.", "86400 seconds.", "168 hours.", "0.0833 feet."} <= one
    assert not any("e-" in answer for _, answer in asked_for)


def test_short_words_of_sentences_are_repeated():
    texts = [item.answer.split() for _, item in asked("copying", TRAIN, 1000)]
    assert all(sum(word in text for text in texts) >= 4 for word in ("I", "you", "is"))


def test_a_refusal_names_promised_skills_and_the_other_replies_name_all():
    skills = re.split(", | and ", REFUSAL.removeprefix("I cannot do that. I can ").rstrip("."))
    assert len(skills) == 5
    assert all(skill in PROMISE for skill in skills)
    told = {answer for answer, questions in TALK.items() if {"hello", "what can you do?"} & set(questions.split("; "))}
    assert len(told) == 2
    assert all(answer.endswith(PROMISE) for answer in told)


def test_a_text_that_is_copied_has_a_blank_before_it_on_both_sides():
    for question, item in asked("copying", TRAIN):
        assert item.answer in question
        assert (item.answer[0] == " ") == ('"' not in question)
    for question, item in asked("spelling", TRAIN) + asked("counting", TRAIN):
        word = re.search(r'(" \w+"|"\w+")', item.code)[0]
        assert (word.strip('"') if word[1] == " " else word) in question


def test_typing_changes_no_slot():
    rng, wording = random.Random(0), "{text}, letter by letter."
    typed = {as_typed(wording, rng) for _ in range(200)}
    assert len(typed) > 20
    assert all("{text}, letter by letter" in text for text in typed)


def test_who_writes_capital_letters_writes_a_capital_i():
    assert neat("hello, i am {name}. can i ask if i'm in it?") == "Hello, I am {name}. can I ask if I'm in it?"


def test_promised_numbers_and_words_are_trained():
    code = [item.code for _, item in asked("addition", TRAIN, 2000)]
    lengths = {len(re.sub(r"\D", "", number)) for text in code for number in re.split(r"[-+*/()]", text) if number}
    assert lengths == set(range(1, 8))
    assert any("." in text for text in code)
    rng = random.Random(0)
    assert set(range(3, 9)) <= {len(any_word(rng)) for _ in range(500)} <= set(range(3, 11))
    assert all(3 <= len(word) <= 10 and word.islower() for word in real_words())
    assert {"banana", "kitchen"} <= set(real_words())
    assert len(real_words()) > 700
    assert {any_name(rng).islower() for _ in range(50)} == {True, False}
    assert "Maria" in names()


@pytest.mark.parametrize("longest", [2, 3, 4, 7])
def test_a_decimal_number_has_at_most_so_many_digits_and_is_often_below_one(longest):
    rng = random.Random(0)
    drawn = [sums.number(rng, decimals=True, longest=longest) for _ in range(600)]
    assert all(re.fullmatch(r"\d+\.\d{0,2}[1-9]", number) for number in drawn)
    assert max(len(number) - 1 for number in drawn) == longest
    assert 60 < sum(number.startswith("0.") for number in drawn) < 200


def test_nearly_half_of_the_names_are_made_up():
    rng, known = random.Random(0), {name.lower() for name in names()}
    assert sum(any_name(rng).lower() not in known for _ in range(2000)) / 2000 == pytest.approx(0.45, abs=0.05)


def test_copies_have_up_to_four_words_three_numbers_and_five_letters():
    counts = {}
    for _, item in asked("copying", TRAIN, 3000):
        parts = item.key.strip('"').split()
        kind = "numbers" if parts[0].isdigit() else "letters" if max(map(len, parts)) == 1 else "words"
        counts.setdefault(kind, set()).add(len(parts))
    assert counts == {"numbers": {1, 2, 3}, "letters": {2, 3, 4, 5}, "words": {1, 2, 3, 4}}


def test_copies_of_repeated_digits_are_trained():
    results = [
        item.answer.strip() for name in ("addition", "arithmetic", "copying") for _, item in asked(name, TRAIN, 600)
    ]
    assert sum(bool(re.search(r"(\d)\1\1\1", result)) for result in results) > 30


@pytest.mark.parametrize("name", MEASURED)
def test_no_held_out_item_is_ever_in_training_whatever_the_seed(name):
    skill, keys = SKILLS[name], {}
    for split in (TRAIN, KNOWN, HELD_OUT, REWORDED):
        made = [skill.ask(rng, split) for rng in map(random.Random, range(2)) for _ in range(50)]
        keys[split] = {item.key for _, item in made + asked(name, split) if not item.closed}
        assert keys[split]
    assert not (keys[TRAIN] | keys[KNOWN]) & (keys[HELD_OUT] | keys[REWORDED])


def test_validation_conversations_hold_no_training_item():
    taught, validated = taught_conversations(TRAIN), conversations(HELD_OUT, 600, seed=0)
    assert not questions(taught) & questions(validated)
    # The item itself, whatever the words around it. Refused is the whole question: "write a letter" is no copy.
    taught, validated = questions(taught, refused=False), questions(validated, refused=False)
    for read in (spelled, repeated, greeted):
        trained, kept = ({text.lower() for text in map(read, found) if text} for found in (taught, validated))
        assert len(trained) > 50
        assert len(kept) > 10
        assert not trained & kept


def questions(made, refused=True):
    pairs = (pair for conversation in made for pair in zip(conversation.turns[::2], conversation.turns[1::2]))
    return {asked.content for asked, reply in pairs if refused or reply.text != REFUSAL}


@pytest.mark.parametrize("name", MEASURED)
def test_new_wordings_are_never_known_ones_and_training_has_both(name):
    rng, skill = random.Random(0), SKILLS[name]
    texts = {skill.draw(rng).wordings.draw(rng) for _ in range(2500)}
    drawn = {split: {text for text in texts if is_for(text, split)} for split in (TRAIN, KNOWN, REWORDED)}
    assert len(drawn[KNOWN]) > 3 * len(drawn[REWORDED]) > 20
    assert not drawn[KNOWN] & drawn[REWORDED]
    assert drawn[TRAIN] & drawn[KNOWN]
    assert drawn[TRAIN] & drawn[REWORDED]


def test_a_pattern_gives_every_combination_of_its_parts():
    rng, wordings = random.Random(0), Wordings(("[please |can you |]spell[| the word|: the name] {text}.",))
    drawn = {wordings.draw(rng) for _ in range(300)}
    begins, middles = ("please ", "can you ", ""), ("", " the word", ": the name")
    assert drawn == {f"{begin}spell{middle} {{text}}." for begin in begins for middle in middles}


def test_what_is_beyond_the_promise_is_trained_and_not_measured():
    runs = re.compile(r"(..?)\1\1")
    reaches = {
        "spelling": lambda item: len(item.key) > 8,
        "copying": lambda item: item.key.count(" ") > 2 or runs.search(item.key) is not None,
        "addition": lambda item: item.code.count("+") > 3,
    }
    for name, beyond in reaches.items():
        assert any(beyond(item) == item.beyond is True for _, item in asked(name, TRAIN))
        assert not any(beyond(item) for split in (HELD_OUT, REWORDED) for _, item in asked(name, split))


@pytest.mark.parametrize("sign", [" + ", " * "])
def test_the_same_numbers_in_another_order_are_the_same_item(sign):
    name = "addition" if sign == " + " else "arithmetic"
    rng, keys = random.Random(0), {}
    for item in (SKILLS[name].draw(rng) for _ in range(6000)):
        if set(re.sub(r"[\d.,]", "", item.code)) == {sign.strip()}:
            numbers = item.code.replace(",", "").split(sign.strip())
            keys.setdefault(tuple(sorted(numbers, key=float)), set()).add(item.key)
    assert len(keys) > 100
    assert all(len(found) == 1 for found in keys.values())


@pytest.mark.parametrize("split", [HELD_OUT, REWORDED])
def test_an_evaluation_asks_one_question_per_item_and_one_answer_does_not_do(split):
    trained = questions(taught_conversations(KNOWN if split == REWORDED else TRAIN)[:2000])
    for name, task_of in evaluations(split).items():
        task = task_of(100)
        assert len({item.prompt for item in task.items}) == len(task.items) >= 40, name
        assert task.name == name
        assert task.chance < 0.85 or {item.answer for item in task.items} == {REFUSAL}
        assert not trained & {item.prompt for item in task.items}
        first = [item.prompt for item in task.items[:3]]
        assert not any(re.search(r"\.\.\.$|\?\?$|[^=] \?$", text) for text in first)
        assert name.startswith(("limits", "near_misses")) or all(
            text[0] == text[0].upper() or text.startswith(("a ", "an ", "one "))  # a wording that begins with a slot
            for text in first
        )


def test_a_task_has_one_prompt_per_item(monkeypatch):
    asks, skill = [], SKILLS["addition"]
    original = type(skill).ask
    monkeypatch.setattr(type(skill), "ask", lambda *given, **more: asks.append(original(*given, **more)) or asks[-1])
    task = skill.task(HELD_OUT, 60)
    key_of = {prompt: item.key for prompt, item in asks}
    assert len({key_of[item.prompt] for item in task.items}) == len(task.items) == 60


def test_conversations_without_the_calculator_are_the_same_ones():
    pairs = list(zip(conversations(TRAIN, 70, 1), conversations(TRAIN, 70, 1, calculator=False)))
    assert all([message.text for message in one.turns] == [m.content for m in other.turns] for one, other in pairs)
    assert 20 < sum(one != other for one, other in pairs) < 65


def test_conversations_have_up_to_three_exchanges_and_every_skill():
    made = conversations(TRAIN, 2000, seed=2)
    assert {len(conversation.turns) // 2 for conversation in made} == {1, 2, 3}
    assert made[:300] == conversations(TRAIN, 300, seed=2) != conversations(TRAIN, 300, seed=3)
    said = {turn.text for turn in itertools.chain(*(conversation.turns[1::2] for conversation in made))}
    assert {REFUSAL, "You are welcome.", "Yes."} <= said


def test_conversions_have_promised_numbers_and_come_out_even_in_most_cases_of_a_larger_unit():
    counts = [re.split(r"[*/]", item.code)[0] for _, item in asked("units", TRAIN, 800)]
    assert max(len(re.sub(r"\D", "", count)) for count in counts) <= 7
    codes = [item.code for _, item in asked("units", TRAIN, 800)]
    larger = [Fraction(code.replace(",", "")) for code in codes if "/" in code and "." not in code]
    assert sum(value.denominator == 1 for value in larger) > 0.5 * len(larger)


def test_what_must_be_learned_by_heart_is_asked_often():
    """The names of one unit and the order of weekdays and months: no calculator helps there."""
    order = [item for _, item in asked("dates", TRAIN, 800) if item.answer.rstrip(".") in {*MONTHS, *WEEKDAYS}]
    assert 0.5 * 800 < len(order) < 0.65 * 800
    ones = [item for _, item in asked("units", TRAIN, 800) if item.answer.startswith("1 ")]
    assert 0.03 * 800 < len(ones) < 0.12 * 800


def test_what_repeats_a_part_three_times_is_trained_and_not_measured():
    """Copies of such texts lose count. Zeros, as in a million, are promised."""
    texts = {"spelling": "", "counting": "", "copying": "", "addition": "", "arithmetic": "", "units": ""}
    for name in texts:
        pattern = r"([a-z0-9]{1,2}?)\1\1" if name in ("spelling", "counting", "copying") else r"([1-9])\1{5}"
        trained = [f"{item.slots} {item.code} {item.answer}".lower() for _, item in asked(name, TRAIN, 3000)]
        measured = [f"{item.slots} {item.code} {item.answer}".lower() for _, item in asked(name, HELD_OUT, 3000)]
        texts[name] = [sum(bool(re.search(pattern, text)) for text in found) for found in (trained, measured)]
    assert all(trained > 2 and measured == 0 for trained, measured in texts.values()), texts
    assert any("000000" in item.code for _, item in asked("addition", HELD_OUT, 3000))


def test_a_division_by_zero_is_called_and_then_refused():
    rng = random.Random(4)
    for _ in range(200):
        item = sums.division_by_zero(rng)
        call, answer = item.reply()
        assert (call.type, call.text, answer.text) == ("python", item.code, REFUSAL)
        assert re.fullmatch(r"[\d,.]+/0", item.code)
        assert calculate(item.code) is None
    assert sum(item.code.endswith("/0") for _, item in asked("near_misses", TRAIN, 2000)) > 25


def test_a_sum_with_a_repeated_digit_has_two_numbers_above_zero(monkeypatch):
    monkeypatch.setattr(sums, "_repeated", lambda rng: 3)
    rng = random.Random(1)
    rng.random = lambda: 0.0
    assert {sums.addition(rng).code for _ in range(99)} == {"1+2", "2+1"}


def test_the_first_messages_take_no_broken_reply_for_a_right_one():
    text = (Path(__file__).parent / "first_messages.txt").read_text("utf-8")
    lines = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len({message for message, _ in lines}) == 176
    broken = ("Hello,re!", "Hello", "I can", "I cannot do", "I am fine", "", " ", "1 2 3 ", "Good")
    assert [(message, reply) for message, right in lines for reply in broken if re.fullmatch(right, reply)] == []
