"""Evaluate a base model: bits per byte, in-context tasks, samples.

    python -m scripts.base_eval                                     evaluate the latest run
    python -m scripts.base_eval --run d4-gaussian --eval bpb,sample
    python -m scripts.base_eval --run d20-gaussian --eval core --eval-bundle eval_bundle.zip
    python -m scripts.base_eval --tasks copa,winograd,true_continuation --max-per-task 200
    python -m scripts.base_eval --hf-path FOLDER --eval core --eval-bundle eval_bundle.zip
    python -m scripts.launch --nproc_per_node=8 -m scripts.base_eval -- --eval core --eval-bundle eval_bundle.zip

`--eval tasks` runs the paper's six tasks, the tasks of the bundle that are not in CORE, and two tasks built from the
validation text. The last two need no bundle. `core` adds all 22 tasks of CORE. The bundle is a folder or .zip in
nanochat's layout. `--eval-bundle download` fetches nanochat's bundle and keeps it in NANOGKA_BASE_DIR.

The script writes evaluation.json to the run's folder after each part. With `--json`, or if stdout is a file or pipe, it
also prints the results as its last line. Rerun an interrupted evaluation to continue with its first unfinished task.
docs/evaluation.md describes the tasks.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.evaluate.settings import EvalSettings


def body(settings: EvalSettings, errors: Errors) -> None:
    from nanogka.evaluate.run import evaluate
    from nanogka.export import register_with_transformers
    from tasks import CORE, PASSAGES

    if settings.hf_path:
        register_with_transformers()  # read an exported folder with our code, not with the code in the folder
    evaluate(settings, errors, PASSAGES, CORE)


main = command("base_eval", EvalSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
