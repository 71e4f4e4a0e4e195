"""Bits per byte, the three in-context-learning protocols, chat evaluation, and the scores made of them."""

from nanogka.evaluate.bits_per_byte import BitsPerByte, measure_bits_per_byte
from nanogka.evaluate.bundle import Bundle, open_bundle
from nanogka.evaluate.core import core_evaluation, open_core_tasks
from nanogka.evaluate.in_context import evaluate_task, evaluate_tasks
from nanogka.evaluate.scores import Prediction, TaskResult, mean_centered
from nanogka.evaluate.task import HubSource, Task, TaskData

__all__ = [
    "BitsPerByte",
    "Bundle",
    "HubSource",
    "Prediction",
    "Task",
    "TaskData",
    "TaskResult",
    "core_evaluation",
    "evaluate_task",
    "evaluate_tasks",
    "mean_centered",
    "measure_bits_per_byte",
    "open_bundle",
    "open_core_tasks",
]
