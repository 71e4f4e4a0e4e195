"""Generated conversations that a very small model learns in minutes: what it promises, and what it refuses.

The answers are known, so scores show what fine-tuning achieved. Items are held out, so that scores do not measure
memory: a hash of an item, such as a word or a sum, decides whether it is for training or held out, whatever the seed or
the wording. Wordings are all trained. How well a skill carries over to wordings that a model never saw is measured with
a second model, which learns from `embedded-known`. What is trained reaches a little further than what is promised and
measured, such as spelling words of up to 10 letters.

Sums, counts, leap years and units use the calculator: the model learns to write the call, which copies the question,
and to copy the result.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from nanogka.data.conversation import Conversation, Part
from nanogka.data.permutation import hash_text
from nanogka.evaluate.chat import ChatItem, ChatTask, majority
from tasks import dates, limits, small_talk, sums, text_skills, units
from tasks.items import HELD_OUT, KNOWN, REWORDED, SPLITS, TRAIN, Item, as_typed, is_for, neat

__all__ = ["HELD_OUT", "KNOWN", "REWORDED", "SKILLS", "SPLITS", "TRAIN", "Skill", "conversations", "evaluations"]

HELD_OUT_SHARE = 5  # one item in five is held out
MOST_TOKENS = 80  # of a reply
TRIES = 50  # draws per wanted question of a task: some skills have fewer different items than asked for
NEAT = 3  # of a task's questions, the first, are typed neatly: they are shown to people
# Exchanges per conversation: most are short, and the others teach to answer the last question, not an earlier one.
EXCHANGES = (1, 1, 1, 2, 2, 3)
MOST_CHARACTERS = 100  # of a conversation of several exchanges, so that all fit into short rows


@dataclass(frozen=True)
class Skill:
    """One kind of question. `weight` is its share of the training questions."""

    name: str
    measures: str
    draw: Callable[[random.Random], Item]
    weight: int
    measured: tuple[str, ...] = (HELD_OUT, REWORDED)

    def split_of(self, item: Item) -> str:
        """The split of an item, decided by its key alone."""
        return HELD_OUT if hash_text(f"{self.name}: {item.key}") % HELD_OUT_SHARE == 0 else TRAIN

    def ask(self, rng: random.Random, split: str, neatly: bool = False) -> tuple[str, Item]:
        """Return a random question of a split, as text and as an item.

        A closed item is one of a few facts that cannot be inferred from others. All of them are trained, and none is
        held out. With `neatly`, the wording is typed without haste.
        """
        while True:
            item, trains = self.draw(rng), split in (TRAIN, KNOWN)
            if item.closed:
                fits = split != HELD_OUT
            else:
                fits = (self.split_of(item) == TRAIN) == trains and not (item.beyond and not trains)
            if fits and is_for(wording := item.wordings.draw(rng), split):
                return (neat(wording) if neatly else as_typed(wording, rng)).format_map(item.slots), item

    def task(self, split: str, max_items: int, seed: int = 0) -> ChatTask:
        """Return questions of a split other than training, one for each of at most `max_items` items."""
        rng = random.Random(f"{self.name} {split} {seed}")
        found: dict[str, ChatItem] = {}
        for _ in range(TRIES * max_items):
            prompt, item = self.ask(rng, split, neatly=len(found) < NEAT)
            # A closed item is asked in several ways, because there are few.
            found.setdefault(prompt.lower() if item.closed else item.key, ChatItem(prompt, item.answer, key=item.key))
            if len(found) == max_items:
                break
        items = list(found.values())
        name = self.name if split == HELD_OUT else f"{self.name}-{REWORDED}"
        return ChatTask(
            name, items, majority([item.answer for item in items]), max_tokens=MOST_TOKENS, description=self.measures
        )


SKILLS = {
    skill.name: skill
    for skill in (
        Skill("names", "greetings with a name", small_talk.introductions, 10),
        Skill("spelling", "the letters of a word or name of 3 to 8 letters", text_skills.spelling, 8),
        Skill("counting", "the count of a letter in a word, with the calculator", text_skills.counting, 8),
        Skill("arithmetic", "differences, products, quotients and short expressions", sums.arithmetic, 10),
        Skill("copying", "1 to 3 words, letters or numbers, repeated", text_skills.copying, 24),
        Skill("units", "conversions of time, length, weight and money, with the calculator", units.units, 13),
        Skill("addition", "the sum of 2 to 4 numbers, with the calculator", sums.addition, 10),
        Skill("dates", "leap years, with the calculator; trained: weekdays and months", dates.dates, 7),
        Skill("limits", "questions and tasks that are far from its skills, refused", limits.limits, 4),
        Skill("near_misses", "questions that look like its skills, refused", limits.near_misses, 12),
        Skill("small_talk", "greetings, thanks, and questions about the model", small_talk.small_talk, 5, measured=()),
    )
}


def evaluations(split: str = HELD_OUT) -> dict[str, Callable[[int], ChatTask]]:
    """The tasks of an evaluation by name: of each skill, held-out items in all wordings, or in the new ones.

    Each function takes the maximum number of items.
    """
    return {
        skill.name if split == HELD_OUT else f"{skill.name}-{split}": partial(skill.task, split)
        for skill in SKILLS.values()
        if split in skill.measured
    }


def conversations(split: str, count: int, seed: int, calculator: bool = True) -> list[Conversation]:
    """Make `count` conversations of one to three exchanges, in which the skills take turns. Deterministic.

    Without `calculator` the replies are the bare answers.
    """
    rng = random.Random(f"{split} {seed}")  # a string seed gives the same numbers in every version of Python
    asks = [skill for skill in SKILLS.values() if split in (TRAIN, KNOWN) or split in skill.measured]
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
            # A call's result comes twice, and its digits are a token each.
            left -= len(question) + (2 * (len(item.code) + len(item.answer)) if item.code else len(item.answer))
            if number and left < 0:
                break
            texts += [question, item.reply(calculator)]
            asked.pop()
        made.append(Conversation.of(*texts))
    return made
