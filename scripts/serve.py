"""Serve a trained model to OpenAI's clients, and a page to chat on. See docs/serving.md.

    python -m scripts.serve                                   the run trained last, at http://127.0.0.1:8000
    python -m scripts.serve --run d4-gaussian-chat --port 9000 --max-batch 64

    curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" \\
        -d '{"model": "d4-gaussian-chat", "messages": [{"role": "user", "content": "Hi"}]}'

Routes: /v1/chat/completions, /v1/completions, /v1/models, /health; / is the page. Takes the extra `serve`.
"""

import sys

from nanogka.cli import run
from nanogka.problems import Problems
from nanogka.serve.settings import ServeSettings


def body(settings: ServeSettings, problems: Problems) -> int:
    """Serve until told to stop."""
    try:
        from nanogka.serve.run import serve
    except ImportError as error:
        raise ValueError(f'takes starlette and uvicorn: pip install "nanogka[serve]" ({error})') from error
    return serve(settings, problems)


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    return run(ServeSettings, body, "serve", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
