"""Evaluating a model in conversations: its replies to questions, right or wrong.

Two ways to ask. Generation: the reply is written greedily and compared with the answer, as a whole or by its last
number. Letters: the choices are listed with letters, and the likeliest of these as the reply's first token counts.
"""

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from nanogka.common.errors import Errors
from nanogka.common.files import expand_path
from nanogka.common.formatting import plain_table, printable
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.evaluate.in_context import default_batch_tokens
from nanogka.evaluate.models import open_run
from nanogka.evaluate.run import print_end, write_json
from nanogka.evaluate.scores import TaskResult
from nanogka.evaluate.scoring import padded
from nanogka.evaluate.settings import ALL_SKILLS, OUTPUT, SKILL_ITEMS, ChatEvalSettings, check_writable, split_names
from nanogka.evaluate.sources import open_source
from nanogka.evaluate.task import MULTIPLE_CHOICE, Task, TaskData
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SamplingParams

SHOWN = 3  # replies per task that the results keep, right or wrong
GENERATION, LETTER = "generation", "letter"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
INSTRUCTION = "Reply with the letter of the right answer only."
SOLUTION_TOKENS = 256  # of a reply that solves a problem: GSM8K's solutions have about 100
# The final answer as GSM8K marks it, and any number.
_MARKED = re.compile(r"####\s*(-?[\d,]*\.?\d+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def exactly(reply: str, answer: str) -> bool:
    return reply.strip() == answer.strip()


def same_number(reply: str, answer: str) -> bool:
    number = final_number(reply)
    return number is not None and number == final_number(answer)


def final_number(text: str) -> float | None:
    """The number behind the last `####`, else the last number; None if there is none. Commas separate thousands."""
    found = _MARKED.findall(text) or _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


@dataclass(frozen=True)
class ChatItem:
    """A question: the user's message and the right answer (a letter if there are `choices` to choose among)."""

    prompt: str
    answer: str
    choices: int = 0


@dataclass(frozen=True)
class ChatTask:
    """Questions of one kind."""

    name: str
    items: Sequence[ChatItem]
    chance: float  # the score of answers that ignore the question: guessing, or always the commonest answer
    max_tokens: int = 32  # of a generated reply
    is_right: Callable[[str, str], bool] = exactly
    measures: str = ""

    @property
    def type(self) -> str:
        return LETTER if self.items and self.items[0].choices else GENERATION


def majority(answers: Sequence[str]) -> float:
    """The share of the commonest answer: the score of a model that always gives it."""
    return Counter(answers).most_common(1)[0][1] / len(answers)


def chat_task(data: TaskData, max_items: int | None = None) -> ChatTask:
    """The first `max_items` items of a benchmark as a chat.

    Multiple choice is asked by letters; language modeling is a question whose answer is a number.
    """
    task, chosen = data.task, data.items[:max_items]
    if task.type == MULTIPLE_CHOICE:
        items = [
            ChatItem(letter_prompt(item["query"], item["choices"]), LETTERS[item["gold"]], len(item["choices"]))
            for item in chosen
        ]
        chance = sum(1 / item.choices for item in items) / len(items)
        return ChatTask(task.name, items, chance, measures=task.measures)
    items = [ChatItem(item["context"], item["continuation"]) for item in chosen]
    chance = majority([str(final_number(item.answer)) for item in items])
    return ChatTask(task.name, items, chance, SOLUTION_TOKENS, same_number, task.measures)


def letter_prompt(query: str, choices: Sequence[str]) -> str:
    if len(choices) > len(LETTERS):
        raise ValueError(f"choices: got {len(choices)}, expected at most {len(LETTERS)}")
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices))
    return f"{query}\n\n{listed}\n\n{INSTRUCTION}"


