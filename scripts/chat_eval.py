"""Ask a chat model questions whose answers are known.

    python -m scripts.chat_eval                                    evaluate the chat run trained last
    python -m scripts.chat_eval --run d4-gaussian-chat --tasks skills
    python -m scripts.chat_eval --eval-bundle FOLDER               add ARC
    python -m scripts.chat_eval --eval-bundle hub                  add ARC, MMLU and GSM8K, read through `datasets`
    python -m scripts.chat_eval --eval-bundle hub --run-code       add HumanEval, and ChatCORE, the mean of all five
    torchrun --standalone --nproc_per_node=8 -m scripts.chat_eval -- --eval-bundle hub

The tasks are spelling, counting, copying, addition, small_talk, knowledge (together: skills), arc_easy, arc_challenge,
mmlu, gsm8k and humaneval. The skills have items that no training has, answered by greedy generation. ARC and MMLU are
answered by the most likely letter, GSM8K by the final number of the reply. HumanEval runs the program in the reply, in
a subprocess with limits. The results are in chat_evaluation.json in the run's
folder. With `--json`, or into a file or pipe, the last line printed is the same.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.evaluate.settings import ChatEvalSettings


def body(settings: ChatEvalSettings, errors: Errors) -> None:
    from nanogka.evaluate.chat import evaluate_chat
    from tasks import BENCHMARKS, CHATCORE
    from tasks.skills import SKILLS

    skills = {name: skill.task for name, skill in SKILLS.items()}
    benchmarks = {name: load for name, load in BENCHMARKS.items() if name != "humaneval" or settings.run_code}
    evaluate_chat(settings, errors, skills, benchmarks, CHATCORE)


main = command("chat_eval", ChatEvalSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
