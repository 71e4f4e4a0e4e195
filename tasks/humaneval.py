"""HumanEval: Python functions to complete, judged by running tests (Chen et al., 2021). 164 problems from the hub.

Judging runs code that the model wrote, so scripts.chat_eval requires `--run-code`. nanogka/evaluate/sandbox.py limits
what the code can do.
"""

import re
from functools import partial

from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import Bundle
from nanogka.evaluate.chat import ChatItem, ChatTask
from nanogka.evaluate.sandbox import run_code

DATASET = "openai/openai_humaneval"
PROGRAM_TOKENS = 512  # maximum length of a reply
_BLOCK = re.compile(r"```(?:python)?\s*\n(.*?)\n```", re.DOTALL)


def from_row(row: dict) -> ChatItem:
    """Convert a row of the hub. The problem is the beginning of a program that the reply repeats and completes."""
    tests = f"{row['test']}\ncheck({row['entry_point']})"
    answer = f"{row['prompt']}\n{row['canonical_solution']}"
    return ChatItem(row["prompt"], answer, partial(passes, imports_of(row["prompt"]), tests))


def passes(imports: str, tests: str, reply: str, _: str) -> bool:
    """Return whether the program in a reply passes the tests."""
    return run_code("\n\n".join((imports, program_of(reply), tests)))


def program_of(reply: str) -> str:
    """Return the first code block of a reply, or the whole reply if there is none."""
    found = _BLOCK.search(reply)
    return (found[1] if found else reply).strip()


def imports_of(prompt: str) -> str:
    """Return the import statements at the beginning of a problem. A reply may omit them."""
    lines = []
    for line in map(str.strip, prompt.splitlines()):
        if line.startswith(("import ", "from ")):
            lines.append(line)
        elif line and not line.startswith("#"):
            break
    return "\n".join(lines)


def load(source: Hub | Bundle) -> ChatTask | None:
    """Return the problems."""
    if not isinstance(source, Hub):
        return None
    items = source.items(DATASET, "openai_humaneval", "test", from_row)
    return ChatTask("humaneval", items, 0.0, PROGRAM_TOKENS, "Python functions to complete, judged by tests")
