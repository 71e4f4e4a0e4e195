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

import json
import os
import sys
from dataclasses import asdict, dataclass

from nanogka.cli import flag, run
from nanogka.data.conversation import Conversation
from nanogka.generate import Engine, SamplingSettings
from nanogka.generate.session import Session
from nanogka.generate.terminal import notice, run_terminal, show_reply
from nanogka.generate.transcript import parse_conversation
from nanogka.problems import Problems
from nanogka.runs import LoadedRun, find_run, load_run
from nanogka.runtime import base_dir, pick_device_and_dtype


@dataclass(frozen=True)
class ChatSettings:
    """Flags of the script."""

    prompt: str | None = flag(None, "reply to this and end; without it, standard input if not a terminal", short="p")
    system: str | None = flag(None, "the system prompt of a chat model")
    run: str | None = flag(None, "a run's tag or folder (default: the run trained last)")
    step: int | None = flag(None, "the checkpoint of this step (default: the newest)")
    temperature: float = flag(0.8, "0: the likeliest token")
    top_k: int = flag(50, "sample from the k likeliest tokens; 0: from all")
    top_p: float = flag(1.0, "sample from the fewest likeliest tokens with this probability; 1: from all")
    min_p: float = flag(0.0, "leave out tokens below this fraction of the likeliest one's probability")
    repetition_penalty: float = flag(1.0, "above 1: fewer repetitions")
    max_tokens: int = flag(256, "longest reply; 0: what fits into the context")
    seed: int = flag(0, "the same seed gives the same reply")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "auto, float32, bfloat16 or float16")
    json: bool = flag(False, "print the reply as one JSON document; needs a prompt")


def body(settings: ChatSettings, problems: Problems) -> int:
    """Talk; a reader that closed the pipe early (`| head`) is not an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows ? instead
    try:
        return chat(settings, problems)
    except BrokenPipeError:
        # What is still buffered would fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def chat(settings: ChatSettings, problems: Problems) -> int:
    """Check the settings, load the model, reply to one prompt or to a person at a terminal."""
    prompt = read_prompt(settings, problems)
    sampling, device, dtype = check(settings, problems)
    problems.raise_any()
    loaded = load_run(settings.run, device, settings.step, dtype)
    notice(_describe(loaded))
    chats = loaded.kind == "chat"
    if settings.system is not None and not chats:
        raise ValueError(f"--system: {loaded.folder.name} is a base model, a system prompt takes a chat model")
    engine = Engine(loaded.model, loaded.tokenizer)
    session = Session(engine, sampling, settings.max_tokens or None, chats, settings.system)
    if chats and settings.json and settings.prompt is None and prompt.lstrip().startswith("{"):
        prompt = session.resume(_conversation(prompt, settings.system))
    if prompt is None:
        engine.generate(" ", max_tokens=2)  # compiles kernels now, not during the first reply
        does = "It replies to" if chats else "It continues"
        notice(f"{does} what you type; /help lists the commands, Ctrl-D leaves.")
        return run_terminal(session, base_dir() / "chat_history")
    if settings.json:
        print(json.dumps(_document(loaded, session, prompt), ensure_ascii=False), flush=True)
    else:
        show_reply(session, session.reply(prompt))
    return 0


def check(settings: ChatSettings, problems: Problems) -> tuple:
    """Sampling settings, device and dtype, None for each that is not possible."""
    s = settings
    problems.check(s.max_tokens >= 0, "--max-tokens", s.max_tokens, "an integer of at least 1, or 0 for no limit")
    problems.check(s.step is None or s.step >= 0, "--step", s.step, "an integer of at least 0")
    problems.check(s.system is None or bool(s.system.strip()), "--system", s.system, "some text, or is left out")
    sampling = None
    try:
        sampling = SamplingSettings(s.temperature, s.top_k or None, s.top_p, s.min_p, s.repetition_penalty, s.seed)
    except ValueError as error:
        problems.lines.extend(f"--{line}" for line in str(error).splitlines())
    device, dtype = pick_device_and_dtype(s.device, s.dtype, problems)
    problems.attempt(lambda: find_run(s.run))
    return sampling, device, dtype


def read_prompt(settings: ChatSettings, problems: Problems) -> str | None:
    """The one prompt to reply to, or a conversation in JSON that ends with it; None for a session."""
    takes = "some text to reply to or to continue"
    if settings.prompt is not None:
        problems.check(bool(settings.prompt.strip()), "--prompt", settings.prompt, takes)
        return settings.prompt
    if sys.stdin.isatty():
        if settings.json:
            problems.lines.append("--json: takes a prompt, from -p or standard input")
        return None
    try:
        text = sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        where = f"a byte that is not UTF-8 at position {error.start}"
        problems.lines.append(f"standard input: got {where}, takes UTF-8 text")
        return ""
    problems.check(bool(text.strip()), "standard input", text, f"{takes}, or a terminal for a session")
    return text


def _conversation(text: str, system: str | None) -> Conversation:
    """The conversation in a JSON document, which ends with a prompt, with `system` as its system prompt."""
    conversation = parse_conversation(text, "standard input", complete=False)
    if conversation.ends_with_reply:
        raise ValueError("standard input: messages: the last is the assistant's, takes the user's to reply to")
    if system is not None and conversation.system is not None:
        raise ValueError("standard input: messages: have a system prompt already, --system gives another")
    texts = (message.content for message in conversation.turns)
    return Conversation.of(*texts, system=system or conversation.system)


def _describe(loaded: LoadedRun) -> str:
    parameters = sum(p.numel() for p in loaded.model.parameters()) / 1e6
    where = f"{loaded.model.device}, {str(loaded.model.compute_dtype).removeprefix('torch.')}"
    context = f"context {loaded.model.config.sequence_len:,} tokens"
    return f"{loaded.folder.name}, step {loaded.step}: {parameters:.1f} M parameters, {context} ({where})"


def _document(loaded: LoadedRun, session: Session, prompt: str) -> dict:
    """The reply with its numbers, and of a chat model the whole conversation, which a reply without text is not in."""
    for _ in session.reply(prompt):
        pass
    last = session.last
    document = {"run": str(loaded.folder), "step": loaded.step, "kind": loaded.kind} | asdict(last)
    document["tokens_per_second"] = last.tokens_per_second
    document["settings"] = asdict(session.settings) | {"max_tokens": session.max_tokens}
    if session.chat:
        document |= session.conversation(None if session.kept else prompt).to_json()
    return document


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    return run(ChatSettings, body, "chat_cli", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
