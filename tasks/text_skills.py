"""Spelling and counting letters, with the calculator, and copying.

The model knows few of the letters of its tokens, but it copies well. So the calculator spells and counts.

A text that is copied into a call or a reply begins with a blank. A word after a blank has the same tokens everywhere,
so the model can copy them. Without the blank it would have to learn two ways to cut each word.
"""

import random
import re

from nanogka.generate.calculator import calculated
from tasks.items import Item, Wordings
from tasks.words import LETTERS, any_name, any_word

PROMISED, PROMISED_PARTS = 8, 3  # letters of a word to spell, words to repeat
# words of sentences that are repeated, too short to be spelled; without "for", which begins a wish at the end
SMALL = "I I you me my we he she it is are was to of in on at by with the the not so no your and am do".split()
RUN = re.compile(r"(..?)\1\1")  # one or two characters three times in a row: a copy may lose count

SPELL = Wordings(
    (
        "spell {text}.",
        "spell {text}.",
        "[please |now |just |]spell[| out| the word| the name|:] {text}.",
        "[please |now |just |]spell[| the word| the name| this word:| this:] {text}[ please| for me| letter by "
        "letter].",
        "[can|could|would|will] you [|please ]spell[| out| the word| the name] {text}[| please| for me| letter "
        "by letter]?",
        "how [do|would|should|can] [you|i|you|we] spell[| out| the word| the name] {text}?",
        "how [does one spell|to spell|is it you spell] {text}?",
        "how is[| the word| the name] {text} [spelled|written]?",
        "[what is|what's|tell me|give me|show me] the spelling of[| the word| the name] {text}.",
        "[|the |correct ]spelling of[| the word| the name] {text}?",
        "[what are|tell me|give me|show me|list|write] [|all ]the letters [of|in][| the word| the name] {text}.",
        "[what|which] letters [are in|make up][| the word| the name] {text}?",
        "[what|which] letters does[| the word| the name] {text} have?",
        "[spelling|letter by letter|the word to spell is|my name|spell my name|spell this word]: {text}",
        "[my word|the word|my name|the next word] is {text}[, spell it|. spell it|, please spell it|. how do "
        "you spell it]",
        "i [want|need|would like|'d like] [you to|to know how to|help to] spell {text}.",
        "i [do not|don't] know how to spell {text}.",
    )
)
COUNT = Wordings(
    (
        "how many {letter} are in {word}?",
        "how many {letter}[|'s|s|s] [are in|are there in|in|do you see in][| the word| the name] {word}?",
        "how many [letters|letter|letters|letter] {letter}[|'s] [are in|are there in|in][| the word] {word}?",
        "how many [|letters |letter ]{letter}[|'s|s] [does|do][| the word] {word} [have|contain]?",
        "how many {letter}[|'s|s] [does|do][| the word| the name] {word} [have|contain]?",
        "how many {letter} has {word}?",
        "how [often|many times] [is|do you see][| the letter] {letter} in[| the word| the name] {word}?",
        "how [often|many times] does[| the letter] {letter} [appear|occur] in[| the word| the name] {word}?",
        "how [often|many times] does[| the word] {word} [contain|have][| the letter] {letter}?",
        "[please |can you |now |]count[| the| all the| how many| the letter| the letters] {letter}[|'s] in[| "
        "the word| the name] {word}.",
        "[please |can you |]count how many [|times ]{letter}[|'s|s] [are|appear|occur] in[| the word] {word}.",
        "[tell me|do you know|say] how many {letter}[|'s|s] are in[| the word] {word}.",
        "[|the |what is the |tell me the |give me the ][number|count] of[| the letter| letters] {letter}[|'s|"
        "s] in[| the word] {word}?",
        "in[| the word] {word}, how many {letter}[|'s|s] are there?",
    )
)
REPEAT = Wordings(
    (
        "say {text}",
        "repeat {text}",
        "[please |now |just |]say[| the word| the words|:| this:] {text}[||!|.]",
        "[please |now |just |]repeat[| the word| the words|:| this:| after me:| after me| the following:] "
        "{text}[||!|.]",
        "[please |now |just |][write|type|copy|echo|print|output][||:| this:| the words] {text}[||.]",
        "[say|repeat|write|type|copy] {text} please.",
        "[say|repeat|write|type|copy] {text} please.",
        "[say|repeat|write|type|copy] {text}[ please| for me].",
        "[can|could|would|will] you [|please ][say|repeat|write|type|copy|echo|print][|| the word| the words] "
        "{text}[|| please| for me]?",
        "i [want|would like|need] you to [say|repeat|write|type|copy|print] {text}.",
        "[please |now |just |][repeat this text|copy this text|say this after me|say after me|repeat exactly|"
        "write down|say back|type this]: {text}",
    )
)


def spelling(rng: random.Random) -> Item:
    """The letters of a word or a name, with the calculator."""
    word = any_name(rng) if rng.random() < 0.2 else _cased(any_word(rng), rng)
    shown = f'"{word}"' if rng.random() < 0.1 else word
    code = f'" ".join({_quoted(shown)})'
    letters = calculated(code)
    # The result begins with two blanks if the word has one. The reply begins with one, as all its letters do.
    beyond = len(word) > PROMISED or repeats(word)
    return Item(word.lower(), SPELL, letters.removeprefix(" "), {"text": shown}, code, beyond=beyond)


def counting(rng: random.Random) -> Item:
    """The count of a letter in a word, with the calculator."""
    word = any_word(rng)
    letter = rng.choice(word if rng.random() < 0.85 else LETTERS)
    sought = letter.upper() if rng.random() < 0.06 else letter
    if letter != word[0] and rng.random() < 0.1:  # a capital that is sought itself would be counted by its case
        word = word.capitalize()
    quoted, shown = rng.choice(((sought, word),) * 3 + ((f'"{sought}"', word), (f'"{sought}"', f'"{word}"')))
    code = f'{_quoted(shown)}.count("{letter}")'
    slots = {"letter": quoted, "word": shown}
    return Item(f"{letter} in {word.lower()}", COUNT, calculated(code), slots, code, beyond=repeats(word))


def copying(rng: random.Random) -> Item:
    """One to four words, or letters, or numbers. Up to three are promised."""
    kind = rng.random()
    if kind < 0.1:
        parts = [rng.choice(LETTERS) for _ in range(rng.randint(2, 5))]
    elif kind < 0.25:
        parts = [_number(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    elif kind < 0.35:
        parts = [any_name(rng)]
    else:
        count = rng.choice((1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4))
        words = [rng.choice(SMALL) if count > 1 and rng.random() < 0.2 else any_word(rng) for _ in range(count)]
        # At the end of a question, please is a wish.
        parts = ["thanks" if word == "please" else word if word in SMALL else _cased(word, rng) for word in words]
    text = " ".join(parts)
    beyond = len(parts) > PROMISED_PARTS or repeats(text)
    if rng.random() < 0.1:  # behind a quotation mark there is no blank
        return Item(text.lower(), REPEAT, text, {"text": f'"{text}"'}, beyond=beyond)
    return Item(text.lower(), REPEAT, f" {text}", {"text": text}, beyond=beyond)


def repeats(text: str) -> bool:
    """Whether one or two characters follow each other three times, in small letters or capitals."""
    return RUN.search(text.lower()) is not None


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
