"""Benchmarks, one file each, and the generated conversations for chat training."""

from tasks import arc, gsm8k, humaneval, mmlu, passages
from tasks.core import CORE

__all__ = ["BENCHMARKS", "CHATCORE", "CORE", "PASSAGES"]

# In-context tasks whose items are built from validation text: functions of the documents.
PASSAGES = passages.TASKS

# Chat tasks: functions of the source of their items. They return None if the source does not have them.
BENCHMARKS = {
    "arc_easy": arc.easy,
    "arc_challenge": arc.challenge,
    "mmlu": mmlu.load,
    "gsm8k": gsm8k.load,
    "humaneval": humaneval.load,
}

# ChatCORE of nanochat is the mean centered score over these tasks. The values are the chance levels that it uses.
CHATCORE = {"arc_easy": 0.25, "arc_challenge": 0.25, "mmlu": 0.25, "gsm8k": 0.0, "humaneval": 0.0}
