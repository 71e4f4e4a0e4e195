"""Talk to a trained model: interactively, or for one prompt.

    python -m scripts.chat_cli                                       the run trained last
    python -m scripts.chat_cli --run d4-gaussian -p "The with statement"
    echo "The with statement" | python -m scripts.chat_cli --temperature 0
    python -m scripts.chat_cli -p "The with statement" --json        one JSON document, for programs
    echo '{"messages": [{"role": "user", "content": "Hi"}]}' | python -m scripts.chat_cli --json

Standard output is the model's text and nothing else; what is said about it goes to standard error. A chat model (see
scripts.chat_sft) replies and remembers the conversation; a base model continues each prompt by itself. In a session,
/help lists the commands; Ctrl-C stops a reply, Ctrl-D leaves. With --json a chat model takes a conversation to reply to
from standard input, if that begins with {: an object with messages, as /save writes it.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict

from nanogka.data.conversation import Conversation
from nanogka.generate import Engine, SamplingSettings
from nanogka.generate.session import Session
from nanogka.generate.terminal import notice, run_terminal, show_reply
from nanogka.cli import run_script
from nanogka.problems import Problems
from nanogka.runtime import base_dir, pick_device_and_dtype
from nanogka.train.checkpoint import LoadedRun, find_run, load_run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="chat_cli", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("-p", "--prompt", help="reply to this and end; without it, standard input if that is no terminal")
    p.add_argument("--system", help="the system prompt of a chat model")
    p.add_argument("--run", help="a run's tag or folder (default: the run trained last)")
    p.add_argument("--step", "--checkpoint", type=int, help="the checkpoint of this step (default: the newest)")
    p.add_argument("--temperature", type=float, default=0.8, help="0: the likeliest token (default: %(default)s)")
    p.add_argument("--top-k", type=int, default=50, help="of the k likeliest tokens; 0: all (default: %(default)s)")
    p.add_argument("--top-p", type=float, default=1.0, help="of the likeliest with this probability (default: all)")
    p.add_argument("--min-p", type=float, default=0.0, help="not below this fraction of the likeliest (default: all)")
    p.add_argument("--repetition-penalty", type=float, default=1.0, help="above 1: fewer repetitions (default: none)")
    p.add_argument("--max-tokens", type=int, default=256, help="longest reply; 0: what fits (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="the same seed gives the same reply (default: %(default)s)")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: %(default)s)")
    p.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: %(default)s)")
    p.add_argument("--json", action="store_true", help="print the reply as one JSON document; needs a prompt")
    return p


def chat(args: argparse.Namespace) -> int:
    """Check the arguments, load the model, talk."""
    problems = Problems()
    prompt = _prompt(args, problems)
    settings, device, dtype = _checked(args, problems)
    problems.raise_any()
    run = load_run(args.run, device, args.step, dtype)
    notice(_describe(run))
    session = Session(Engine(run.model, run.tokenizer), settings, args.max_tokens or None, run.kind == "chat")
    if args.system is not None:
        _need_chat(run, "--system")
        session.dialogue.system = args.system
    if args.json and args.prompt is None and _is_conversation(prompt, session.chat):
        _need_chat(run, "standard input")
        prompt = session.take(_conversation(prompt, args.system))
    if prompt is None:
        does = "It replies to" if session.chat else "It continues"
        notice(f"{does} what you type; /help lists the commands, Ctrl-D leaves.")
        return run_terminal(session, base_dir() / "chat_history")
    if args.json:
        print(json.dumps(_document(run, session, prompt), ensure_ascii=False), flush=True)
    else:
        show_reply(session, session.reply(prompt))
    return 0


def _checked(args: argparse.Namespace, problems: Problems) -> tuple:
    """Settings, device and dtype, None for each that cannot be had; whatever is wrong goes to `problems`."""
    problems.check(args.max_tokens >= 0, "--max-tokens", args.max_tokens, "an integer of at least 1, or 0 for no limit")
    problems.check(args.step is None or args.step >= 0, "--step", args.step, "an integer of at least 0")
    settings = None
    try:
        settings = SamplingSettings(
            args.temperature, args.top_k or None, args.top_p, args.min_p, args.repetition_penalty, args.seed
        )
    except ValueError as error:
        problems.lines.extend(f"--{line}" for line in str(error).splitlines())
    device, dtype = pick_device_and_dtype(args.device, args.dtype, problems)
    problems.attempt(lambda: find_run(args.run))
    return settings, device, dtype


def _prompt(args: argparse.Namespace, problems: Problems) -> str | None:
    """The one prompt to reply to, or the conversation in JSON that ends with it; None for a session."""
    if args.system is not None:
        problems.check(bool(args.system.strip()), "--system", args.system, "some text, or is left out")
    if args.prompt is not None:
        problems.check(bool(args.prompt.strip()), "--prompt", args.prompt, "some text to reply to or to continue")
        return args.prompt
    if sys.stdin.isatty():
        if args.json:
            problems.lines.append("--json: takes a prompt, from -p or standard input")
        return None
    try:
        text = sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        problems.lines.append(
            f"standard input: got a byte that is no UTF-8 at position {error.start}, takes UTF-8 text"
        )
        return ""
    takes = "some text to reply to or to continue, or a terminal for a session"
    problems.check(bool(text.strip()), "standard input", text, takes)
    return text


def _need_chat(run: LoadedRun, setting: str) -> None:
    if run.kind != "chat":
        raise ValueError(f"{setting}: {run.folder.name} is a base model, a conversation takes a chat model")


def _is_conversation(text: str, chat: bool) -> bool:
    """Whether standard input means a conversation. A base model continues any JSON but what is one beyond doubt."""
    if chat or not text.lstrip().startswith("{"):
        return text.lstrip().startswith("{")
    try:
        return "messages" in json.loads(text)
    except (ValueError, RecursionError):
        return False


def _conversation(text: str, system: str | None) -> Conversation:
    """The conversation in a JSON document, with `system` at its head; ValueError if there is none."""
    try:
        conversation = Conversation.from_json(json.loads(text), complete=False)
        if conversation.ends_with_reply:
            raise ValueError("messages: the last is the assistant's, takes the user's to reply to")
        if system is not None and conversation.system is not None:
            raise ValueError("messages: have a system prompt already, --system gives another")
    except json.JSONDecodeError as error:
        raise ValueError(f"standard input, line {error.lineno}: wrong JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("standard input: wrong JSON: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"standard input: {error}") from None
    texts = (message.content for message in conversation.turns)
    return Conversation.of(*texts, system=system or conversation.system)


def _describe(run: LoadedRun) -> str:
    parameters = sum(p.numel() for p in run.model.parameters()) / 1e6
    where = f"{run.model.device}, {str(run.model.compute_dtype).removeprefix('torch.')}"
    context = run.model.config.sequence_len
    return f"{run.folder.name}, step {run.step}: {parameters:.1f} M parameters, context {context:,} tokens ({where})"


def _document(run: LoadedRun, session: Session, prompt: str) -> dict:
    for _ in session.reply(prompt):
        pass
    reply = session.last
    return {
        "run": str(run.folder),
        "step": run.step,
        "kind": run.kind,
        "prompt": prompt,
        "text": reply.text,
        "finish": reply.finish,
        "prompt_tokens": reply.prompt_tokens,
        "tokens": reply.tokens,
        "log_probability": reply.log_probability,
        "seconds": reply.seconds,
        "seconds_to_first_token": reply.first_seconds,
        "tokens_per_second": reply.tokens_per_second,
        "settings": asdict(session.settings) | {"max_tokens": session.max_tokens},
    } | (_messages(session) if session.chat else {})


def _messages(session: Session) -> dict:
    """The conversation with the reply, or without it if it says nothing, and what of it the model did not see."""
    unanswered = None if session.kept else session.last.prompt
    messages = session.dialogue.conversation(session.exchanges, unanswered).to_json()["messages"]
    return {"messages": messages, "left_out_exchanges": session.last.left_out}


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    args = parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows ? instead
    try:
        return run_script(lambda: _quiet_pipe(args), "chat_cli")
    finally:
        sys.stdout.flush()


def _quiet_pipe(args: argparse.Namespace) -> int:
    """`chat`; a reader that closed the pipe early (`| head`) ends it without an error."""
    try:
        return chat(args)
    except BrokenPipeError:
        # What is still buffered would fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
