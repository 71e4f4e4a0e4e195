"""Generated conversations: spelling, counting, copying, adding, and small talk (tasks.small_talk).

They are for models that are too small for real conversations. Such a model learns them in minutes. Their answers are
known, so the score shows what fine-tuning achieved.

A hash of the item decides whether it is for training or held out. The two sets never overlap, whatever the seed or the
wording. Words are random syllables, so that no tokenizer has them as one token. Counting and adding use the calculator:
the model learns to write the call, which copies the question, and to copy the result.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, Conversation, Part
from nanogka.data.permutation import hash_text
from nanogka.evaluate.chat import ChatItem, ChatTask, majority
from nanogka.generate.calculator import calculate
from tasks import small_talk

HELD_OUT = "held_out"
SPLITS = ("train", HELD_OUT)
HELD_OUT_SHARE = 5  # one item in five is held out
MOST_ITEMS = 300  # bounds the search for different questions: some skills have fewer
CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SUMMANDS, LARGEST_SUMMAND = (3, 4, 5), 5  # models memorize sums of two numbers, but not these (docs/research/log.md)


@dataclass(frozen=True)
class Item:
    """A question without its wording.

    `key` identifies it, `slots` fill the braces of a wording, and `answer` is the reply. `code` is the calculator call
    that computes the answer, or empty if no call is needed.
    """

    key: str
    slots: tuple[str, ...]
    answer: str
    code: str = ""

    @property
    def reply(self) -> str | tuple[Part, ...]:
        """The assistant's reply: the calculator call, if any, and the answer."""
        if not self.code:
            return self.answer
        return Part(PYTHON, self.code), Part(OUTPUT, calculate(self.code)), Part(TEXT, self.answer)


@dataclass(frozen=True)
class Skill:
    """One kind of question."""

    name: str
    measures: str
    wordings: tuple[str, ...]  # with a pair of braces per slot
    draw: Callable[[random.Random], Item]

    def split_of(self, item: Item) -> str:
        """The split of an item, decided by its key alone."""
        return HELD_OUT if hash_text(f"{self.name}: {item.key}") % HELD_OUT_SHARE == 0 else "train"

    def ask(self, rng: random.Random, split: str) -> tuple[str, Item]:
        """Return a random question of a split, as text and as an item."""
        while self.split_of(item := self.draw(rng)) != split:
            pass
        return rng.choice(self.wordings).format(*item.slots), item

    def task(self, max_items: int, seed: int = 0) -> ChatTask:
        """Return up to `max_items` different held-out questions; fewer if the skill has fewer items."""
        rng = random.Random(f"{self.name} {seed}")
        found: dict[str, ChatItem] = {}
        for _ in range(50 * min(max_items, MOST_ITEMS)):
            prompt, item = self.ask(rng, HELD_OUT)
            found.setdefault(prompt, ChatItem(prompt, item.answer, key=item.key))
            if len(found) == max_items:
                break
        items = list(found.values())
        return ChatTask(self.name, items, majority([item.answer for item in items]), description=self.measures)


def made_up_word(rng: random.Random, length: int) -> str:
    """A word of alternating consonants and vowels."""
    return "".join(rng.choice(VOWELS if i % 2 else CONSONANTS) for i in range(length))


def _spelling(rng: random.Random) -> Item:
    word = made_up_word(rng, rng.choice((3, 4)))
    return Item(word, (word,), " ".join(word))


def _counting(rng: random.Random) -> Item:
    word = made_up_word(rng, rng.choice((4, 5, 6, 7)))
    letter = rng.choice(word if rng.random() < 0.8 else LETTERS)
    # With a leading space, the tokenizer splits the quoted word as in the question, so that the call is a copy.
    code = f' "{word}".count("{letter}")'
    return Item(f"{letter} in {word}", (letter, word), str(word.count(letter)), code)


def _copying(rng: random.Random) -> Item:
    letters = " ".join(rng.choice(LETTERS) for _ in range(rng.choice((2, 3))))
    return Item(letters, (letters,), letters)


def _addition(rng: random.Random) -> Item:
    summands = [rng.randint(0, LARGEST_SUMMAND) for _ in range(rng.choice(SUMMANDS))]
    key, asked = (" + ".join(map(str, numbers)) for numbers in (sorted(summands), summands))
    return Item(key, (asked,), str(sum(summands)), asked)  # the same summands in another order are the same item


def _talk(name: str, measures: str, draw: Callable[[random.Random], tuple[str, str]]) -> Skill:
    """A skill with a fixed list of questions; whole questions are held out."""

    def item(rng: random.Random) -> Item:
        question, answer = draw(rng)
        return Item(question, (question,), answer)

    return Skill(name, measures, ("{}",), item)


SKILLS = {
    skill.name: skill
    for skill in (
        Skill(
            "spelling",
            "the letters of a made-up word of 3 or 4 letters",
            ("Spell the word {}.", "How do you spell {}?", "Spell {}."),
            _spelling,
        ),
        Skill(
            "counting",
            "the count of a letter in a made-up word of 4 to 7 letters, with the calculator",
            ('How many "{}" are in "{}"?', 'Count "{}" in "{}".'),
            _counting,
        ),
        Skill("copying", "2 or 3 letters, repeated", ("Repeat: {}", "Say {}"), _copying),
        Skill(
            "addition",
            f"the sum of {SUMMANDS[0]} to {SUMMANDS[-1]} numbers up to {LARGEST_SUMMAND}, with the calculator",
            ("What is {}?", "{} =", "Add up {}."),
            _addition,
        ),
        _talk("small_talk", "greetings, and questions about the model", small_talk.small_talk),
        _talk("knowledge", "what Python functions do, and when to say that it does not know", small_talk.knowledge),
    )
}


def conversations(split: str, count: int, seed: int, calculator: bool = True) -> list[Conversation]:
    """Make `count` conversations of one exchange, cycling through the skills. Deterministic.

    Without `calculator` the replies are the bare answers.
    """
    rng = random.Random(f"{split} {seed}")  # a string seed gives the same numbers in every version of Python
    skills = [*SKILLS.values(), SKILLS["addition"]]  # listed twice, because it is the hardest
    asked = (skills[i % len(skills)].ask(rng, split) for i in range(count))
    return [Conversation.of(question, item.reply if calculator else item.answer) for question, item in asked]
