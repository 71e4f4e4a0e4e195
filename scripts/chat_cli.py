"""Talk to a trained model: interactively, or for one prompt.

    python -m scripts.chat_cli                                       the run trained last
    python -m scripts.chat_cli --run d4-gaussian -p "The with statement"
    echo "The with statement" | python -m scripts.chat_cli --temperature 0
    python -m scripts.chat_cli -p "The with statement" --json        one JSON document, for programs
    echo '{"messages": [{"role": "user", "content": "Hi"}]}' | python -m scripts.chat_cli --json

Standard output is the model's text and nothing else; messages about it go to standard error. A chat model (see
scripts.chat_sft) replies and sees the conversation so far; a base model continues each prompt by itself. In a session,
/help lists the commands; Ctrl-C stops a reply, Ctrl-D leaves. With --json a chat model takes a conversation to reply to
from standard input, if that begins with {: an object with messages, as /save writes it.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.generate.settings import ChatSettings


def body(settings: ChatSettings, errors: Errors) -> int:
    """Reply until there is nothing to reply to."""
    from nanogka.generate.chat import chat

    return chat(settings, errors)


main = command("chat_cli", ChatSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
