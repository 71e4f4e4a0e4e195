"""nanochat's command lines: which flag here has the meaning of one of its flags, or why there is none.

The parser reads `FLAGS` only for flags that a script does not have. The table in docs/training.md is `table()`.
"""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Counterpart:
    """Counterpart of one of nanochat's flags: the first of `fields` that a script has, or a sentence."""

    names: tuple[str, ...]
    fields: tuple[str, ...] = ()
    says: str = ""
    ignored: bool = False  # the line works without it, and `says` is a notice; otherwise `says` is an error


FLAGS = (
    Counterpart(("--max-seq-len",), ("sequence_len",)),
    Counterpart(("--device-type",), ("device",)),
    Counterpart(("--model-tag", "-g"), ("base", "run")),  # of the model to start from, where there is one
    Counterpart(("--model-step", "--step", "-s"), ("base_step", "step")),
    Counterpart(("--core-metric-every",), ("core_every",)),
    Counterpart(("--core-metric-max-per-task",), ("core_max_per_task",)),
    Counterpart(("--task-name", "-a"), ("tasks",)),
    Counterpart(("--temperature", "-t"), ("temperature",), "replies are greedy, or sampled as training needs them"),
    Counterpart(("--top-k", "-k"), ("top_k",), "replies are greedy, or sampled as training needs them"),
    Counterpart(("--max-new-tokens", "-m"), ("max_tokens",), "a reply ends with the context"),
    Counterpart(("--max-problems", "-x"), ("max_per_task",)),
    Counterpart(("--examples-per-step",), ("questions",)),
    Counterpart(("--num-samples", "-n"), ("samples",), "each question gets one reply"),
    Counterpart(("--eval-examples",), ("eval_items",)),
    Counterpart(("--num-epochs",), ("epochs",), "give --num-iterations, the number of steps"),
    Counterpart(
        ("--source", "-i"), says="the run's name says which model it is; --run NAME chooses another", ignored=True
    ),
    Counterpart(
        ("--init-lr-frac",),
        says="--lr-scale is the factor of all learning rates; multiply the lr_scale of the base run by this fraction",
    ),
    Counterpart(
        ("--mmlu-epochs", "--gsm8k-epochs"),
        says="give each source a weight, as in --data smoltalk:9,mmlu:1,gsm8k:1",
    ),
    Counterpart(
        ("--chatcore-every", "--chatcore-max-cat", "--chatcore-max-sample"),
        says="run scripts.chat_eval after training",
    ),
    Counterpart(("--load-optimizer",), says="fine-tuning starts with a new optimizer state"),
    Counterpart(("--fp8-recipe",), says="--fp8 has one recipe"),
    Counterpart(
        ("--device-batch-size", "--batch-size", "-b"),
        ("device_batch_size",),
        "--batch-tokens is the number of tokens per batch",
    ),
    Counterpart(("--num-gpus",), says="a server uses one GPU; --device cuda:N names it"),
)
OFF = ("-1", "-1.0")  # nanochat's word for "off" or "by default"
# What a value of -1 is here: a value, or the default.
OFF_HERE: Mapping[str, str | None] = {
    "save_every": "0",
    "sample_every": "0",
    "core_every": "0",
    "eval_every": "0",
    "core_max_per_task": str(10**9),
    **dict.fromkeys(
        ("max_per_task", "num_iterations", "target_flops", "target_param_data_ratio", "total_batch_size", "base_step")
    ),
    **dict.fromkeys(("step", "max_chars", "warmup_steps")),
}
SCRIPTS = {  # nanochat's, today's and earlier ones, that have another name here
    "chat_web": "`python -m scripts.serve`: chat page and OpenAI's API",
    "base_loss": "`python -m scripts.base_eval --eval bpb,sample`",
    "mid_train": "`python -m scripts.chat_sft`: one stage, whose --data mixes conversations and questions",
    "infer_bench": "`python -m scripts.bench generate`",
}
COMMANDS = {  # other lines of nanochat
    "python -m nanochat.dataset -n 240": "`python -m scripts.fetch --data climbmix -n 240`",
    "python -m nanochat.report generate": "`python -m scripts.report --run NAME`",
    **{f"python -m scripts.{name}": here for name, here in SCRIPTS.items()},
    "bash runs/speedrun.sh": "`bash speedrun.sh`",
    "uv sync --extra cpu, --extra gpu, --group dev": "the same, or `bash scripts/setup.sh`",
    "NANOCHAT_BASE_DIR": "`NANOGKA_BASE_DIR`",
    "NANOCHAT_DTYPE": "`--dtype`",
    "--save-every -1 and other -1": "accepted for off, here 0 or the default",
}
VARIABLES = {"NANOCHAT_BASE_DIR": "NANOGKA_BASE_DIR", "NANOCHAT_DTYPE": "--dtype"}


def translate(
    words: Sequence[str], known: Collection[str], short: Collection[str]
) -> tuple[list[str], list[str], list[str]]:
    """`words` of a command line with nanochat's flags replaced, errors about others, and notices.

    `known` are the script's fields, and `short` the letters of its short flags.
    """
    table = {name: one for one in FLAGS for name in one.names}
    translated, errors, notices, rest = [], [], [], list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        one = table.get(name)
        own = name[2:].replace("-", "_") in known if name.startswith("--") else name[1:] in short
        if one is None or own:
            translated.append(word)
            continue
        if not equals and rest and (not rest[0].startswith("-") or rest[0][1:2].isdigit()):
            value = rest.pop(0)
        field = next((field for field in one.fields if field in known), None)
        if field is not None:
            translated.append(f"--{field.replace('_', '-')}={_task_names(value) if field == 'tasks' else value}")
        elif one.says:
            (notices if one.ignored else errors).append(f"{name}: nanochat's flag has no counterpart here: {one.says}")
        else:
            translated.append(word)
    return translated, errors, notices


def refuse_script(words: Sequence[str]) -> None:
    """Exit with a sentence if `words`, the command line of a Python process, start a script of nanochat's."""
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    name = module.removeprefix("scripts.")
    if name in SCRIPTS:
        print(f"{module}: nanochat's script has another name here: {SCRIPTS[name]}", file=sys.stderr)
        sys.exit(2)


def _task_names(value: str) -> str:
    """`arc_easy,mmlu` for nanochat's `ARC-Easy|MMLU`."""
    return value.replace("|", ",").replace("-", "_").lower()


def is_off(name: str, value: object) -> bool:
    """True if `value` is nanochat's -1 for a field in which it means off."""
    return name in OFF_HERE and isinstance(value, str) and value.strip() in OFF


def ignored_variables() -> list[str]:
    """A line about each of nanochat's environment variables that is set and has no effect."""
    return [
        f"{name} is nanochat's and has no effect; use {here}"
        for name, here in VARIABLES.items()
        if name in os.environ and here not in os.environ and os.environ.get("LOCAL_RANK", "0") == "0"
    ]


def table() -> str:
    """The counterparts as a table in Markdown. An error or a notice says what the flags of its last row become."""
    lines = [f"| `{line}` | {here} |" for line, here in COMMANDS.items()]
    for here, rows in (
        ("accepted", [one for one in FLAGS if not one.says]),
        ("accepted by scripts that have a counterpart", [one for one in FLAGS if one.says and one.fields]),
        ("the script says what to use instead", [one for one in FLAGS if one.says and not one.fields]),
    ):
        lines.append(f"| {', '.join(f'`{name}`' for one in rows for name in one.names)} | {here} |")
    return "\n".join(["| nanochat | here |", "|---|---|", *lines])
