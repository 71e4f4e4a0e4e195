"""The command `nanogka`, which runs every script under one name.

    nanogka train --depth 4          the same as  python -m scripts.base_train --depth 4
    nanogka speedrun                 the same as  bash speedrun.sh
    nanogka launch --nproc_per_node=8 -m nanogka train --depth 20

Each file in scripts/ is a command of the same name. `nanogka --help` shows the first line of its docstring.
"""

import ast
import importlib
import os
import sys
from pathlib import Path

from nanogka import __version__
from nanogka.common.formatting import BUNDLED, SHORT_NAMES
from nanogka.common.nanochat import refuse_script

GROUPS = {
    "Prepare data": ("fetch", "make_shards", "tok_train"),
    "Train": ("base_train", "chat_sft", "chat_rl", "launch", "gka"),
    "Evaluate": ("base_eval", "chat_eval", "tok_eval"),
    "Use": ("chat_cli", "serve", "page", "lesson", "export"),
    "Inspect": ("report", "visualize", "model_info", "trace", "bench", "gpu_first", "plan_gpu"),
    "Compare mixers": ("study",),
    "Images": ("vision_train", "vision_info"),
}
SPEEDRUN = "speedrun"


def home() -> Path:
    """Return the folder with scripts/, tasks/ and speedrun.sh: nanogka/bundled in a wheel, otherwise the checkout."""
    return BUNDLED if BUNDLED.is_dir() else Path(__file__).parents[1]


def commands() -> dict[str, str]:
    """Return {script: first line of its docstring} without importing the scripts, which takes seconds."""
    found = {}
    for path in sorted((home() / "scripts").glob("[!_]*.py")):
        documentation = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = documentation.partition("\n")[0]
    return found


def overview() -> str:
    """Return the text of `nanogka --help`."""
    described = commands()
    lines = [
        "usage: nanogka COMMAND [flags]",
        "       nanogka --version\n",
        "`nanogka COMMAND --help` lists the flags of a command.\n",
        f"  {SPEEDRUN:<22}  Train, evaluate and talk to a model with one command.",
    ]
    for title, scripts in GROUPS.items():
        lines.append(f"\n{title}:")
        for name in scripts:
            names = f"{SHORT_NAMES[name]}, {name}" if name in SHORT_NAMES else name
            lines.append(f"  {names:<22}  {described[name]}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    words = words[1:] if words[:1] == ["--"] else words  # `--` ends the flags of torchrun
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name in ("-h", "--help", ""):
        print(overview())
        return 0 if name else 2
    if name == "--version":
        print(f"nanogka {__version__}")
        return 0
    # Scripts import tasks/ and each other, and so do the processes that they start.
    sys.path.insert(0, str(home()))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home()), os.environ.get("PYTHONPATH")]))
    if name == SPEEDRUN:
        # speedrun.sh calls `python`, which must be this one.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        os.execvp("bash", ["bash", str(home() / "speedrun.sh"), *rest])
    script = {short: script for script, short in SHORT_NAMES.items()}.get(name, name)
    if script not in commands():
        refuse_script(["-m", f"scripts.{name}"])
        names = ", ".join([SPEEDRUN, *SHORT_NAMES.values(), *commands()])
        print(f"nanogka: got {name!r}, expected one of {names}", file=sys.stderr)
        return 2
    words, sys.argv = sys.argv, [f"nanogka {name}", *rest]  # for the usage line and for hints
    try:
        return importlib.import_module(f"scripts.{script}").main(rest)
    finally:
        sys.argv = words


if __name__ == "__main__":
    sys.exit(main())
