"""Benchmarks: the table of CORE in `tasks.core`, and one file for each benchmark that needs code.

Where a bundle has a `core.yaml`, that file decides how a task is asked; a declaration here adds what it leaves open.
"""

from tasks import arc, core, gsm8k, mmlu, passages

# The names of the tasks over which DCLM's CORE score is the mean of the centered scores.
CORE = tuple(task.name for task in core.TASKS)

# Every task that can be asked in context, by name.
TASKS = {task.name: task for task in (*passages.TASKS, *core.TASKS)}

# Those that can be asked in conversations, by name.
CHAT_TASKS = {task.name: task for module in (arc, mmlu, gsm8k) for task in module.TASKS}
