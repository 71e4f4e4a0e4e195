"""Talk to a trained model, interactively or with one prompt.

    python -m scripts.chat_cli                                       the latest chat model, or else the latest run
    python -m scripts.chat_cli --run d4-gaussian -p "The with statement"
    echo "The with statement" | python -m scripts.chat_cli --temperature 0
    python -m scripts.chat_cli --examples                            replies to questions that show what it learned

Only the model's text goes to standard output. Messages go to standard error. A chat model (see scripts.chat_sft)
replies and sees the conversation so far. A base model continues each prompt separately. In a session, /help lists the
commands, Ctrl-C stops a reply, and Ctrl-D leaves. From Python, use `nanogka.load(run).chat(message)`.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.generate.settings import ChatSettings


def body(settings: ChatSettings, errors: Errors) -> int:
    """Reply to one prompt, or until the user leaves."""
    from nanogka.generate.terminal import chat

    return chat(settings, errors)


main = command("chat_cli", ChatSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
