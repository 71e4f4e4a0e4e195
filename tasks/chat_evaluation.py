"""One evaluation in conversations, from settings to results: the embedded skills, ARC, MMLU, GSM8K."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nanogka.cli import flag
from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.evaluate.chat import (
    LETTERS,
    ChatItem,
    ChatTask,
    Reply,
    evaluate_chat_task,
    format_results,
    letter_task,
    majority,
    number_task,
)
from nanogka.evaluate.in_context import default_batch_tokens
from nanogka.evaluate.scores import TaskResult
from nanogka.generate import Engine, SamplingSettings
from nanogka.problems import Problems
from nanogka.runtime import pick_device_and_dtype
from nanogka.train.checkpoint import LoadedRun, find_run, load_run
from nanogka.train.settings import flag_name
from tasks import arc, gsm8k, mmlu
from tasks.evaluation import write_json
from tasks.selection import BUNDLE_HELP, bundle_source, find_bundle
from tasks.skills import SKILLS, questions

OUTPUT = "chat_evaluation.json"
SKILL_ITEMS = 300
SHOWN = 3  # replies of each task that the results keep, right or wrong
BENCHMARKS = {task.name: task for module in (arc, mmlu, gsm8k) for task in module.TASKS}
NAMES = (*SKILLS, *BENCHMARKS)


@dataclass(frozen=True)
class ChatEvalSettings:
    """What `scripts.chat_eval` takes."""

    run: str = flag("", "a run's folder or tag (default: the chat run trained last)")
    step: int | None = flag(None, "which checkpoint of the run (default: the newest sound one)")
    tasks: str = flag("", f"of {', '.join(NAMES)}, or skills for the first four (default: what there is)")
    max_per_task: int | None = flag(None, f"items of each task at most (default: skills {SKILL_ITEMS}, others all)")
    eval_bundle: str = flag("auto", f"of ARC, MMLU and GSM8K: {BUNDLE_HELP}")
    batch_tokens: int | None = flag(None, "tokens of a batch at most, with padding (default: what suits the device)")
    output: str = flag("", f"where to write (default: {OUTPUT} in the run's folder)")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "compute dtype: auto, float32, bfloat16 or float16")

    @property
    def names(self) -> list[str]:
        """The tasks that are asked for; none for what there is."""
        asked = [name.strip() for name in self.tasks.split(",") if name.strip()]
        return list(dict.fromkeys(n for name in asked for n in (SKILLS if name == "skills" else [name])))

    def check(self, problems: Problems) -> None:
        """Record every setting that is out of range by itself."""
        for name in self.names:
            problems.check(name in NAMES, "--tasks", name, ", ".join(("skills", *NAMES)))
        for name in ("max_per_task", "batch_tokens"):
            value = getattr(self, name)
            problems.check(value is None or value >= 1, flag_name(name), value, "an integer of at least 1")
        parent = Path(self.output).expanduser().parent
        problems.check(not self.output or parent.is_dir(), "--output", self.output, "a file in a folder that exists")


class ModelResponder:
    """One of our models, asked in batches of prompts of like length.

    Args:
        batch_tokens: of the prompts of a batch, padding included.
    """

    def __init__(self, engine: Engine, batch_tokens: int) -> None:
        self.engine, self.batch_tokens = engine, batch_tokens
        self.form = ChatFormat(engine.tokenizer)
        self._letters = [engine.tokenizer.encode(letter)[0] for letter in LETTERS]

    def replies(self, prompts: Sequence[Conversation], max_tokens: int) -> list[str | None]:
        """See `nanogka.evaluate.chat.Responder`."""

        def ask(batch: list[list[int]], _: list[int]) -> list[str]:
            texts = [""] * len(batch)
            stops = (self.form.stop_id, self.engine.tokenizer.bos_id)
            greedy = SamplingSettings(temperature=0)
            for events in self.engine.stream(batch, greedy, max_tokens=max_tokens, stop_tokens=stops):
                for event in events:
                    texts[event.sample] += event.text
            return texts

        return self._in_batches(prompts, ask)

    def letters(self, prompts: Sequence[Conversation], choices: Sequence[int]) -> list[int | None]:
        """See `nanogka.evaluate.chat.Responder`."""

        @torch.no_grad()
        def ask(batch: list[list[int]], places: list[int]) -> list[int]:
            hidden, _ = self.engine.prefill(batch)
            logits = self.engine.model.unembed(hidden)[:, self._letters]
            return [int(row[: choices[place]].argmax()) for row, place in zip(logits, places)]

        return self._in_batches(prompts, ask)

    def _in_batches(self, prompts: Sequence[Conversation], ask: Callable[[list[list[int]], list[int]], list]) -> list:
        """`ask(ids of a batch, their places)` of all prompts that leave room for a reply; None for the others."""
        ids = [self.form.render_prompt(prompt) for prompt in prompts]
        found: list = [None] * len(ids)
        places = [place for place, own in enumerate(ids) if len(own) < self.engine.context]
        places.sort(key=lambda place: -len(ids[place]))
        while places:
            size = max(1, self.batch_tokens // len(ids[places[0]]))
            batch, places = places[:size], places[size:]
            for place, answer in zip(batch, ask([ids[place] for place in batch], batch)):
                found[place] = answer
        return found


def skill_task(name: str, max_items: int | None = None) -> ChatTask:
    """The held-out questions of one embedded skill."""
    skill = SKILLS[name]
    items = [ChatItem(question.prompt, question.answer) for question in questions(skill, max_items or SKILL_ITEMS)]
    return ChatTask(name, items, majority([item.answer for item in items]), measures=skill.measures)


def open_tasks(settings: ChatEvalSettings, problems: Problems) -> list[ChatTask]:
    """The tasks that the settings ask for, their items read and checked."""
    asked = settings.names
    wanted = [name for name in asked if name in BENCHMARKS]
    source = bundle_source(settings.eval_bundle)
    if (source.may_download and problems.lines) or (asked and not wanted):
        bundle = None  # nothing is fetched for a call that will be refused, or for nothing
    else:
        bundle = problems.attempt(lambda: find_bundle(source, bool(wanted), [], BENCHMARKS))
    in_bundle = [name for name in BENCHMARKS if bundle and name in bundle.tasks]
    names = asked or [*SKILLS, *in_bundle]
    tasks = []
    for name in names:
        if name in SKILLS:
            tasks.append(skill_task(name, settings.max_per_task))
        elif name in in_bundle:
            task = problems.attempt(lambda name=name: _benchmark(bundle, name, settings.max_per_task))
            tasks += [task] if task else []
        elif bundle:
            problems.check(False, "--tasks", name, f"what {settings.eval_bundle} has: {', '.join(in_bundle)}")
    return tasks


def _benchmark(bundle, name: str, max_items: int | None) -> ChatTask:
    data = bundle.load(name)
    return number_task(data, gsm8k.MAX_TOKENS, max_items) if name == "gsm8k" else letter_task(data, max_items)


def evaluate(settings: ChatEvalSettings, problems: Problems) -> int:
    """Do what the settings ask for; the results are written after each task, so that an interrupt loses little."""
    settings.check(problems)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    folder = problems.attempt(lambda: find_run(settings.run or None, kind=None if settings.run else "chat"))
    tasks = open_tasks(settings, problems) if not problems.lines else []
    problems.raise_any()
    run = load_run(folder, device, settings.step, dtype)
    responder = ModelResponder(Engine(run.model, run.tokenizer), settings.batch_tokens or default_batch_tokens(device))
    output = Path(settings.output or folder / OUTPUT).expanduser()
    document = _head(run, settings)
    print(f"{folder.name}, step {run.step}, on {device} in {document['dtype']}", flush=True)
    began, results = time.perf_counter(), []
    for task in tasks:
        result, replies = evaluate_chat_task(responder, task)
        results.append(result)
        document["tasks"].append(_of_task(task, result, replies))
        document["seconds"] = round(time.perf_counter() - began, 2)
        write_json(output, document)
        for reply in replies[:SHOWN]:
            print(f"> {reply.item.prompt}\n{'  ' if reply.right else '✗ '}{reply.text}", flush=True)
    print(format_results(results))
    print(f"written to {output}")
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    return 0


def _head(run: LoadedRun, settings: ChatEvalSettings) -> dict:
    return {
        "run": run.folder.name,
        "step": run.step,
        "checkpoint": run.checkpoint_folder.name,
        "device": str(run.model.device),
        "dtype": str(run.model.compute_dtype).removeprefix("torch."),
        "settings": dataclasses.asdict(settings),
        "tasks": [],
    }


def _of_task(task: ChatTask, result: TaskResult, replies: Sequence[Reply]) -> dict:
    shown = [
        {"prompt": reply.item.prompt, "reply": reply.text, "answer": reply.item.answer, "right": reply.right}
        for reply in replies[:SHOWN]
    ]
    return result.to_json() | {"measures": task.measures, "replies": shown}
