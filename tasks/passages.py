"""Two tasks built from the validation text. They need no evaluation bundle.

    true_continuation   choose among four continuations of a passage, three of them from other documents: chance 25 %
    last_word           predict the last word of a passage, token by token: chance 0

Both depend only on the texts and the seed. They cut between words at single spaces, so that prompt and true answer
together are the original text. Too little text gives fewer items, and ValueError if there is no item at all.

They are for small models, which know too little for most tasks of CORE. Their items are of the same kind as the text
that the model was trained on.
"""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from nanogka.evaluate.task import LANGUAGE_MODELING, MULTIPLE_CHOICE, LoadedTask, Task

DEFAULT_ITEMS = 200
SEED = 2605
CHOICES = 4
# Enough for a thousand items; the validation shard of a web corpus has ten times as many.
MAX_DOCUMENTS = 5000
# Lengths are in characters, not tokens: models with different tokenizers then get the same items.
CONTEXT_CHARS = (500, 900)
CONTINUATION_CHARS = (120, 200)
# Characters kept after the cut, so that a word ends near every length in the range.
TAIL_CHARS = CONTINUATION_CHARS[1] + 20
LONGEST = CONTEXT_CHARS[1] + 1 + TAIL_CHARS  # characters of a passage and the text after its cut

# A cut: one space between two words, not part of a wider gap such as an indentation or a table.
_CUT = re.compile(r"(?<=\S) (?=\S)")
_WORD_END = re.compile(r"(?<=\S)\s")
_WORD = re.compile(r"([A-Za-z]{3,})(?![\w'-])")  # not part of a longer word


@dataclass(frozen=True)
class _Passage:
    document: int
    context: str
    continuation: str


_Documents = dict[int, list[_Passage]]


def true_continuation(texts: Iterable[str], items: int = DEFAULT_ITEMS, seed: int = SEED) -> list[dict]:
    """Build items that ask for the true continuation of a passage among four.

    The wrong ones continue passages of three other documents. Each is cut to about the length of the true one, so that
    the length does not reveal the answer.
    """
    rng = random.Random(seed)
    documents = _passages(texts, rng, lambda passage: True)
    items_or_none = (_choice_item(passage, documents, rng) for passage in _spread(documents, rng))
    made = list(islice(filter(None, items_or_none), items))
    if not made:
        raise ValueError(
            f"true_continuation: got {len(documents)} documents with passages of {LONGEST} characters, expected"
            f" at least {CHOICES} different ones"
        )
    return made


def last_word(texts: Iterable[str], items: int = DEFAULT_ITEMS, seed: int = SEED) -> list[dict]:
    """Build items that ask for the last word of a passage of 500 to 900 characters. It has at least three letters."""
    rng = random.Random(seed)
    documents = _passages(texts, rng, lambda passage: _word_at_start(passage.continuation) is not None)
    made = [
        {"context": passage.context, "continuation": _word_at_start(passage.continuation)}
        for passage in _spread(documents, rng)[:items]
    ]
    if not made:
        raise ValueError(f"last_word: got no passage of {LONGEST} characters, expected one")
    return made


def _passages(texts: Iterable[str], rng: random.Random, wanted: Callable[[_Passage], bool]) -> _Documents:
    """Cut the first distinct texts into passages that do not overlap, each at a random place in its range."""
    found: _Documents = {}
    for document, text in enumerate(dict.fromkeys(islice(texts, MAX_DOCUMENTS))):
        begin = _next_word(text, 0)
        while len(text) - begin >= LONGEST:
            middle = _last_cut(text, begin + CONTEXT_CHARS[0], begin + rng.randint(*CONTEXT_CHARS))
            end = (middle or begin + CONTEXT_CHARS[1]) + 1 + TAIL_CHARS
            if middle and wanted(passage := _Passage(document, text[begin:middle], text[middle + 1 : end])):
                found.setdefault(document, []).append(passage)
            begin = _next_word(text, end)
    return found


def _choice_item(passage: _Passage, documents: _Documents, rng: random.Random) -> dict | None:
    """Build one item with its choices in random order. Returns None without four different choices."""
    length = rng.randint(*CONTINUATION_CHARS)
    true = _shorten(passage.continuation, length)
    others = [document for document in documents if document != passage.document]
    if true is None or len(others) < CHOICES - 1:
        return None
    choices = [true]
    for document in rng.sample(others, len(others)):
        wrong = _shorten(rng.choice(documents[document]).continuation, len(true))
        # Generated text repeats itself across documents. The same words must not be both right and wrong.
        if wrong is not None and wrong not in choices:
            choices.append(wrong)
        if len(choices) == CHOICES:
            break
    if len(choices) < CHOICES:
        return None
    rng.shuffle(choices)
    return {"query": passage.context, "choices": choices, "gold": choices.index(true)}


def _spread(documents: _Documents, rng: random.Random) -> list[_Passage]:
    """Return all passages in random order, but one per document before any second one: no long document dominates."""
    queues = [rng.sample(passages, len(passages)) for passages in documents.values()]
    order = []
    while queues:
        rng.shuffle(queues)
        order += [queue.pop() for queue in queues]
        queues = [queue for queue in queues if queue]
    return order


def _shorten(text: str, length: int) -> str | None:
    """Cut `text` after a word, as near to `length` characters as possible. None if no word ends in the range."""
    low, high = CONTINUATION_CHARS
    ends = [match.start() for match in _WORD_END.finditer(text, low, high + 1)]
    return text[: min(ends, key=lambda end: abs(end - length))] if ends else None


def _last_cut(text: str, low: int, high: int) -> int | None:
    return max((match.start() for match in _CUT.finditer(text, low, high + 1)), default=None)


def _next_word(text: str, begin: int) -> int:
    match = re.compile(r"(?<!\S)\S").search(text, begin)
    return match.start() if match else len(text)


def _word_at_start(text: str) -> str | None:
    """Return the plain word at the start of `text`, or None if there is none or it is part of a longer word."""
    match = _WORD.match(text)
    return match.group(1) if match else None


def _task(task: Task, make: Callable[[Iterable[str]], list[dict]]) -> Callable[[Iterable[str]], LoadedTask]:
    return lambda texts: LoadedTask(task, make(texts))


load_true_continuation = _task(Task("true_continuation", MULTIPLE_CHOICE, chance=0.25), true_continuation)
load_last_word = _task(Task("last_word", LANGUAGE_MODELING, chance=0.0), last_word)
