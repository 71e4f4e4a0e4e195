"""Benchmarks, one file each, and the generated conversations for chat training."""

from collections.abc import Callable
from importlib import import_module

from tasks.core import CORE

__all__ = ["BENCHMARKS", "CHATCORE", "CORE", "PASSAGES"]


def _load_on_use(module: str, function: str) -> Callable:
    """A function of a module of this package, which is imported when it is called."""
    return lambda source: getattr(import_module(f"tasks.{module}"), function)(source)


# In-context tasks whose items are built from validation text: functions of the documents.
PASSAGES = {
    "true_continuation": _load_on_use("passages", "load_true_continuation"),
    "last_word": _load_on_use("passages", "load_last_word"),
}

# Chat tasks: functions of the source of their items. They return None if the source does not have them.
BENCHMARKS = {
    "arc_easy": _load_on_use("arc", "easy"),
    "arc_challenge": _load_on_use("arc", "challenge"),
    "mmlu": _load_on_use("mmlu", "load"),
    "gsm8k": _load_on_use("gsm8k", "load"),
    "humaneval": _load_on_use("humaneval", "load"),
}

# ChatCORE of nanochat is the mean centered score over these tasks. The values are the chance levels that it uses.
CHATCORE = {"arc_easy": 0.25, "arc_challenge": 0.25, "mmlu": 0.25, "gsm8k": 0.0, "humaneval": 0.0}
