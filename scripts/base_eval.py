"""Evaluate a trained base model: bits per byte, tasks in context, samples. See docs/evaluation.md.

    python -m scripts.base_eval                                     evaluate the run trained last
    python -m scripts.base_eval --run d4-gaussian --eval bpb,sample
    python -m scripts.base_eval --run d20-gaussian --eval core --eval-bundle eval_bundle.zip
    python -m scripts.base_eval --tasks copa,winograd,true_continuation --max-per-task 200
    python -m scripts.base_eval --hf-path FOLDER --eval core --eval-bundle eval_bundle.zip
    torchrun --standalone --nproc_per_node=8 -m scripts.base_eval -- --eval core --eval-bundle eval_bundle.zip

`--eval tasks` means the paper's six tasks, tasks of the bundle that are not in CORE, and two tasks made from the
validation text, which need no bundle. `core` adds all 22 tasks of CORE. The bundle is a folder or .zip in nanochat's
layout. `--eval-bundle download` fetches nanochat's and keeps it in NANOGKA_BASE_DIR.

The results are in evaluation.json in the run's folder, written after each part. With `--json`, or into a file or
pipe, the last line printed is the same. An evaluation that was stopped continues with the first unfinished task when
it is started again.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.evaluate.settings import EvalSettings


def body(settings: EvalSettings, errors: Errors) -> int:
    from nanogka.evaluate.run import evaluate
    from nanogka.export import register_with_transformers
    from tasks import CORE, PASSAGES

    if settings.hf_path:
        register_with_transformers()  # an exported folder is read by our code, not by its own
    return evaluate(settings, errors, PASSAGES, CORE)


main = command("base_eval", EvalSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
