"""Spelling and counting letters, with the calculator, and copying.

The model knows few of the letters of its tokens, but it copies well. So the calculator spells and counts.

A text that is copied into a call or a reply begins with a blank. A word after a blank has the same tokens everywhere,
so the model can copy them. Without the blank it would have to learn two ways to cut each word.
"""

import random

from nanogka.generate.calculator import calculated
from tasks.items import Item, Wordings
from tasks.words import LETTERS, any_name, any_word

SPELL = Wordings(
    known=(
        "spell {text}.",
        "spell {text}.",
        "how do you spell {text}?",
        "how do you spell {text}?",
        "how is {text} spelled?",
        "spell the word {text}.",
        "spell: {text}",
        "spell the name {text}.",
        "how do i spell {text}?",
        "what are the letters of {text}?",
        "what letters are in {text}?",
        "can you spell {text}?",
        "can you spell {text} for me?",
        "spell {text} please.",
        "my word is {text}, spell it.",
        "which letters does {text} have?",
        "spelling of {text}?",
        "how would you spell {text}?",
        "spell {text} letter by letter.",
    ),
    new=(
        "spell out {text}.",
        "please spell {text} for me.",
        "letter by letter: {text}",
        "what is the spelling of {text}?",
        "give me the letters of {text}.",
        "i want you to spell {text}.",
        "how does one spell {text}?",
    ),
)
COUNT = Wordings(
    known=(
        "how many {letter} are in {word}?",
        "how many {letter} are in {word}?",
        "how many {letter}'s are in {word}?",
        "how many {letter}'s in {word}?",
        "how many {letter}s are in {word}?",
        "how many {letter}s are there in {word}?",
        "how many {letter} in {word}?",
        "how many letters {letter} are in {word}?",
        "how many {letter} does {word} have?",
        "how often is {letter} in {word}?",
        "count the {letter} in {word}.",
        "count the {letter}'s in {word}.",
        "count the letter {letter} in {word}.",
        "count {letter} in {word}.",
        "how many times is {letter} in {word}?",
        "how many times does {letter} appear in {word}?",
        "number of {letter} in {word}.",
    ),
    new=(
        "how many times does {letter} occur in {word}?",
        "how many times is the letter {letter} in the word {word}?",
        "count how many {letter} are in {word}.",
        "how many {letter} has {word}?",
        "how often does {word} contain {letter}?",
    ),
)
REPEAT = Wordings(
    known=(
        "repeat: {text}",
        "repeat {text}",
        "repeat after me: {text}",
        "say {text}",
        "say {text}",
        "say: {text}",
        "say {text}.",
        "say {text}!",
        "write {text}",
        "type {text}",
        "copy {text}",
        "copy this: {text}",
        'say "{text}"',
        "echo {text}",
        "can you say {text}?",
        "repeat the words {text}",
        "repeat the word {text}",
        "repeat {text} please.",
    ),
    new=("please say {text}", "repeat this: {text}", "print {text}", "can you repeat {text}?", "now say {text}"),
)


def spelling(rng: random.Random) -> Item:
    """The letters of a word or a name, with the calculator."""
    word = any_name(rng) if rng.random() < 0.2 else _cased(any_word(rng), rng)
    shown = f'"{word}"' if rng.random() < 0.1 else word
    code = f'" ".join({_quoted(shown)})'
    letters = calculated(code)
    # The result begins with two blanks if the word has one. The reply begins with one, as all its letters do.
    return Item(word.lower(), SPELL, letters.removeprefix(" "), {"text": shown}, code)


def counting(rng: random.Random) -> Item:
    """The count of a letter in a word, with the calculator."""
    word = any_word(rng)
    letter = rng.choice(word if rng.random() < 0.85 else LETTERS)
    sought = letter.upper() if rng.random() < 0.1 else letter
    if letter != word[0] and rng.random() < 0.1:  # a capital that is sought itself would be counted by its case
        word = word.capitalize()
    quoted, shown = rng.choice(((sought, word),) * 3 + ((f'"{sought}"', word), (f'"{sought}"', f'"{word}"')))
    code = f'{_quoted(shown)}.count("{letter}")'
    return Item(f"{letter} in {word.lower()}", COUNT, calculated(code), {"letter": quoted, "word": shown}, code)


def copying(rng: random.Random) -> Item:
    """One to four words, or letters, or numbers."""
    kind = rng.random()
    if kind < 0.1:
        text = " ".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 5)))
    elif kind < 0.25:
        text = " ".join(_number(rng) for _ in range(rng.choice((1, 1, 2, 3))))
    elif kind < 0.35:
        text = any_name(rng)
    else:
        words = [_cased(any_word(rng), rng) for _ in range(rng.choice((1, 1, 2, 2, 2, 3, 3, 3, 4)))]
        text = " ".join(words)
    return Item(text.lower(), REPEAT, f" {text}", {"text": text})


def _quoted(shown: str) -> str:
    """A word of the question as a text of the call.

    A word in quotes stays as it is. Any other word follows a blank in the question, and does so in the call.
    """
    return shown if shown.startswith('"') else f'" {shown}"'


def _cased(word: str, rng: random.Random) -> str:
    """A word in small letters, sometimes with a capital letter, seldom in capitals."""
    kind = rng.random()
    return word.upper() if kind < 0.03 else word.capitalize() if kind < 0.15 else word


def _number(rng: random.Random) -> str:
    """A number of up to 7 digits. In one case of eight all its digits are equal, so that such copies end."""
    length = rng.randint(1, 7)
    return rng.choice("123456789") * length if rng.random() < 0.125 else str(rng.randrange(10**length))
