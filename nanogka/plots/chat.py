"""The report's part on conversations: what fine-tuning made of the run, from the chat run's own folder."""

import json
from pathlib import Path

import yaml

from nanogka.plots.runs import Run, load_run
from nanogka.plots.tables import MISSING, duration, markdown_table, number

EVALUATION = "chat_evaluation.json"
EXCHANGES = 2  # of each task that is answered in words


def find_chat_run(run: Run) -> Run | None:
    """The newest chat run beside `run` that was made from it; None if there is none."""
    found = []
    for path in sorted(run.folder.parent.glob("*/config.yaml")):
        try:
            facts = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("run") or {}
            if facts.get("kind") == "chat" and facts["base"]["run"] == run.tag:
                found.append((path.stat().st_mtime, load_run(path.parent)))
        except (yaml.YAMLError, ValueError, OSError, KeyError, TypeError, AttributeError):
            continue  # a run that is only just starting, or damaged: not this report's concern
    return max(found, key=lambda pair: pair[0])[1] if found else None


def base_of(run: Run) -> Path | None:
    """The folder of the run that a chat run was made from; None for any other run."""
    facts = run.part("run")
    return run.folder.parent / facts["base"]["run"] if facts.get("kind") == "chat" else None


def chat_section(run: Run, name: str) -> str:
    """The section; `name` is how other scripts are told which run this is."""
    chat = find_chat_run(run)
    if chat is None:
        return f"## Chat\n\nNot fine-tuned yet: `python -m scripts.chat_sft --base {name}`."
    parts = ["## Chat", _training(chat)]
    evaluation = _evaluation(chat)
    if evaluation is None:
        return "\n\n".join([*parts, f"Not evaluated yet: `python -m scripts.chat_eval --run {chat.tag}`."])
    if evaluation.get("step") != chat.train[-1]["step"]:
        parts.append(f"What follows speaks of step {evaluation.get('step')}, not of the last step.")
    tasks = [task for task in evaluation.get("tasks", ()) if isinstance(task, dict)]
    parts += [_scores(tasks), *_exchanges(tasks)]
    parts.append(f"Talk to it:\n\n```bash\npython -m scripts.chat_cli --run {chat.tag}\n```")
    return "\n\n".join(parts)


def _training(chat: Run) -> str:
    losses = [line["val_loss"] for line in chat.evals if isinstance(line.get("val_loss"), int | float)]
    fell = f"; validation loss {losses[0]:.3f} → {losses[-1]:.3f} nats a token" if losses else ""
    data = chat.part("settings").get("data") or MISSING
    return (
        f"`{chat.tag}` was made from this run's weights with {chat.train[-1]['step']:,} steps on conversations "
        f"({data}) in {duration(chat.training_seconds)}{fell}. Only what the assistant says was learned."
    )


def _evaluation(chat: Run) -> dict | None:
    try:
        found = json.loads((chat.folder / EVALUATION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _scores(tasks: list[dict]) -> str:
    rows = []
    for task in tasks:
        error = f" ± {100 * task['stderr']:.1f}" if task.get("stderr") is not None else ""
        accuracy, chance = f"{100 * task['accuracy']:.1f}{error} %", f"{100 * task['chance']:.1f} %"
        rows.append((task["name"], task.get("measures") or MISSING, accuracy, chance, number(task["items"])))
    table = markdown_table(("task", "asks for", "right", "without reading the question", "questions"), rows, left=2)
    return (
        f"{table}\n\nThe questions are of items that no training had. ± is one standard error; without reading the "
        "question: guessing, or always the commonest answer."
    )


def _exchanges(tasks: list[dict]) -> list[str]:
    """What was asked and replied, word for word, right or wrong."""
    lines = []
    for task in tasks:
        for reply in (task.get("replies") or ())[:EXCHANGES]:
            if task.get("type") != "generation":
                continue
            verdict = "right" if reply.get("right") else f"wrong: {reply.get('answer')}"
            lines += [f"user       {reply.get('prompt')}", f"assistant  {reply.get('reply')}    [{verdict}]", ""]
    text = "\n".join(lines).rstrip()
    fence = "```"
    while fence in text:
        fence += "`"
    heading = "The first questions of each kind with the model's replies, chosen by nobody:"
    return [f"{heading}\n\n{fence}text\n{text}\n{fence}"] if text else []
