"""Bits per byte, the three in-context-learning protocols, chat evaluation, and the scores made of them."""

from nanogka.evaluate.bundle import open_bundle
from nanogka.evaluate.in_context import core_evaluation, evaluate_task, evaluate_tasks
from nanogka.evaluate.measures import BitsPerByte, draw_samples, measure_bits_per_byte, measure_chat_loss
from nanogka.evaluate.scores import TaskResult, mean_centered
from nanogka.evaluate.sources import open_core_tasks
from nanogka.evaluate.task import HubSource, Task, TaskData

__all__ = [
    "BitsPerByte",
    "HubSource",
    "Task",
    "TaskData",
    "TaskResult",
    "core_evaluation",
    "draw_samples",
    "evaluate_task",
    "evaluate_tasks",
    "mean_centered",
    "measure_bits_per_byte",
    "measure_chat_loss",
    "open_bundle",
    "open_core_tasks",
]
