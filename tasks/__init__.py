"""What models are evaluated on and learn to chat from: one file per benchmark, and the conversations made by code."""

from tasks import arc, gsm8k, mmlu, passages
from tasks.core import CORE

__all__ = ["BENCHMARKS", "CORE", "PASSAGES"]

# Tasks asked in context whose items are made from validation text: functions of the documents.
PASSAGES = passages.TASKS

# Tasks asked in conversations: functions of the source of their items, None if it does not have them.
BENCHMARKS = {"arc_easy": arc.easy, "arc_challenge": arc.challenge, "mmlu": mmlu.load, "gsm8k": gsm8k.load}
