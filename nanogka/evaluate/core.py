"""CORE during training: opened and checked before the first step, then measured now and then.

tasks = open_core_tasks("auto", TASKS, CORE, max_per_task=200, problems=problems)
measure = core_evaluation(tasks, CORE, tokenizer, ranks, max_per_task=200)
measure(model)      # {"core": 0.123}
"""

from collections.abc import Callable, Mapping, Sequence

from nanogka.distributed import Ranks
from nanogka.evaluate.in_context import evaluate_tasks
from nanogka.evaluate.scores import mean_centered
from nanogka.evaluate.sources import BundleSource, load_enough
from nanogka.evaluate.task import Task, TaskData
from nanogka.model import GPT
from nanogka.problems import Problems


def open_core_tasks(
    eval_bundle: str, declared: Mapping[str, Task], core: Sequence[str], max_per_task: int | None, problems: Problems
) -> list[TaskData]:
    """The tasks of CORE that the bundle has, their items read and checked; none, with the reason in `problems`.

    Args:
        eval_bundle: see `BundleSource`; nothing is fetched if `problems` holds any.
        declared: every known task by name.
        core: the names of CORE's tasks.

    Raises:
        OSError: if the bundle cannot be fetched.
    """
    source = BundleSource.parse(eval_bundle)
    if source.may_download and problems.lines:
        return []
    bundle = problems.attempt(lambda: source.open(declared, needed="core", notes=[]))
    if bundle is None:
        return []
    names = [name for name in core if name in bundle.tasks]
    problems.check(bool(names), "--eval-bundle", eval_bundle, "a bundle with tasks of CORE")
    tasks = [problems.attempt(lambda name=name: load_enough(lambda: bundle.load(name), max_per_task)) for name in names]
    return [data for data in tasks if data is not None]


def core_evaluation(
    tasks: Sequence[TaskData], core: Sequence[str], tokenizer, ranks: Ranks, max_per_task: int | None = None
) -> Callable[[GPT], dict[str, float]]:
    """A function that measures CORE of the model as it is, its items shared by the ranks, all of which must call it.

    It returns `{"core": value}`, or `{"core_partial": value}`, the mean over the tasks there are, if `tasks` lacks some
    of `core`.
    """

    def measure(model: GPT) -> dict[str, float]:
        done = evaluate_tasks(model, tokenizer, tasks, max_items=max_per_task, ranks=ranks)
        results = [result for result, _ in done]
        whole = mean_centered(results, core)
        if whole is not None:
            return {"core": whole}
        return {"core_partial": mean_centered(results, [result.name for result in results])}

    return measure
