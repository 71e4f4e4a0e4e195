"""Ask a chat model questions whose answers are known.

    python -m scripts.chat_eval                                    the chat run trained last
    python -m scripts.chat_eval --run d4-gaussian-chat --tasks skills
    python -m scripts.chat_eval --eval-bundle FOLDER               ARC as well
    python -m scripts.chat_eval --eval-bundle hub                  ARC, MMLU and GSM8K through `datasets`

The tasks are spelling, counting, copying, addition, small_talk, knowledge (together: skills), arc_easy, arc_challenge,
mmlu and gsm8k. The skills are asked with items that no training had, and answered by greedy generation; ARC and MMLU by
the likeliest letter; GSM8K by the final number. The results go to chat_evaluation.json in the run's folder; the last
line printed is the same as one JSON document.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.evaluate.settings import ChatEvalSettings


def body(settings: ChatEvalSettings, errors: Errors) -> None:
    from nanogka.evaluate.chat import evaluate_chat
    from tasks import CHAT_TASKS
    from tasks.skills import SKILLS

    evaluate_chat(settings, errors, {name: skill.task for name, skill in SKILLS.items()}, CHAT_TASKS)


main = command("chat_eval", ChatEvalSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
