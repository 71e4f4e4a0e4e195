"""Evaluate a chat model: ask questions and judge its replies.

There are two ways to ask. With generation, the model writes a reply greedily. With letters, the question lists choices
with a letter each, and the model's answer is the letter that is most likely as the first token of the reply.
"""

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path
from nanogka.common.formatting import plain_table, printable
from nanogka.common.runtime import pick_device_and_dtype
from nanogka.data.conversation import Conversation
from nanogka.data.hub import Hub
from nanogka.evaluate.bundle import Bundle, find_bundle
from nanogka.evaluate.core import default_batch_tokens
from nanogka.evaluate.document import Document, key_of
from nanogka.evaluate.loglikelihood import padded
from nanogka.evaluate.models import damaged_checkpoints, open_run
from nanogka.evaluate.results import TaskResult, mean_centered
from nanogka.evaluate.settings import OUTPUT, SKILL_ITEMS, ChatEvalSettings, check_writable, split_names
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import Prompt, prompt_of, request_of
from nanogka.generate.reply import Reply
from nanogka.generate.settings import SamplingParams

SHOWN = 3  # replies per task to keep in the results, right or wrong
GENERATION, LETTER = "generation", "letter"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# A number: commas separate thousands, and a sign belongs to it unless something stands before the sign, as in 3-5.
_NUMBER = r"(?:(?<![\w)\]])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][+-]?\d+)?"
_ANY = re.compile(_NUMBER)
_MARKED = re.compile(rf"####\s*({_NUMBER})")  # the final answer as GSM8K marks it


# ---- questions ----


def exactly(reply: str, answer: str) -> bool:
    """Return whether the reply is the answer, ignoring surrounding blanks."""
    return reply.strip() == answer.strip()


def same_number(reply: str, answer: str) -> bool:
    """Return whether reply and answer have the same final number."""
    number = final_number(reply)
    return number is not None and number == final_number(answer)


def final_number(text: str) -> float | None:
    """The number after the last `####`, else the last number in the text, else None."""
    text = text.replace("\N{MINUS SIGN}", "-")
    found = _MARKED.findall(text) or _ANY.findall(text)
    return float(found[-1].replace(",", "")) if found else None


@dataclass(frozen=True)
class ChatItem:
    """A question: the user's message, the right answer, and the function that judges a reply by it."""

    prompt: str
    answer: str
    judge: Callable[[str, str], bool] = exactly
    letters: tuple[str, ...] = ()  # the labels of the choices, if there are choices
    key: str = ""  # what is asked, whatever the wording; prompts with one key are one item of the sample


@dataclass(frozen=True)
class ChatTask:
    """Questions of one kind."""

    name: str
    items: Sequence[ChatItem]
    chance: float  # the score without reading the question: guessing, or always giving the most common answer
    max_tokens: int = 32  # of a generated reply
    description: str = ""

    @property
    def type(self) -> str:
        """The kind of question: one that asks for a letter, or for generated text."""
        return LETTER if self.items and self.items[0].letters else GENERATION


def majority(answers: Sequence[str]) -> float:
    """The share of the most common answer, which a model scores that always gives it."""
    return Counter(answers).most_common(1)[0][1] / len(answers)


def letter_item(question: str, choices: Sequence[str], gold: int, letters: Sequence[str] = LETTERS) -> ChatItem:
    """A multiple-choice question as nanochat renders it."""
    if len(choices) > len(letters):
        raise ValueError(f"choices: got {len(choices)}, expected at most {len(letters)}")
    letters = tuple(letters[: len(choices)])
    # nanochat's author found that small models learn better if the letter follows its choice, and if no blank precedes
    # the letter: it is then the same token as in the reply.
    lines = [f"- {choice}={letter}" for letter, choice in zip(letters, choices)]
    listed = "\n".join([f"Multiple Choice question: {question}", *lines])
    prompt = f"{listed}\n\nRespond only with the letter of the correct answer."
    return ChatItem(prompt, letters[gold], letters=letters)


def letter_task(name: str, items: Sequence[ChatItem], description: str = "") -> ChatTask:
    """A task of multiple-choice questions."""
    chance = sum(1 / len(item.letters) for item in items) / len(items)
    return ChatTask(name, items, chance, description=description)


# ---- asking ----


