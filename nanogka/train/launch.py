"""From a preparation to an exit code: what the training scripts have in common."""

from collections.abc import Callable

from nanogka.train.lifeline import run_together
from nanogka.train.loop import Evaluation, Trainer
from nanogka.train.preparation import Preparation


def launch(
    script: str, preparation: Preparation, evaluations: Callable[[], list[Evaluation]], afterwards: str
) -> int:
    """Join the other ranks, say what will run, train; returns the exit code.

    Args:
        script: named in front of an error.
        evaluations: makes what the loop measures, once the ranks have joined.
        afterwards: what to tell the user when it is done.
    """
    ranks = preparation.ranks

    def train() -> int:
        if ranks.is_main:
            print(preparation.describe(), flush=True)
        code = Trainer(preparation, evaluations()).run()
        if ranks.is_main and code == 0:
            print(f"done: {preparation.folder}\n{afterwards}")
        return code

    try:
        return run_together(ranks, preparation.device, preparation.settings.rank_timeout, script, train)
    finally:
        preparation.corpus.close()
