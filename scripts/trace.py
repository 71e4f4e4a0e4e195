"""Show the lines of this project that run in one training step, forward pass, reply, request, CORE task or resume.

    python -m scripts.trace step                 # writes trace-step.html: the lines in order, with tensor shapes
    python -m scripts.trace reply --out reply.html

Each walk runs a tiny case on the CPU, in a temporary folder. Start here if you want to read the code.
"""

import asyncio
import json
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path
from nanogka.walk import Walk, record, write_page


@dataclass(frozen=True)
class Settings:
    """Settings."""

    walk: str = flag(
        "", "walk to show", choices=("step", "forward", "reply", "request", "core", "resume"), positional=True
    )
    out: str = flag("", "page to write (default: trace-WALK.html)")


@contextmanager
def tiny_run() -> Iterator[Callable[..., int]]:
    """A folder with a small corpus and tokenizer. Yields a function that trains `t` for so many steps in it."""
    from scripts import base_train, tok_train

    words = ["".join(random.Random(n).choices("abcdefghij", k=4)) for n in range(60)]
    text = "\n\n".join(" ".join(random.Random(n).choices(words, k=60)) for n in range(80))
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", NANOGKA_BASE_DIR=folder):
        data = Path(folder) / "text.txt"
        data.write_text(text, encoding="utf-8")
        tok_train.main(["--data", str(data), "--vocab-size", "320", "--name", "tiny"])
        shape = ["--data", str(data), "--tokenizer", "tiny", "--depth", "1", "--sequence-len", "32", "--run", "t"]
        run = ["--attention", "successor", "--total-batch-size", "64", "--device", "cpu", "--compile", "off"]
        quiet = ["--eval-every", "0", "--eval-tokens", "64", "--dtype", "float32", "--save-every", "1"]
        yield lambda steps, *more: base_train.main([*shape, *run, *quiet, "--num-iterations", str(steps), *more])


@contextmanager
def between(function: str, first: int, last: int) -> Iterator[list[Walk]]:
    """Record from call number `first` of `nanogka.train.trainer.<function>` until call number `last` begins."""
    from nanogka.train import trainer

    inner, calls, walks, opened = getattr(trainer, function), [0], [], []

    def counted(*arguments, **named):
        calls[0] += 1
        if calls[0] == first:
            opened.append(record())
            walks.append(opened[0].__enter__())
            sys._getframe(1).f_trace = walks[0].start(sys._getframe(1), "call", None)  # the loop that runs already
        elif calls[0] == last:
            opened[0].__exit__(None, None, None)
        return inner(*arguments, **named)

    with mock.patch.object(trainer, function, counted):
        yield walks
    if walks[0].open:
        opened[0].__exit__(None, None, None)


def step() -> Walk:
    """The third step of a training, from its batch to its log, without a checkpoint."""
    with tiny_run() as train, between("forward_backward", 3, 4) as walks:
        train(5, "--save-every", "0")
    return walks[0]


def resume() -> Walk:
    """A run that continues after two of three steps, from the command to its first batch."""
    from nanogka.train import trainer

    with tiny_run() as train:
        stopped = mock.patch.object(trainer, "evaluate", side_effect=[None, None, KeyboardInterrupt])
        with stopped, suppress(KeyboardInterrupt):
            train(3)
        with record() as walk:
            inner = trainer.forward_backward

            def stop(*arguments):
                walk.open = False
                return inner(*arguments)

            with mock.patch.object(trainer, "forward_backward", stop):
                train(3, "--resume", "auto")
    return walk


def forward() -> Walk:
    """The loss of `successor` on two rows."""
    import torch

    from nanogka.model import GPT, GPTConfig

    model = GPT(GPTConfig.from_depth(2, "successor", vocab_size=1024, sequence_len=32))
    ids = torch.arange(64).view(2, 32)
    model(ids, ids)
    with record() as walk:
        model(ids, ids)
    return walk


