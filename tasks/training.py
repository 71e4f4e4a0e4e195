"""CORE during training: what the loop is handed to measure now and then."""

from nanogka.evaluate import TaskData, core_score, evaluate_tasks
from nanogka.evaluate.scores import mean_centered
from nanogka.model import GPT
from nanogka.model.kv_cache import DecodeCache
from nanogka.problems import Problems
from nanogka.train.loop import Evaluation
from nanogka.train.preparation import Preparation
from nanogka.train.settings import TrainSettings
from tasks import CORE
from tasks.selection import bundle_source, find_bundle, load_tasks


def core_tasks(settings: TrainSettings, problems: Problems) -> list[TaskData]:
    """The tasks of CORE that the bundle has, their items read and checked; none if they are not to be run."""
    if settings.core_every <= 0:
        return []
    source = bundle_source(settings.eval_bundle)
    if source.may_download and problems.lines:
        return []  # nothing is fetched for a call that will be refused

    def load() -> list[TaskData]:
        bundle = find_bundle(source, needed=True, notes=[])
        names = [name for name in CORE if name in bundle.tasks]
        problems.check(bool(names), "--eval-bundle", settings.eval_bundle, "a bundle with tasks of CORE")
        return load_tasks(names, bundle, None, settings.core_max_per_task)

    return problems.attempt(load) or []


def core(preparation: Preparation, tasks: list[TaskData]) -> list[Evaluation]:
    """CORE of the model as it is, its items shared out over the ranks; nothing if there are no tasks.

    It is logged as `core`, or as `core_partial`, the mean over the tasks there are, where the bundle lacks some.
    """
    if not tasks:
        return []
    settings = preparation.settings

    def run(model: GPT) -> dict[str, float]:
        options = {"max_items": settings.core_max_per_task, "ranks": preparation.ranks, "new_cache": DecodeCache}
        results = [result for result, _ in evaluate_tasks(model, preparation.tokenizer, tasks, **options)]
        whole = core_score(results, CORE)
        if whole is not None:
            return {"core": whole}
        return {"core_partial": mean_centered(results, [result.name for result in results])}

    return [Evaluation(settings.core_every, run)]
