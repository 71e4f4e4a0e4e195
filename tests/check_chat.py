"""Ask a finished chat model what its documents promise, and judge the replies.

    python tests/check_chat.py --run d3-successor-chat              the examples of the documents, and first messages
    python tests/check_chat.py --run d3-successor-chat --show       print every exchange
    python tests/check_chat.py --table RUN RUN RUN                  print the scores of evaluated runs as Markdown

Two kinds of questions are asked, with temperature 0:

* every example of README, docs, docstrings and the run's own examples. Each needs its right reply.
* `tests/tasks/first_messages.txt`: what people first say, written by hand and never trained. A reply is right, sensible
  (it says what the model can do), wrong, or garbage (none of the model's kinds of reply, or one without an end).

The exit code is 1 if an example is answered wrong, if fewer than 85 % of the messages get a right or sensible reply, if
more than 2 % get garbage, or if a wrong number came through the calculator.
"""

import argparse
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "tasks"), str(Path(__file__).parent.parent)]
from question_oracle import answer_of  # noqa: E402

import nanogka  # noqa: E402
from nanogka.generate.session import Session  # noqa: E402
from nanogka.generate.settings import ChatSettings  # noqa: E402
from nanogka.runs import Run, find_run  # noqa: E402
from tasks.promise import PROMISE, REFUSAL  # noqa: E402
from tasks.small_talk import TALK  # noqa: E402

ROOT = Path(__file__).parent.parent
MESSAGES = ROOT / "tests/tasks/first_messages.txt"
RIGHT, SENSIBLE, WRONG, GARBAGE = "right", "sensible", "wrong", "garbage"
SENSIBLE_REPLIES = {PROMISE, REFUSAL}
# What a reply looks like that is no garbage: one of the model's kinds of answers.
KINDS = re.compile(r"Hello, \S+!|(\S )+\S|-?[\d.]+( \w+\.)?|\d+, or \d+ in a leap year\.|(\w+ ){0,4}\w+[.!]?")
# How documents ask: in Python, in messages, on a command line, in an exchange, in two columns of exchanges, and in the
# last column of the table of skills.
ASKING = (
    *(r'\.chat\("([^"]+)"', r'"content": "([^"]+\?)"', r'(?:-p|--prompt) "([^"]+\?)"'),
    r"^ *> (\S.+?)(?: {3,}> (.+))?$",
    r'^\| [^|]+ \| [^|]+ \| "([^"|]+)"(?:, "([^"|]+)")? \|$',
)
MOST_TOKENS, LEAST_GOOD, MOST_GARBAGE = 100, 0.85, 0.02


@dataclass(frozen=True)
class Reply:
    """A reply: its text, the calculator's calls and results, and whether it ended."""

    text: str
    calls: tuple[tuple[str, str], ...]
    ended: bool

    def __str__(self) -> str:
        return " ".join([*(f"[{code} → {result}]" for code, result in self.calls), self.text or "(nothing)"])


def ask(model: nanogka.Model, message: str) -> Reply:
    """Ask one question in a new conversation."""
    session = Session(model.engine, ChatSettings(temperature=0, max_tokens=MOST_TOKENS), chat=True)
    text = "".join(session.reply(message)).strip()
    return Reply(text, tuple(session.last.reply.calls), session.last.finish_reason == "stop")


def judge(reply: Reply, right: str) -> str:
    """Judge a reply by the pattern of the right one; - means that only a sensible one is right."""
    if right != "-" and re.fullmatch(right, reply.text):
        return RIGHT
    if reply.text in SENSIBLE_REPLIES or reply.text.endswith(PROMISE):
        return SENSIBLE
    known = reply.text in TALK or KINDS.fullmatch(reply.text)
    return WRONG if reply.ended and known else GARBAGE


def documented() -> dict[str, str]:
    """The questions that documents and docstrings ask a chat model, each with the file that asks."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "nanogka").rglob("*.py"))]
    found = {}
    for path in [*files, *sorted((ROOT / "scripts").glob("*.py")), ROOT / "docs/tour.ipynb"]:
        text = path.read_text(encoding="utf-8").replace('\\"', '"')
        for pattern in ASKING:
            for match in re.finditer(pattern, text, re.M):
                found |= {question.strip(): str(path.relative_to(ROOT)) for question in match.groups() if question}
    return found


def table(names: list[str]) -> str:
    """A row for each task: the lowest and the highest score of the runs, in percent, and the constant answer's."""
    found: dict[str, list[float]] = {}
    chances = {}
    for task in (task for name in names for task in Run.open(find_run(name)).evaluation["tasks"]):
        found.setdefault(task["name"], []).append(100 * task["accuracy"])
        chances[task["name"]] = 100 * task["chance"]
    spans = {
        name: f"{min(scores):.1f}" + f" to {max(scores):.1f}" * (len(scores) > 1) for name, scores in found.items()
    }
    rows = (f"| {name} | {span} | {chances[name]:.1f} |" for name, span in spans.items())
    return "\n".join(["| skill | right, % | constant answer, % |", "|---|---:|---:|", *rows])


def main() -> int:
    """Ask everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="folder or tag of the run (default: the latest one)")
    parser.add_argument("--show", action="store_true", help="print every exchange")
    parser.add_argument(
        "--table", nargs="+", default=[], metavar="RUN", help="print the scores of these evaluated runs"
    )
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return 0
    model, bad = nanogka.load(options.run, device="cpu"), 0

    for question, place in {**documented(), **dict.fromkeys(model.run.examples, "the run's examples")}.items():
        right, reply = answer_of(question), ask(model, question)
        verdict = judge(reply, "-" if right is None else re.escape(right))
        expected = SENSIBLE if right is None else RIGHT
        bad += verdict != expected
        if options.show or verdict != expected:
            wrong = f" (expected {right or 'a refusal'})" if verdict != expected else ""
            print(f"{'BAD' if wrong else 'ok '} {place}: {question} → {reply}{wrong}")

    text = MESSAGES.read_text(encoding="utf-8").splitlines()
    lines = [line.split("\t") for line in text if line and not line.startswith("#")]
    counts: Counter[str] = Counter()
    numbers = 0
    for message, right in lines:
        reply = ask(model, message)
        verdict = judge(reply, right)
        counts[verdict] += 1
        numbers += verdict in (WRONG, GARBAGE) and any(re.search(r"\d", result) for _, result in reply.calls)
        if options.show or verdict in (WRONG, GARBAGE):
            print(f"{verdict:8} {message} → {reply}")
    good = (counts[RIGHT] + counts[SENSIBLE]) / len(lines)
    print(
        ", ".join(f"{counts[name]} {name}" for name in (RIGHT, SENSIBLE, WRONG, GARBAGE)), "of", len(lines), "messages"
    )
    print(
        f"{good:.0%} right or sensible, {numbers} wrong numbers through the calculator, {bad} examples answered wrong"
    )
    return int(bad > 0 or good < LEAST_GOOD or counts[GARBAGE] > MOST_GARBAGE * len(lines) or numbers > 0)


if __name__ == "__main__":
    sys.exit(main())
