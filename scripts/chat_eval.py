"""Evaluate a chat model on questions with known answers.

    python -m scripts.chat_eval                                    evaluate the latest chat run
    python -m scripts.chat_eval --run d4-gaussian-chat --tasks skills
    python -m scripts.chat_eval --eval-bundle FOLDER               add ARC
    python -m scripts.chat_eval --eval-bundle hub                  add ARC, MMLU and GSM8K, read through `datasets`
    python -m scripts.chat_eval --eval-bundle hub --run-code       add HumanEval, and ChatCORE, the mean of all five
    python -m scripts.launch --nproc_per_node=8 -m scripts.chat_eval -- --eval-bundle hub

The tasks are the embedded skills (together: skills), such as spelling with held-out words, and arc_easy, arc_challenge,
mmlu, gsm8k and humaneval. `--tasks reworded` asks the skills in wordings that a run on embedded-known never saw. The
skills use greedy generation. In ARC and MMLU, the most likely letter is the answer. In GSM8K, it is the final number of
the reply. HumanEval runs the program in the reply in a subprocess with limits.

The script writes chat_evaluation.json to the run's folder. With `--json`, or if stdout is a file or pipe, it also
prints the results as its last line.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.evaluate.settings import ALL_SKILLS, NEW_WORDINGS, ChatEvalSettings


def body(settings: ChatEvalSettings, errors: Errors) -> None:
    from nanogka.evaluate.chat import evaluate_chat
    from tasks import BENCHMARKS, CHATCORE
    from tasks.skills import REWORDED, evaluations

    benchmarks = {name: load for name, load in BENCHMARKS.items() if name != "humaneval" or settings.run_code}
    groups = {ALL_SKILLS: evaluations(), NEW_WORDINGS: evaluations(REWORDED)}
    evaluate_chat(settings, errors, groups, benchmarks, CHATCORE)


main = command("chat_eval", ChatEvalSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
