"""COPA: the likelier cause or effect of an event, of two (Roemmele et al., 2011).

100 items, from the evaluation bundle.
"""

from nanogka.evaluate.task import Task

TASKS = (
    Task(
        "copa",
        "multiple_choice",
        shots=0,
        chance=0.5,
        path="commonsense_reasoning/copa.jsonl",
        measures="the likelier cause or effect of an event",
    ),
)