class ModelResponder:
    """One of our models, asked in batches of prompts of similar length."""

    def __init__(self, engine: Engine, batch_tokens: int) -> None:
        self.engine, self.batch_tokens = engine, batch_tokens
        self.form = ChatFormat(engine.tokenizer)
        self._letters = [engine.tokenizer.encode(letter)[0] for letter in LETTERS]

    def replies(self, prompts: Sequence[Conversation], max_tokens: int) -> list[str | None]:
        """The greedy reply to each prompt; None for a prompt that does not fit the context."""
        greedy, stops = SamplingParams(temperature=0), (self.form.stop_id, self.engine.tokenizer.bos_id)

        def ask(batch: list[list[int]], _: list[int]) -> list[str]:
            texts = [""] * len(batch)
            for outputs in self.engine.stream(batch, greedy, max_tokens=max_tokens, stop_tokens=stops):
                for output in outputs:
                    texts[output.sample] += output.text
            return texts

        return self._in_batches(prompts, ask)

    def letters(self, prompts: Sequence[Conversation], choices: Sequence[int]) -> list[int | None]:
        """The likeliest among the first `choices[i]` letters as the reply to prompt i; None if that does not fit."""
        model = self.engine.model

        @torch.no_grad()
        def ask(batch: list[list[int]], places: list[int]) -> list[int]:
            last = torch.tensor([len(ids) - 1 for ids in batch], device=model.device)
            hidden = model.hidden(padded(batch, 0, model.device))[torch.arange(len(batch)), last]
            logits = model.unembed(hidden[:, None])[:, 0, self._letters]
            return [int(row[: choices[place]].argmax()) for row, place in zip(logits, places)]

        return self._in_batches(prompts, ask)

    def _in_batches(self, prompts: Sequence[Conversation], ask: Callable[[list[list[int]], list[int]], list]) -> list:
        """`ask(ids of a batch, their places)` of all prompts that leave room for a reply; None for the others."""
        ids = [self.form.render_prompt(prompt) for prompt in prompts]
        answers: list = [None] * len(ids)
        places = [place for place, own in enumerate(ids) if len(own) < self.engine.context]
        places.sort(key=lambda place: -len(ids[place]))
        while places:
            size = max(1, self.batch_tokens // len(ids[places[0]]))
            batch, places = places[:size], places[size:]
            for place, answer in zip(batch, ask([ids[place] for place in batch], batch)):
                answers[place] = answer
        return answers


def evaluate_chat_task(responder: ModelResponder, task: ChatTask) -> tuple[TaskResult, list[dict]]:
    """The result, and of each item `prompt`, `reply` (None if it does not fit the context), `answer`, `right`."""
    began = time.perf_counter()
    prompts = [Conversation.of(item.prompt) for item in task.items]
    if task.type == LETTER:
        found = responder.letters(prompts, [item.choices for item in task.items])
        texts, is_right = [None if index is None else LETTERS[index] for index in found], exactly
    else:
        texts, is_right = responder.replies(prompts, task.max_tokens), task.is_right
    right = [text is not None and is_right(text, item.answer) for text, item in zip(texts, task.items)]
    counts = {"correct": sum(right), "items": len(right), "unscorable": texts.count(None)}
    result = TaskResult(task.name, task.type, 0, task.chance, seconds=time.perf_counter() - began, **counts)
    names = ("prompt", "reply", "answer", "right")
    return result, [
        dict(zip(names, (item.prompt, text, item.answer, good))) for item, text, good in zip(task.items, texts, right)
    ]


def format_results(results: Sequence[TaskResult]) -> str:
    rows, notes = [["task", "asked by", "right", "± s.e.", "chance", "questions"]], []
    for result in results:
        numbers = [f"{100 * value:.1f} %" for value in (result.accuracy, result.stderr, result.chance)]
        rows.append([result.name, result.type, *numbers, f"{result.items:,}"])
        if result.unscorable:
            notes.append(f"{result.name}: {result.unscorable:,} do not fit the context and count as wrong")
    return "\n".join([plain_table(rows, left=2), *notes])


Skills = Mapping[str, Callable[[int], ChatTask]]


def evaluate_chat(settings: ChatEvalSettings, errors: Errors, skills: Skills, benchmarks: Mapping[str, Task]) -> None:
    """Evaluate skills (each makes its task) and benchmarks of a bundle or the hub, as the settings say.

    The results are written after each task; `complete` is true in those written after the last one.
    """
    check_writable(settings, ("output",), errors)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors)
    evaluated = errors.capture(lambda: open_run(settings.run, settings.step, device or "cpu", dtype, kind="chat"))
    tasks = _open_tasks(settings, errors, skills, benchmarks)
    errors.raise_if_any()
    engine = Engine(evaluated.model, evaluated.tokenizer)
    responder = ModelResponder(engine, settings.batch_tokens or default_batch_tokens(device))
    output = expand_path(settings.output or evaluated.folder / OUTPUT)
    document = evaluated.to_json() | {"settings": dataclasses.asdict(settings), "notes": evaluated.notes, "tasks": []}
    print("\n".join([evaluated.title, *evaluated.notes]), flush=True)
    began, results = time.perf_counter(), []
    for task in tasks:
        result, replies = evaluate_chat_task(responder, task)
        results.append(result)
        document["tasks"].append(result.to_json() | {"measures": task.measures, "replies": replies[:SHOWN]})
        document["seconds"] = round(time.perf_counter() - began, 2)
        document["complete"] = len(results) == len(tasks)
        write_json(output, document)
        for reply in replies[:SHOWN]:
            print(printable(f"> {reply['prompt']}\n{'  ' if reply['right'] else '✗ '}{reply['reply']}"), flush=True)
    print(format_results(results))
    print_end(output, document)


def _open_tasks(
    settings: ChatEvalSettings, errors: Errors, skills: Skills, benchmarks: Mapping[str, Task]
) -> list[ChatTask]:
    asked = [n for name in split_names(settings.tasks) for n in (skills if name == ALL_SKILLS else [name])]
    for name in asked:
        takes = ", ".join((ALL_SKILLS, *skills, *benchmarks))
        errors.require(name in skills or name in benchmarks, "--tasks", name, takes)
    wanted = [name for name in asked if name in benchmarks]
    source = None  # nothing is opened for skills alone
    if wanted or not asked:
        needed = ", ".join(wanted)
        source = open_source(settings.eval_bundle, benchmarks, errors, needed, with_hub=True)
    in_source = [name for name in benchmarks if source and name in source.tasks]
    tasks = []
    for name in dict.fromkeys(asked or [*skills, *in_source]):
        if name in skills:
            tasks.append(skills[name](settings.max_per_task or SKILL_ITEMS))
        elif source and errors.require(name in in_source, "--tasks", name, f"one of {', '.join(in_source)}"):
            task = errors.capture(lambda name=name: chat_task(source.load(name), settings.max_per_task))
            tasks += [task] if task else []
    return tasks
