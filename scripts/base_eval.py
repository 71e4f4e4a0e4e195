"""Evaluate a trained base model: bits per byte, tasks in context, samples. See docs/evaluation.md.

    python -m scripts.base_eval                                     the run trained last, everything that can be had
    python -m scripts.base_eval --run d4-gaussian --eval bpb,sample
    python -m scripts.base_eval --run d20-gaussian --eval core --eval-bundle eval_bundle.zip
    python -m scripts.base_eval --tasks copa,winograd,true_continuation --max-per-task 200
    python -m scripts.base_eval --hf-path FOLDER --eval core --eval-bundle eval_bundle.zip
    torchrun --standalone --nproc_per_node=8 -m scripts.base_eval -- --eval core --eval-bundle eval_bundle.zip

`--eval tasks` is the paper's six tasks, tasks of the bundle that are not CORE's, and two tasks made from the validation
text, which need no bundle; `core` adds all 22 of CORE. The bundle is a folder or .zip in nanochat's layout. With
`--eval-bundle auto` it is the one in NANOGKA_BASE_DIR, downloaded from NANOGKA_EVAL_BUNDLE_URL if that is set.

Everything goes to evaluation.json in the run's folder, rewritten after each part; the last line printed is the same.
An evaluation that was stopped continues with the first unfinished task when it is started again.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.evaluate.settings import EvalSettings


def body(settings: EvalSettings, errors: Errors) -> int:
    from nanogka.evaluate.run import evaluate
    from nanogka.export import register_with_transformers
    from tasks import CORE, TASKS

    if settings.hf_path:
        register_with_transformers()  # an exported folder is read by our code, not by its own
    return evaluate(settings, errors, TASKS, CORE)


main = command("base_eval", EvalSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
