"""Serve a model with an OpenAI-compatible API and a chat page.

    python -m scripts.serve                                   the latest run, at http://127.0.0.1:8000
    python -m scripts.serve --run d4-gaussian-chat --port 9000 --max-batch 64

    curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" \\
        -d '{"model": "d4-gaussian-chat", "messages": [{"role": "user", "content": "Hi"}]}'

Routes: /v1/chat/completions, /v1/completions, /v1/models, /v1/attention, /health, /metrics, and / for the chat page.
Needs the extra `serve`. See docs/serving.md.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.errors import Errors
from nanogka.serve.settings import ServeSettings


def body(settings: ServeSettings, errors: Errors) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    try:
        from nanogka.serve.app import serve
    except ImportError as error:
        raise ValueError(f"needs starlette, uvicorn and pydantic: pip install -e '.[serve]' ({error})") from error
    from tasks.chat_data import questions_to_show

    return serve(settings, errors, questions_to_show)


main = command("serve", ServeSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
