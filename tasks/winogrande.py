"""Winograd schemas: what a pronoun stands for, which only knowledge of the world decides.

Winograd (Levesque et al., 2012; 273 items) and WinoGrande (Sakaguchi et al., 2019; 1 267 items), from the evaluation
bundle. Two beginnings with the pronoun resolved either way; the shared ending is scored under each.
"""

from nanogka.evaluate.task import Task

TASKS = (
    Task(
        "winograd",
        "schema",
        shots=0,
        chance=0.5,
        path="language_understanding/winograd_wsc.jsonl",
        measures="what a pronoun stands for, by common sense",
    ),
    Task(
        "winogrande",
        "schema",
        shots=0,
        chance=0.5,
        path="language_understanding/winogrande.jsonl",
        measures="what a pronoun stands for, with word association filtered out",
    ),
)
