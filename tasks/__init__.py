"""Benchmarks: one file for each or for a family, saying what it measures and where its data come from.

    from tasks import CORE, TASKS
    bundle = open_bundle(path, TASKS)

`core.yaml` of an evaluation bundle takes precedence; a declaration here describes a task to people and stands in where
the bundle says nothing. `tasks.passages` makes two tasks from validation text alone, for runs without a bundle;
`tasks.skills` makes conversations by code.
"""

from tasks import (
    agi_eval_lsat,
    arc,
    bigbench,
    boolq,
    commonsense_qa,
    copa,
    coqa,
    gsm8k,
    hellaswag,
    jeopardy,
    lambada,
    mmlu,
    openbook_qa,
    passages,
    piqa,
    squad,
    winogrande,
)

_CORE_MODULES = (
    *(hellaswag, jeopardy, arc, copa, commonsense_qa, piqa, openbook_qa),
    *(lambada, winogrande, agi_eval_lsat, squad, coqa, boolq, bigbench),
)

# The tasks over which DCLM's CORE score is the mean of the centred scores.
CORE = tuple(task.name for module in _CORE_MODULES for task in module.TASKS)

# Every task that can be asked in context, by name.
TASKS = {task.name: task for module in (passages, *_CORE_MODULES) for task in module.TASKS}

# Those that can be asked in conversations, by name.
CHAT_TASKS = {task.name: task for module in (arc, mmlu, gsm8k) for task in module.TASKS}