class ChatModel:
    """One of our models, asked in batches of prompts of similar length."""

    def __init__(self, engine: Engine, batch_tokens: int) -> None:
        self.engine, self.batch_tokens = engine, batch_tokens

    def replies(self, prompts: Sequence[Conversation], max_tokens: int) -> list[str | None]:
        """The greedy reply to each prompt; None for a prompt that does not fit the context."""
        texts: list[str | None] = [None] * len(prompts)
        greedy = SamplingParams(temperature=0)
        for numbers, batch in self._batches(prompts):
            requests = [request_of([prompt], greedy, max_tokens=max_tokens) for prompt in batch]
            replies = {request: Reply() for request in requests}
            for step in self.engine.steps(requests):
                for request, output in step:
                    replies[request].add(output)
            for number, reply in zip(numbers, replies.values(), strict=True):
                texts[number] = reply.text  # without calls of the calculator and their results
        return texts

    @torch.no_grad()
    def letters(self, prompts: Sequence[Conversation], letters: Sequence[Sequence[str]]) -> list[str | None]:
        """The most likely of `letters[i]` as the reply to prompt i; None for a prompt that does not fit the context."""
        model, encode = self.engine.model, self.engine.tokenizer.encode
        found: list[str | None] = [None] * len(prompts)
        for numbers, batch in self._batches(prompts):
            rows = [prompt.ids for prompt in batch]
            last = torch.tensor([len(ids) - 1 for ids in rows], device=model.device)
            hidden = model.hidden(padded(rows, 0, model.device))[torch.arange(len(rows)), last]  # (B, C)
            for number, logits in zip(numbers, model.unembed(hidden[:, None])[:, 0]):
                # Only the letters compete. A model that would rather begin with a word still gets an answer.
                ids = [encode(letter)[0] for letter in letters[number]]
                found[number] = letters[number][int(logits[ids].argmax())]
        return found

    def _batches(self, conversations: Sequence[Conversation]) -> Iterator[tuple[list[int], list[Prompt]]]:
        """Yield (numbers, prompts) of all conversations that leave room for a reply, the longest first."""
        prompts = [prompt_of(self.engine.tokenizer, conversation) for conversation in conversations]
        lengths = [len(prompt.ids) for prompt in prompts]
        numbers = [number for number, length in enumerate(lengths) if length < self.engine.context]
        numbers.sort(key=lambda number: -lengths[number])
        while numbers:
            size = max(1, self.batch_tokens // lengths[numbers[0]])
            batch, numbers = numbers[:size], numbers[size:]
            yield batch, [prompts[number] for number in batch]


def evaluate_chat_task(model: ChatModel, task: ChatTask, ranks: Ranks | None = None) -> tuple[TaskResult, list[dict]]:
    """Ask the questions, which ranks share; all ranks must call this, and all get everything.

    Returns the result, and of each item `prompt`, `reply` (None if it does not fit the context), `answer`, `right`.
    """
    ranks, began = ranks or Ranks(), time.perf_counter()
    mine = task.items[ranks.rank :: ranks.world_size]
    prompts = [Conversation.of(item.prompt) for item in mine]
    if task.type == LETTER:
        replies = model.letters(prompts, [item.letters for item in mine])
    else:
        replies = model.replies(prompts, task.max_tokens)
    right = [reply is not None and item.judge(reply, item.answer) for item, reply in zip(mine, replies)]
    outcomes: list = [None] * len(task.items)
    for rank, part in enumerate(ranks.all_gather(list(zip(replies, right)))):
        outcomes[rank :: ranks.world_size] = part
    unscorable = sum(reply is None for reply, _ in outcomes)
    counts = {"correct": sum(good for _, good in outcomes), "items": len(outcomes), "unscorable": unscorable}
    counts["distinct"] = len({item.key or item.prompt for item in task.items})
    result = TaskResult(task.name, task.type, 0, task.chance, seconds=time.perf_counter() - began, **counts)
    return result, [
        {"prompt": item.prompt, "reply": reply, "answer": item.answer, "right": good}
        for item, (reply, good) in zip(task.items, outcomes)
    ]


def format_results(results: Sequence[TaskResult]) -> str:
    """The results as a table of plain text."""
    rows, notes = [["task", "method", "right", "95 % interval", "chance", "questions", "different"]], []
    for result in results:
        right, chance = (f"{100 * value:.1f} %" for value in (result.accuracy, result.chance))
        ends = f"{100 * result.interval.low:.1f} to {100 * result.interval.high:.1f} %"
        rows.append([result.name, result.type, right, ends, chance, f"{result.items:,}", f"{result.sample:,}"])
        if result.unscorable:
            notes.append(f"{result.name}: {result.unscorable:,} do not fit the context and count as wrong")
    return "\n".join([plain_table(rows, left=2), *notes])


def chatcore_of(results: Sequence[TaskResult], chances: Mapping[str, float]) -> float | None:
    """nanochat's ChatCORE, the mean of the centered scores; None unless all of its tasks were run."""
    found = [dataclasses.replace(r, chance=chances[r.name]) for r in results if r.name in chances]
    return mean_centered(found, tuple(chances))


# ---- one evaluation, from settings to results ----

Skills = Mapping[str, Callable[[int], ChatTask]]  # functions that return a task with at most this many questions
Groups = Mapping[str, Skills]  # skills by a name that means all of them; the first group is evaluated by default
Benchmarks = Mapping[str, Callable[[Hub | Bundle], ChatTask | None]]  # None if the source does not have the task


def evaluate_chat(
    settings: ChatEvalSettings, errors: Errors, groups: Groups, benchmarks: Benchmarks, chatcore: Mapping[str, float]
) -> None:
    """Evaluate skills and benchmarks as the settings say. `chatcore` has the chance levels of ChatCORE's tasks.

    The results are written after each task; `complete` is true in the finished ones.
    """
    ranks = Ranks.from_environment()
    check_writable(settings, ("output",), errors)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors, decode=True)
    errors.raise_if_any()
    device = ranks.device(device)
    evaluated = open_run(settings.run, settings.step, device, dtype, kind="chat")
    notes = damaged_checkpoints(evaluated.own) if settings.step is None else []
    tasks = _open_tasks(settings, groups, benchmarks, notes)
    batch_tokens = settings.batch_tokens or default_batch_tokens(device)
    model = ChatModel(Engine(evaluated.own.model, evaluated.own.tokenizer), batch_tokens)
    judges = {_function(item.judge).__module__ for task in tasks for item in task.items}
    deciding = [evaluated.to_json(), evaluated.fingerprint, batch_tokens, *map(_facts, tasks)]
    made_from = key_of(deciding, sorted(judges))
    document = Document.open(evaluated, settings, OUTPUT, made_from, notes, ranks, batch_tokens=batch_tokens)
    with ranks.process_group(device):
        if document.is_finished_by(document.earlier()):
            return
        results, entries = [], []
        for task in tasks:
            result, replies = evaluate_chat_task(model, task, ranks)
            results.append(result)
            entries.append(result.to_json() | {"measures": task.description, "replies": replies[:SHOWN]})
            document.save(tasks=entries, chatcore=chatcore_of(results, chatcore))
            if ranks.is_main:
                for reply in replies[:SHOWN]:
                    mark = "  " if reply["right"] else "✗ "
                    print(printable(f"> {reply['prompt']}\n{mark}{reply['reply']}"), flush=True)
        if ranks.is_main:
            print(format_results(results))
            if document.content.get("chatcore") is not None:
                print(f"ChatCORE {document.content['chatcore']:.4f}")
        document.finish()


