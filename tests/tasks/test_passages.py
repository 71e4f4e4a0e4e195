"""The two tasks built from validation text: fair, repeatable, and made of the original text."""

import hashlib
import random

import pytest

from nanogka.evaluate.bundle import ITEMS
from tasks import passages
from tasks.passages import last_word, true_continuation

LETTERS = "etaoinshrdlucmfwypvbgk"


def make_texts(count=12, words=1000, seed=0):
    """Documents of made-up words, with line ends, double spaces and signs between some of them."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        made = ["".join(rng.choices(LETTERS, k=rng.randint(1, 9))) for _ in range(words)]
        texts.append("".join(word + rng.choice([" "] * 8 + ["\n", "  ", ", ", ".\n\n   "]) for word in made))
    return texts


TEXTS = make_texts()


def test_the_true_choice_continues_the_passage_and_the_others_come_from_other_documents():
    items = true_continuation(TEXTS, items=40)
    assert len(items) == 40
    for item in items:
        ITEMS["multiple_choice"].validate_python(item, strict=True)
        whole = item["query"] + " " + item["choices"][item["gold"]]
        (home,) = [i for i, text in enumerate(TEXTS) if whole in text]
        before, after = TEXTS[home].split(whole)
        assert before[-1:].strip() == after[:1].strip() == "", "a cut is between words"
        for place, choice in enumerate(item["choices"]):
            assert any(choice in text for i, text in enumerate(TEXTS) if (i == home) == (place == item["gold"]))
        homes = [i for choice in item["choices"] for i, text in enumerate(TEXTS) if choice in text]
        assert len(set(homes)) == len(item["choices"]) == 4


def test_lengths_are_in_range_and_do_not_give_the_answer_away():
    items = true_continuation(make_texts(60), items=300)
    assert all(500 <= len(item["query"]) <= 900 for item in items)
    lengths = [len(choice) for item in items for choice in item["choices"]]
    assert 120 <= min(lengths) < 125
    assert 195 < max(lengths) <= 200
    for extreme in (max, min):
        right = sum(extreme(range(4), key=lambda i: len(item["choices"][i])) == item["gold"] for item in items)
        assert right / len(items) < 0.25 + 4 * (0.25 * 0.75 / len(items)) ** 0.5
    for item in items:
        # to the nearest word's end, so that a score cannot live on the choices' lengths
        true = len(item["choices"][item["gold"]])
        assert all(abs(len(choice) - true) <= 12 for choice in item["choices"])
    golds = [item["gold"] for item in items]
    assert all(golds.count(place) > len(items) / 4 - 4 * (len(items) * 0.1875) ** 0.5 for place in range(4))


def test_the_last_word_ends_its_passage():
    items = last_word(TEXTS, items=40)
    assert len(items) == 40
    for item in items:
        ITEMS["language_modeling"].validate_python(item, strict=True)
        assert item["continuation"].isalpha()
        assert len(item["continuation"]) >= 3
        whole = item["context"] + " " + item["continuation"]
        assert any(whole in text and not text[text.index(whole) + len(whole)].isalnum() for text in TEXTS)
        assert 500 <= len(item["context"]) <= 900


@pytest.mark.parametrize("length,ends", [(119, False), (120, True), (163, True), (200, True), (201, False)])
def test_a_continuation_of_120_to_200_characters_is_in_range(length, ends):
    text = "x" * length + " y"
    assert passages._shorten(text, 150) == (text[:length] if ends else None)


@pytest.mark.parametrize("make", [true_continuation, last_word])
def test_the_same_texts_and_seed_give_the_same_items(make):
    assert make(iter(TEXTS)) == make(TEXTS)
    assert make(TEXTS, seed=1) != make(TEXTS)
    assert len(make(TEXTS, items=5)) == 5


@pytest.mark.parametrize("texts,found", [(TEXTS[:3], 3), (["too short"] * 9, 0), ([TEXTS[0]] * 9, 1)])
def test_too_little_text_for_choices_is_a_clear_error(texts, found):
    with pytest.raises(ValueError, match=f"true_continuation: got {found} documents"):
        true_continuation(texts)


@pytest.mark.parametrize("letters,found", [(1121, 1), (1120, 0)])
def test_a_text_has_a_passage_if_its_longest_context_and_continuation_fit(letters, found):
    """900 characters of context, a space, and 220 more to find the end of a word."""
    text = ("word " * 225)[:letters]
    assert len(passages._passages([text], random.Random(0), lambda passage: True)) == found


def test_a_continuation_in_which_no_word_ends_makes_no_item():
    uncut = "word " * 130 + "x" * 900
    made = true_continuation([uncut, *TEXTS[:5]], items=1000)
    choices = [choice for item in made for choice in item["choices"]]
    assert choices
    assert None not in choices
    assert not any("x" * 50 in choice for choice in choices)


def test_the_items_are_those_of_the_documents_scores():
    """A score is comparable with earlier ones only if all of these stay."""
    assert (passages.CONTEXT_CHARS, passages.CONTINUATION_CHARS, passages.CHOICES) == ((500, 900), (120, 200), 4)
    assert (passages.DEFAULT_ITEMS, passages.SEED, passages.MAX_DOCUMENTS) == (200, 2605, 5000)
    for make, digest in ((true_continuation, "14d2c994fc98ef1e"), (last_word, "2f9a0208769a38bb")):
        assert hashlib.sha256(repr(make(TEXTS, items=30)).encode()).hexdigest()[:16] == digest
