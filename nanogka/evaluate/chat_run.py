"""One evaluation in conversations, from settings to results: skills made by code, and benchmarks asked as a chat."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanogka.cli import flag
from nanogka.evaluate.chat import ChatTask, ModelResponder, Reply, chat_task, evaluate_chat_task, format_results
from nanogka.evaluate.in_context import default_batch_tokens
from nanogka.evaluate.model_under_evaluation import open_run
from nanogka.evaluate.run import check_at_least_1, check_writable, split_names, write_json
from nanogka.evaluate.scores import TaskResult
from nanogka.evaluate.sources import BUNDLE_HELP, BundleSource
from nanogka.evaluate.task import Task
from nanogka.generate import Engine
from nanogka.problems import Problems
from nanogka.runtime import pick_device_and_dtype

OUTPUT = "chat_evaluation.json"
ALL_SKILLS = "skills"
SKILL_ITEMS = 300
SHOWN = 3  # replies of each task that the results keep, right or wrong

Skills = Mapping[str, Callable[[int], ChatTask]]


@dataclass(frozen=True)
class ChatEvalSettings:
    """The settings of `scripts.chat_eval`."""

    run: str = flag("", "a run's folder or tag (default: the chat run trained last)")
    step: int | None = flag(None, "which checkpoint of the run (default: the newest sound one)")
    tasks: str = flag("", f"these tasks only, with commas between; {ALL_SKILLS} for the four made by code")
    max_per_task: int | None = flag(None, f"items of each task at most (default: skills {SKILL_ITEMS}, others all)")
    eval_bundle: str = flag("auto", f"of the benchmarks: {BUNDLE_HELP}")
    batch_tokens: int | None = flag(None, "tokens of a batch at most, with padding (default: what suits the device)")
    output: str = flag("", f"where to write (default: {OUTPUT} in the run's folder)")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "compute dtype: auto, float32, bfloat16 or float16")


def evaluate_chat(
    settings: ChatEvalSettings, problems: Problems, skills: Skills, benchmarks: Mapping[str, Task]
) -> int:
    """Do what the settings ask for; the results are written after each task, so that an interrupt loses little.

    Args:
        skills: makes the task of a skill with at most so many questions, by name.
        benchmarks: tasks of a bundle or the hub that can be asked as a chat, by name.

    Returns:
        The exit code.

    Raises:
        ValueError: with a line for each problem, before anything is computed.
        OSError: if a bundle cannot be fetched.
    """
    check_at_least_1(settings, ("max_per_task", "batch_tokens"), problems)
    check_writable(settings, ("output",), problems)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    evaluated = problems.attempt(lambda: open_run(settings.run, settings.step, device or "cpu", dtype, kind="chat"))
    tasks = _open_tasks(settings, problems, skills, benchmarks)
    problems.raise_any()
    engine = Engine(evaluated.model, evaluated.tokenizer)
    responder = ModelResponder(engine, settings.batch_tokens or default_batch_tokens(device))
    output = Path(settings.output or evaluated.folder / OUTPUT).expanduser()
    document = evaluated.to_json() | {"settings": dataclasses.asdict(settings), "notes": evaluated.notes, "tasks": []}
    print("\n".join([evaluated.title, *evaluated.notes]), flush=True)
    began, results = time.perf_counter(), []
    for task in tasks:
        result, replies = evaluate_chat_task(responder, task)
        results.append(result)
        document["tasks"].append(_task_to_json(task, result, replies[:SHOWN]))
        document["seconds"] = round(time.perf_counter() - began, 2)
        write_json(output, document)
        for reply in replies[:SHOWN]:
            print(f"> {reply.item.prompt}\n{'  ' if reply.right else '✗ '}{reply.text}", flush=True)
    print(format_results(results))
    print(f"written to {output}")
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    return 0


def _open_tasks(
    settings: ChatEvalSettings, problems: Problems, skills: Skills, benchmarks: Mapping[str, Task]
) -> list[ChatTask]:
    """The tasks that the settings ask for, by default all there are, their items read and checked."""
    asked = [n for name in split_names(settings.tasks) for n in (skills if name == ALL_SKILLS else [name])]
    for name in asked:
        takes = ", ".join((ALL_SKILLS, *skills, *benchmarks))
        problems.check(name in skills or name in benchmarks, "--tasks", name, takes)
    wanted = [name for name in asked if name in benchmarks]
    source = BundleSource.parse(settings.eval_bundle)
    if (source.may_download and problems.lines) or (asked and not wanted):
        bundle = None  # nothing is fetched for a call that will be refused, or for nothing
    else:
        bundle = problems.attempt(lambda: source.open(benchmarks, ", ".join(wanted), notes=[]))
    in_bundle = [name for name in benchmarks if bundle and name in bundle.tasks]
    tasks = []
    for name in dict.fromkeys(asked or [*skills, *in_bundle]):
        if name in skills:
            tasks.append(skills[name](settings.max_per_task or SKILL_ITEMS))
        elif bundle and problems.check(name in in_bundle, "--tasks", name, f"one of {', '.join(in_bundle)}"):
            task = problems.attempt(lambda name=name: chat_task(bundle.load(name), settings.max_per_task))
            tasks += [task] if task else []
    return tasks


def _task_to_json(task: ChatTask, result: TaskResult, shown: Sequence[Reply]) -> dict:
    replies = [
        {"prompt": reply.item.prompt, "reply": reply.text, "answer": reply.item.answer, "right": reply.right}
        for reply in shown
    ]
    return result.to_json() | {"measures": task.measures, "replies": replies}
