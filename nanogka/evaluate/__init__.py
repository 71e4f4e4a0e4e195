"""Bits per byte, the three in-context-learning protocols, and the scores made of them."""

from nanogka.evaluate.bits_per_byte import BitsPerByte, bits_per_byte, measure_bits_per_byte
from nanogka.evaluate.bundle import Bundle, open_bundle
from nanogka.evaluate.in_context import Prediction
from nanogka.evaluate.scores import TaskResult, core_score, six_task_mean
from nanogka.evaluate.suite import evaluate_task, evaluate_tasks
from nanogka.evaluate.task import Task, TaskData

__all__ = [
    "BitsPerByte",
    "Bundle",
    "Prediction",
    "Task",
    "TaskData",
    "TaskResult",
    "bits_per_byte",
    "core_score",
    "evaluate_task",
    "evaluate_tasks",
    "measure_bits_per_byte",
    "open_bundle",
    "six_task_mean",
]
