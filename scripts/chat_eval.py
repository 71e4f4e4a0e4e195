"""Ask a chat model questions whose answers are known.

    python -m scripts.chat_eval                                    the chat run trained last
    python -m scripts.chat_eval --run d4-gaussian-chat --tasks skills
    python -m scripts.chat_eval --eval-bundle FOLDER               ARC as well
    python -m scripts.chat_eval --eval-bundle hub                  ARC, MMLU and GSM8K through `datasets`

The embedded skills (spelling, counting, copying, addition) are asked of items that no training had, and answered by
greedy generation; ARC and MMLU by the likeliest letter; GSM8K by the final number. The results go to
chat_evaluation.json in the run's folder; the last line printed is the same as one JSON document.
"""

import sys

from nanogka.cli import from_flags, parse_flags, run_script
from nanogka.problems import Problems
from tasks.chat_evaluation import ChatEvalSettings, evaluate


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    args = parse_flags(ChatEvalSettings, "chat_eval", __doc__, argv)

    def body() -> int:
        problems = Problems()
        return evaluate(from_flags(ChatEvalSettings, args, problems), problems)

    return run_script(body, "chat_eval")


if __name__ == "__main__":
    sys.exit(main())
