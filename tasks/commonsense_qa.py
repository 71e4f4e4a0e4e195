"""CommonsenseQA: everyday knowledge, answered by letter (Talmor et al., 2019); 1 221 items, from the evaluation bundle.

The chance level is the one nanochat scores with (20 %); the items have four choices each.
"""

from nanogka.evaluate import Task

TASKS = (
    Task(
        "commonsense_qa",
        "multiple_choice",
        shots=10,
        chance=0.2,
        path="commonsense_reasoning/commonsense_qa.jsonl",
        measures="everyday knowledge",
    ),
)
