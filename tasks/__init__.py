"""What models are evaluated on and learn to chat from: one file per benchmark, and the conversations made by code."""

from tasks import arc, gsm8k, humaneval, mmlu, passages
from tasks.core import CORE

__all__ = ["BENCHMARKS", "CHATCORE", "CORE", "PASSAGES"]

# Tasks asked in context whose items are made from validation text: functions of the documents.
PASSAGES = passages.TASKS

# Tasks asked in conversations: functions of the source of their items, None if it does not have them.
BENCHMARKS = {
    "arc_easy": arc.easy,
    "arc_challenge": arc.challenge,
    "mmlu": mmlu.load,
    "gsm8k": gsm8k.load,
    "humaneval": humaneval.load,
}

# The tasks over which nanochat's ChatCORE is the mean of the centered scores, with the chance levels that it uses.
CHATCORE = {"arc_easy": 0.25, "arc_challenge": 0.25, "mmlu": 0.25, "gsm8k": 0.0, "humaneval": 0.0}
