"""Typical first questions: greetings, questions about the model, about Python and about the world.

Whole questions are held out, so validation asks combinations of words that training never had. The answer to a question
on a function of Python's library is the first sentence of its documentation, which the embedded corpus contains. The
answer to questions on the world and on functions that do not exist is "I don't know.": a model that has only seen
questions with answers invents one for every other question.
"""

import ast
import random
import re
from functools import cache

from nanogka.data.embedded import library

OPENINGS = ("", "Hello, ", "Hello! ", "Hi, ", "Hi! ", "Hey, ", "Now, ", "So, ", "Please, ", "Well, ")
GREETINGS = ("Hello", "Hi", "Hey", "Good morning", "Good evening", "Hello there", "Hi there")
NAMES = (
    "Ada Alan Anna Ben Carl Clara Daniel David Edgar Emma Eric Eva Felix Frank George Grace Greta Guido Hanna Henry "
    "Ida Jack Jane John Karl Kate Laura Leo Linda Lisa Louis Maria Mark Martin Mary Max Nina Nora Olga Oscar Otto Paul "
    "Peter Petra Robert Rosa Sam Sara Simon Sofia Steve Susan Tim Tom Vera Victor Walter Yuri"
).split()
WHO = (
    "who are you?; what are you?; who is this?; what is your name?; are you a person?; are you a robot?; "
    "who am I talking to?; tell me who you are.; what kind of model are you?; introduce yourself."
).split("; ")
IDENTITY = "I am a small language model."
WHAT = (
    "what can you do?; what do you know?; how can you help me?; what are you good at?; help!; can you help me?; "
    "what shall I ask you?; what should I ask?; what are you for?; tell me what you can do."
).split("; ")
ABILITIES = "I spell, count, copy, add and know Python."
CAN = "spell words; count letters; copy letters; add numbers; spell a word; add up numbers; say letters".split("; ")
CANNOT = (
    "sing; dance; see; hear me; write a poem; tell a joke; search the web; open a file; send a letter; run a program; "
    "play chess; draw a picture; read my mind; translate this; remember me; cook; drive a car"
).split("; ")
COUNTRIES = (
    "France Spain Italy Norway Poland Greece Japan China India Brazil Peru Chile Kenya Egypt Canada Cuba Turkey Iran "
    "Nepal Ghana Portugal Austria Sweden Mexico"
).split()
THINGS = (
    "the moon; the sun; the sea; a river; a mountain; a horse; a whale; an oak; gold; iron; water; a train; a bridge; "
    "a castle; a violin; a star; a storm; an island; a desert; a book; a war"
).split("; ")
WORLD = (
    ("What is the capital of {}?", COUNTRIES),
    ("How many people live in {}?", COUNTRIES),
    ("Who governs {}?", COUNTRIES),
    ("How far is it to {}?", COUNTRIES),
    ("How old is {}?", THINGS),
    ("How heavy is {}?", THINGS),
    ("What is the price of {}?", THINGS),
    ("Where is {}?", [*THINGS, *NAMES]),
    ("When was {} born?", NAMES),
    ("What does {} like?", NAMES),
)
UNKNOWN = "I don't know."
MODULES = {  # modules of the standard library, by their names in questions
    "posixpath": "os.path",
    **{name: name for name in ("base64", "bisect", "copy", "difflib", "filecmp", "fnmatch", "glob", "gzip", "heapq")},
    **{name: name for name in ("secrets", "shlex", "shutil", "statistics", "textwrap")},
}
LONGEST = 64  # maximum characters of an answer
DOES = ("What does {} do?", "What is {}?", "What is {} for?", "Explain {}.", "{}?")


def small_talk(rng: random.Random) -> tuple[str, str]:
    """Return (question, answer) about the model: a greeting, its name, or its abilities."""
    kind = rng.randrange(4)
    if kind == 0:
        hello, name = rng.choice(GREETINGS), rng.choice(NAMES)
        says = rng.choice(("I am {}.", "my name is {}.", "{} here.", "this is {}."))
        return f"{hello}, {says.format(name)}", f"Hello, {name}!"
    if kind == 1:
        return rng.choice(GREETINGS) + rng.choice(("", "!", ".")), "Hello!"
    if kind == 2:
        asked, answer = rng.choice(WHO), IDENTITY
    else:
        asked, answer = rng.choice(
            (
                (rng.choice(WHAT), ABILITIES),
                (f"can you {rng.choice(CAN)}?", "Yes."),
                (f"can you {rng.choice(CANNOT)}?", "No, I cannot."),
            )
        )
    opening = rng.choice(OPENINGS)
    return opening + (asked if opening.endswith(", ") else asked[0].upper() + asked[1:]), answer


def knowledge(rng: random.Random) -> tuple[str, str]:
    """Return (question, answer): half are about the standard library, half about things it cannot know."""
    kind = rng.randrange(4)
    if kind < 2:
        name, answer = rng.choice(sentences())
    elif kind == 2:
        wording, things = rng.choice(WORLD)
        return wording.format(rng.choice(things)), UNKNOWN
    else:
        names = [name for name, _ in sentences()]
        name = f"{rng.choice(names).rpartition('.')[0]}.{rng.choice(names).rpartition('.')[2]}"
        answer = dict(sentences()).get(name, UNKNOWN)
    return rng.choice(DOES).format(name), answer


@cache
def sentences() -> list[tuple[str, str]]:
    """Return (name, first sentence of its documentation) of the public functions in `MODULES` if it is short."""
    found = []
    for module, called in sorted(MODULES.items()):
        path = library() / f"{module}.py"
        for node in ast.parse(path.read_bytes()).body if path.is_file() else ():
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            sentence = re.split(r"(?<=\.)\s", paragraph)[0]
            if sentence.endswith(".") and len(sentence) <= LONGEST:
                found.append((f"{called}.{node.name}", sentence))
    return found
