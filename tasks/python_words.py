"""What functions of Python and words about programming mean.

The short answers are ours; those for other functions of the standard library are the first sentences of their
documentation, which the embedded corpus contains. Some questions name functions that do not exist.
"""

import ast
import random
import re
from functools import cache

from nanogka.data.embedded import library
from tasks.items import Item, Wordings
from tasks.limits import UNKNOWN
from tasks.words import everyday_words

MODULES = {  # modules of the standard library, by their names in questions
    "posixpath": "os.path",
    **{name: name for name in ("base64", "bisect", "copy", "difflib", "filecmp", "fnmatch", "glob", "gzip", "heapq")},
    **{name: name for name in ("secrets", "shlex", "shutil", "statistics", "textwrap")},
}
LONGEST = 56  # maximum characters of a sentence of the documentation
FUNCTIONS = """
    abs: the absolute value of a number|all: whether all items are true|any: whether any item is true|ascii: a
    text with escapes|bin: a number in binary|bool: true or false|bytes: a sequence of bytes|callable: whether
    an object can be called|chr: the character of a number|dict: a dictionary|dir: the names in an
    object|divmod: quotient and remainder|enumerate: pairs of a number and an item|eval: the value of an
    expression|exec: runs Python code|filter: the items that pass a test|float: a number with a decimal
    point|format: a value as text|getattr: an attribute of an object|globals: the global names|hasattr: whether
    an object has an attribute|hash: the hash of an object|help: shows the documentation|hex: a number in base
    16|id: the identity of an object|input: reads a line of text|int: an integer|isinstance: whether an object
    has a type|issubclass: whether a class is derived from another|iter: an iterator|len: the number of
    items|list: a list|locals: the local names|map: applies a function to each item|max: the largest item|min:
    the smallest item|next: the next item of an iterator|object: the base of all classes|oct: a number in base
    8|open: opens a file|ord: the number of a character|pow: a number to a power|print: prints values|property:
    a managed attribute|range: a sequence of integers|repr: an object as text|reversed: the items in reverse
    order|round: a rounded number|set: a set of different items|setattr: sets an attribute|slice: a part of a
    sequence|sorted: a sorted list|str: a text|sum: the sum of the items|super: the parent class|tuple: a
    tuple|type: the type of an object|vars: the attributes of an object|zip: tuples of items side by
    side|math.sqrt: the square root|math.floor: the number rounded down|math.ceil: the number rounded
    up|math.sin: the sine|math.cos: the cosine|math.log: the logarithm|math.exp: e to a power|math.pi: the
    number pi|math.factorial: the factorial|math.gcd: the greatest common divisor|os.listdir: the names in a
    folder|os.remove: deletes a file|os.mkdir: makes a folder|os.getcwd: the current folder|os.rename: renames a
    file|sys.exit: ends the program|sys.argv: the arguments of the program|time.sleep: waits some
    seconds|time.time: the seconds since 1970|random.choice: a random item|random.random: a random
    number|random.randint: a random integer|random.shuffle: shuffles a list|json.dumps: an object as JSON
    text|json.loads: the object in a JSON text|re.sub: replaces matches in a text|re.match: a match at the start
    of a text|re.findall: all matches in a text|os.path.join: joined parts of a path|os.path.exists: whether a
    path exists|list.append: adds an item at the end|list.sort: sorts a list|str.split: the words of a
    text|str.join: texts joined together|str.upper: the text in capital letters|str.lower: the text in small
    letters|str.strip: the text without blanks at its ends|str.replace: the text with parts replaced|dict.get:
    the value of a key|dict.keys: the keys of a dictionary|dict.items: the keys and values
"""
CONCEPTS = """
    python: a programming language|a list: a sequence of items that can change|a tuple: a sequence of items that
    cannot change|a string: a text|a dictionary: a table of keys and values|a dict: a table of keys and values|a
    function: code with a name that can be called|a class: a type made by a program|a loop: code that runs again
    and again|a variable: a name for a value|a module: a file of Python code|an exception: a sign that an error
    happened|a generator: a function that yields values|an iterator: an object that gives items one by one|a
    set: a group of different items|a boolean: true or false|an integer: a whole number|a float: a number with a
    decimal point|a comment: text that Python ignores|a keyword: a word with a special meaning|a bug: an error
    in a program|a package: a folder of modules|a method: a function of an object|a decorator: a function that
    wraps another|a lambda: a function without a name|recursion: a function that calls itself|none: the value
    for nothing|a compiler: a program that translates code|an algorithm: a plan to solve a problem|a program: a
    list of steps for a computer|a language model: a program that predicts text
"""
DOES = Wordings(
    known=(
        "what does {text} do?",
        "what does {text} do?",
        "what does {text} do in python?",
        "what is {text}?",
        "what is {text} for?",
        "explain {text}.",
        "{text}?",
        "{text}",
        "what does the function {text} do?",
        "what does {text}() do?",
        "what's {text}?",
        "what is {text} in python?",
        "what does {text} return?",
        "tell me what {text} does.",
        "how does {text} work?",
        "what does {text} mean?",
    ),
    new=(
        "describe {text}.",
        "can you explain {text}?",
        "why do i need {text}?",
        "what can {text} do?",
        "what will {text} do?",
    ),
)
MEANS = Wordings(
    known=(
        "what is {text}?",
        "what is {text}?",
        "what's {text}?",
        "explain {text}.",
        "what is {text} in python?",
        "tell me about {text}.",
        "define {text}.",
    ),
    new=("describe {text}.", "can you explain {text}?", "what does {text} mean?"),
)


def knowledge(rng: random.Random) -> Item:
    """What a function or a word of Python means. One question in eight is on a function that does not exist."""
    kind = rng.random()
    if kind < 0.6:
        name, answer = rng.choice(list(functions().items()))
    elif kind < 0.75:
        name, answer = rng.choice(list(concepts().items()))
        return Item(name, MEANS, answer, {"text": name}, closed=True)
    elif kind < 0.875:
        name, answer = rng.choice(list(sentences().items()))
    else:
        known = [*functions(), *sentences()]
        module = rng.choice([name.rpartition(".")[0] for name in known if "." in name])
        name = f"{module}.{rng.choice((rng.choice(known).rpartition('.')[2], rng.choice(everyday_words())))}"
        answer = functions().get(name) or sentences().get(name) or UNKNOWN
    return Item(name, DOES, answer, {"text": name}, closed=True)


@cache
def functions() -> dict[str, str]:
    """What builtins and common functions do, by name."""
    return _entries(FUNCTIONS)


@cache
def concepts() -> dict[str, str]:
    """What words about programming mean."""
    return _entries(CONCEPTS)


def _entries(text: str) -> dict[str, str]:
    pairs = (" ".join(entry.split()).split(": ") for entry in text.split("|"))
    return {name: f"{meaning[0].upper()}{meaning[1:]}." for name, meaning in pairs}


@cache
def sentences() -> dict[str, str]:
    """The first sentence of the documentation of the public functions in `MODULES`, by name, if it is short."""
    found = {}
    for module, called in sorted(MODULES.items()):
        path = library() / f"{module}.py"
        for node in ast.parse(path.read_bytes()).body if path.is_file() else ():
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            sentence = re.split(r"(?<=\.)\s", paragraph)[0]
            if sentence.endswith(".") and len(sentence) <= LONGEST and f"{called}.{node.name}" not in functions():
                found[f"{called}.{node.name}"] = sentence
    return found
