"""HellaSwag: which of four endings follows a description of an everyday scene (Zellers et al., 2019).

10 042 items of the validation set, from the evaluation bundle; asked without and with ten examples.
"""

from nanogka.evaluate.task import Task

MEASURES = "which of four endings follows a description of an everyday scene"
PATH = "language_understanding/hellaswag.jsonl"

TASKS = (
    Task("hellaswag_zeroshot", "multiple_choice", shots=0, chance=0.25, path=PATH, measures=MEASURES),
    Task("hellaswag", "multiple_choice", shots=10, chance=0.25, path=PATH, measures=MEASURES),
)
