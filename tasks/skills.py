"""Generated conversations that a very small model learns in minutes: what people first ask a chat model.

The skills are spelling, counting letters, copying, calculating, dates and units here; the others are in the
modules next to this one. The answers are known, so scores show what fine-tuning achieved.

Two things are held out, so that scores do not measure memory. A hash of an item, such as a word or a sum, decides
whether it is for training or held out, whatever the seed or the wording. And each kind of question has wordings that
training never uses. Sums, counts, dates and units use the calculator: the model learns to write the call, which copies
the question, and to copy the result.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from nanogka.data.conversation import Conversation, Part
from nanogka.data.permutation import hash_text
from nanogka.evaluate.chat import ChatItem, ChatTask, majority
from tasks import dates, limits, python_words, small_talk, sums
from tasks.items import HELD_OUT, REWORDED, SPLITS, TRAIN, Item, Wordings
from tasks.words import LETTERS, any_name, any_word

__all__ = ["HELD_OUT", "REWORDED", "SKILLS", "SPLITS", "TRAIN", "Skill", "conversations", "evaluations"]

HELD_OUT_SHARE = 5  # one item in five is held out
MOST_TOKENS = 48  # of a reply
TRIES = 50  # draws per wanted question of a task: some skills have fewer different items than asked for
SHOWN_FIRST = ("spelling", "counting", "arithmetic", "units", "knowledge")
OPENINGS = ("please ", "hey, ", "hi, ", "hello, ", "hello! ", "ok, ", "now ", "so ", "and ", "well, ")
ENDS = ("", "", "", "!", " ?", "??", "...")
# Exchanges per conversation: most are short, and the others teach to answer the last question, not an earlier one.
EXCHANGES = (1, 1, 1, 2, 2, 3, 4)
MOST_CHARACTERS = 90  # of a conversation of several exchanges, so that all fit into short rows


@dataclass(frozen=True)
class Skill:
    """One kind of question. `weight` is its share of the training questions."""

    name: str
    measures: str
    draw: Callable[[random.Random], Item]
    weight: int
    measured: tuple[str, ...] = (HELD_OUT, REWORDED)  # closed items have no held-out ones; whole questions no wordings

    def split_of(self, item: Item) -> str:
        """The split of an item, decided by its key alone."""
        return HELD_OUT if hash_text(f"{self.name}: {item.key}") % HELD_OUT_SHARE == 0 else TRAIN

    def ask(self, rng: random.Random, split: str) -> tuple[str, Item]:
        """Return a random question of a split, as text and as an item.

        A closed item is one of a few facts that cannot be inferred from others. All of them are trained, and only their
        wordings are held out.
        """
        while True:
            item = self.draw(rng)
            wordings = item.wordings.new if split == REWORDED else item.wordings.known
            if item.closed:
                fits = split != HELD_OUT
            else:
                fits = (self.split_of(item) == TRAIN) == (split == TRAIN)
            if fits and wordings:
                return as_typed(rng.choice(wordings).format_map(item.slots), rng), item

    def example(self) -> tuple[str, Item]:
        """Return a held-out question that shows the skill, and its item."""
        rng, split = random.Random(self.name), self.measured[0]
        while True:
            item = self.draw(rng)
            if item.closed or self.split_of(item) == split:
                wording = (item.wordings.new if split == REWORDED else item.wordings.known)[0]
                question = wording.format_map(item.slots)
                return question[0].upper() + question[1:], item

    def task(self, split: str, max_items: int, seed: int = 0) -> ChatTask:
        """Return questions of a split other than training, one for each of at most `max_items` items."""
        rng = random.Random(f"{self.name} {split} {seed}")
        found: dict[str, ChatItem] = {}
        for _ in range(TRIES * max_items):
            prompt, item = self.ask(rng, split)
            # A closed item is asked in several ways, because there are few.
            found.setdefault(prompt.lower() if item.closed else item.key, ChatItem(prompt, item.answer, key=item.key))
            if len(found) == max_items:
                break
        items = list(found.values())
        name = self.name if split == HELD_OUT else f"{self.name}-{REWORDED}"
        return ChatTask(
            name, items, majority([item.answer for item in items]), max_tokens=MOST_TOKENS, description=self.measures
        )


def as_typed(question: str, rng: random.Random) -> str:
    """The question as people type it: with or without an opening, a capital letter, and the mark at its end."""
    if rng.random() < 0.12:
        question = rng.choice(OPENINGS) + question
    if rng.random() < 0.5:
        question = question[0].upper() + question[1:]
    if len(question) > 3 and question[-1] in ".?" and rng.random() < 0.45:
        question = question[:-1] + rng.choice(ENDS)
    return question


# ---- words and letters ----

SPELL = Wordings(
    known=(
        "spell {text}.",
        "spell {text}.",
        "how do you spell {text}?",
        "how do you spell {text}?",
        "how is {text} spelled?",
        "spell the word {text}.",
        'spell "{text}".',
        "spell the name {text}.",
        "how do i spell {text}?",
        "what are the letters of {text}?",
        "can you spell {text}?",
        "{text}, letter by letter.",
        "my word is {text}, spell it.",
    ),
    new=(
        "how would you spell {text}?",
        "could you spell {text} for me?",
        "tell me how to spell {text}.",
        "what is the spelling of {text}?",
    ),
)
COUNT = Wordings(
    known=(
        "how many {letter} are in {word}?",
        "how many {letter} are in {word}?",
        "how many {letter}'s are in {word}?",
        "how many {letter}'s in {word}?",
        "how many {letter}s are in {word}?",
        "how many {letter} in {word}?",
        "how many letters {letter} are in {word}?",
        "how many {letter} does {word} have?",
        "how often is {letter} in {word}?",
        "count the {letter} in {word}.",
        "count the letter {letter} in {word}.",
        "count {letter} in {word}.",
        "how many times is {letter} in {word}?",
        "number of {letter} in {word}.",
    ),
    new=(
        "how many times does {letter} occur in {word}?",
        "how many times is the letter {letter} in the word {word}?",
        "count how many {letter} are in {word}.",
        "how many {letter} has {word}?",
    ),
)
REPEAT = Wordings(
    known=(
        "repeat: {text}",
        "repeat {text}",
        "repeat after me: {text}",
        "say {text}",
        "say: {text}",
        "say {text} please.",
        "write {text}",
        "type {text}",
        "copy {text}",
        "copy this: {text}",
        'say "{text}"',
        "echo {text}",
    ),
    new=("please say {text}", "can you say {text}?", "repeat this: {text}", "print out {text}"),
)


def _spelling(rng: random.Random) -> Item:
    word = any_name(rng) if rng.random() < 0.25 else any_word(rng)
    return Item(word.lower(), SPELL, " ".join(word), {"text": word})


def _counting(rng: random.Random) -> Item:
    word = any_word(rng)
    letter = rng.choice(word if rng.random() < 0.85 else LETTERS)
    shown, quoted = rng.choice(((letter, word),) * 3 + ((f'"{letter}"', word), (f'"{letter}"', f'"{word}"')))
    # The blank before the word or its quote makes the tokens of the call those of the question: the call is a copy.
    code = f' "{word}".count("{letter}")' if shown != letter and quoted != word else f'" {word}".count("{letter}")'
    return Item(f"{letter} in {word}", COUNT, str(word.count(letter)), {"letter": shown, "word": quoted}, code)


def _copying(rng: random.Random) -> Item:
    kind = rng.random()
    if kind < 0.25:
        text = " ".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 5)))
    elif kind < 0.35:
        text = " ".join(str(rng.randrange(1000)) for _ in range(rng.randint(1, 3)))
    elif kind < 0.5:
        text = any_name(rng)
    else:
        text = " ".join(any_word(rng) for _ in range(rng.choice((1, 1, 2, 2, 3))))
    return Item(text.lower(), REPEAT, text, {"text": text})


SKILLS = {
    skill.name: skill
    for skill in (
        Skill("spelling", "the letters of a word or name of 3 to 8 letters", _spelling, 9),
        Skill("counting", "the count of a letter in a word, with the calculator", _counting, 4),
        Skill("copying", "a text of 1 to 3 words, or letters, or numbers, repeated", _copying, 4),
        Skill("addition", "the sum of 2 to 5 numbers, with the calculator", sums.addition, 4),
        Skill("arithmetic", "differences, products and quotients, with the calculator", sums.arithmetic, 4),
        Skill("dates", "months, weekdays, leap years and days between, also with the calculator", dates.dates, 2),
        Skill("units", "conversions of time, length and weight, with the calculator", dates.units, 3),
        Skill("names", "greetings with a name", small_talk.introductions, 2),
        Skill("small_talk", "greetings, thanks, and questions about the model", small_talk.small_talk, 3, (HELD_OUT,)),
        Skill("knowledge", "what functions and words of Python mean", python_words.knowledge, 4, (REWORDED,)),
        Skill("limits", "questions and tasks that are beyond it, answered honestly", limits.limits, 4),
    )
}


def evaluations() -> dict[str, Callable[[int], ChatTask]]:
    """The tasks of an evaluation by name: of each skill, held-out items in known wordings, and in new wordings.

    Each function takes the maximum number of items.
    """
    return {
        skill.name if split == HELD_OUT else f"{skill.name}-{split}": partial(skill.task, split)
        for skill in SKILLS.values()
        for split in skill.measured
    }


def showcase(calculator: bool = True) -> list[Conversation]:
    """One held-out question of each of several skills, typed neatly: what to show a person first."""
    examples = [SKILLS[name].example() for name in SHOWN_FIRST]
    return [Conversation.of(question, item.reply(calculator)) for question, item in examples]


def conversations(split: str, count: int, seed: int, calculator: bool = True) -> list[Conversation]:
    """Make `count` conversations of one to four exchanges, in which the skills take turns. Deterministic.

    Without `calculator` the replies are the bare answers.
    """
    rng = random.Random(f"{split} {seed}")  # a string seed gives the same numbers in every version of Python
    asks = [skill for skill in SKILLS.values() if split == TRAIN or split in skill.measured]
    turns = [skill for skill in asks for _ in range(skill.weight)]
    asked: list[tuple[str, Item]] = []
    made = []
    for _ in range(count):
        texts: list[str | tuple[Part, ...]] = []
        left = MOST_CHARACTERS
        for number in range(rng.choice(EXCHANGES)):
            if not asked:
                asked = [skill.ask(rng, split) for skill in rng.sample(turns, len(turns))]
            question, item = asked[-1]
            left -= len(question) + 2 * len(item.code) + len(item.answer)  # calls have more tokens per character
            if number and left < 0:
                break
            texts += [question, item.reply(calculator)]
            asked.pop()
        made.append(Conversation.of(*texts))
    return made
