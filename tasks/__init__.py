"""What is evaluated: one file a benchmark or family, each saying what it measures and where its data come from.

    from tasks import TASKS, CORE
    bundle = open_bundle(path, TASKS)

`core.yaml` of an evaluation bundle rules; what is declared here describes a task to people and stands in where the
bundle says nothing. `tasks.passages` makes two tasks from validation text alone, for runs without a bundle.
"""

from tasks import (
    agi_eval_lsat,
    arc,
    bigbench,
    boolq,
    commonsense_qa,
    copa,
    coqa,
    hellaswag,
    jeopardy,
    lambada,
    openbook_qa,
    piqa,
    squad,
    winogrande,
)

_CORE_MODULES = (
    hellaswag,
    jeopardy,
    arc,
    copa,
    commonsense_qa,
    piqa,
    openbook_qa,
    lambada,
    winogrande,
    agi_eval_lsat,
    squad,
    coqa,
    boolq,
    bigbench,
)

# The tasks over which DCLM's CORE score is the mean of the centred scores.
CORE = tuple(task.name for module in _CORE_MODULES for task in module.TASKS)

TASKS = {task.name: task for module in _CORE_MODULES for task in module.TASKS}