def _facts(task: ChatTask) -> list:
    """Everything that decides the result of a task, as JSON, but for the code of the functions that judge."""
    items = [[item.prompt, item.answer, item.letters, repr(_arguments(item.judge))] for item in task.items]
    return [task.name, task.max_tokens, task.chance, items]


def _function(judge: Callable) -> Callable:
    """The function behind a `partial`."""
    return judge.func if isinstance(judge, partial) else judge


def _arguments(judge: Callable) -> list:
    """The arguments in a `partial`, such as the tests of a program."""
    return [judge.args, judge.keywords] if isinstance(judge, partial) else []


def _open_tasks(settings: ChatEvalSettings, groups: Groups, benchmarks: Benchmarks, notes: list[str]) -> list[ChatTask]:
    asked = [n for name in split_names(settings.tasks) for n in groups.get(name, [name])]
    skills = {name: load for group in groups.values() for name, load in group.items()}
    for name in asked:
        if name not in skills and name not in benchmarks:
            raise ValueError(f"tasks: got {name!r}, expected {', '.join((*groups, *skills, *benchmarks))}")
    names = dict.fromkeys(asked or [*next(iter(groups.values())), *benchmarks])
    # The chance level is that of as many questions as by default: with one question, its answer would always be right.
    tasks = [skills[name](max(SKILL_ITEMS, settings.max_per_task or 0)) for name in names if name in skills]
    source = _open_source(settings.eval_bundle, notes) if set(names) - set(skills) else None
    for name in names:
        task = None if source is None or name in skills else benchmarks[name](source)
        if task:
            tasks.append(task)
    missing = [name for name in asked if name not in [task.name for task in tasks]]
    if missing:
        why = "".join(f"; {note}" for note in notes)
        raise ValueError(
            f"tasks: got {missing[0]!r}, expected tasks that --eval-bundle {settings.eval_bundle} has{why}"
        )
    return [dataclasses.replace(task, items=task.items[: settings.max_per_task]) for task in tasks]


def _open_source(choice: str, notes: list[str]) -> Hub | Bundle | None:
    kind, _, folder = choice.partition(":")
    if kind == "hub":
        return Hub(expand_path(folder) if folder else None)
    return find_bundle(choice, notes)