@contextmanager
def calling_model() -> Iterator[Any]:
    """A chat model that calls the calculator in its reply. A script replaces the network's logits."""
    import torch

    from nanogka.api import Model
    from nanogka.runs import load_run

    with tiny_run() as train:
        train(1)
        run = load_run("t", torch.device("cpu"), None, torch.float32)
    run.part("run")["kind"] = "chat"
    model = Model(run)
    special = model.run.tokenizer.special_tokens
    script = [special["<|python_start|>"], *model.run.tokenizer.encode("2+3"), special["<|python_end|>"]]
    script += [*model.run.tokenizer.encode("5"), special["<|assistant_end|>"]]
    after = dict(zip([special["<|assistant_start|>"], *script], script))
    after[special["<|output_end|>"]] = script[-2]
    network: Any = model.run.model
    hidden = network.hidden

    def remember(ids, *arguments, **named):
        network.last = ids
        return hidden(ids, *arguments, **named)

    def scripted(states):
        following = torch.tensor([after.get(int(token), script[0]) for token in network.last.flatten()])
        logits = 99.0 * torch.nn.functional.one_hot(following, network.config.vocab_size)
        return (
            logits.view(*network.last.shape, -1)[:, -states.shape[1] :] if states.ndim == 3 else logits[-len(states) :]
        )

    with mock.patch.object(network, "hidden", remember), mock.patch.object(network, "unembed", scripted):
        yield model


def reply() -> Walk:
    """A chat model's reply that calls the calculator. The network's logits are replaced by a script."""
    with calling_model() as model, record() as walk:
        model.chat("What is 2 + 3?", temperature=0, max_tokens=12)
    return walk


def request() -> Walk:
    """The same reply through the server, as a stream: all of its threads, from the request to the last event."""
    try:
        from nanogka.serve.app import make_app
    except ImportError as error:
        raise ValueError(f"walk: got request, which needs the server: pip install -e '.[serve]' ({error})") from error
    from nanogka.serve.protocol import Served
    from nanogka.serve.settings import Limits

    question = [{"role": "user", "content": "What is 2 + 3?"}]
    document = {"model": "t", "messages": question, "temperature": 0, "max_tokens": 12, "stream": True}
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    path = {"method": "POST", "path": "/v1/chat/completions", "query_string": b""}
    scope: dict[str, Any] = {"type": "http", **path, "headers": headers}
    body = [{"type": "http.request", "body": json.dumps(document).encode()}]

    async def receive() -> dict:
        if not body:
            await asyncio.Event().wait()  # the client stays
        return body.pop()

    async def send(message: dict) -> None:
        pass

    async def ask(app: Any, walk: Walk) -> None:
        async with app.router.lifespan_context(app):
            walk.open = True
            await app(scope, receive, send)
            walk.open = False

    with calling_model() as model:
        app = make_app(Served("t", model, Limits()), "", ["localhost"])
        with record() as walk:
            walk.open = False  # until the server has started
            threading.settrace(walk.start)
            try:
                asyncio.run(ask(app, walk))
            finally:
                threading.settrace(None)
    return walk


def core() -> Walk:
    """A multiple-choice task with one solved example, from its items to its score."""
    import torch

    from nanogka.evaluate.core import evaluate_task
    from nanogka.evaluate.loglikelihood import GPTScorer
    from nanogka.evaluate.task import LoadedTask, Task
    from nanogka.runs import load_run

    with tiny_run() as train:
        train(1)
        run = load_run("t", torch.device("cpu"), None, torch.float32)
    items = [{"query": f"abc {n}", "choices": ["def", "ghij"], "gold": n % 2} for n in range(4)]
    task = LoadedTask(Task("tiny", "multiple_choice", num_fewshot=1), items)
    with record() as walk:
        evaluate_task(GPTScorer(run.model), run.tokenizer, task)
    return walk


WALKS = {walk.__name__: walk for walk in (step, forward, reply, request, core, resume)}


def body(settings: Settings, errors: Errors) -> None:
    """Run the walk and write its page."""
    errors.raise_if_any()
    walk = WALKS[settings.walk]()
    path = expand_path(settings.out or f"trace-{settings.walk}.html")
    write_page(walk, f"{settings.walk}: {(WALKS[settings.walk].__doc__ or '').partition('.')[0]}", path)
    print(f"{settings.walk}: {len(walk.lines)} lines in {len(walk.files)} files, written to {path}")


main = command("trace", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
