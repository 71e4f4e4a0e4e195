"""The model card (README.md) of an exported run, written from the files of the run's folder."""

import shlex

from nanogka.common.formatting import MISSING, code_span, duration, markdown_table, number, plain, scientific
from nanogka.model import MIXERS, attention_name
from nanogka.runs import LoadedRun

LICENCE = "mit"
PAPER = "https://arxiv.org/abs/2605.02144"
USE = """
```python
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

name = "."  # this folder, or its name on the hub
model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
generate({prompt}, max_new_tokens=50)
```

The code that `trust_remote_code` runs is in the four .py files of this folder. They need torch and transformers
4.57 or 5, nothing else. Special tokens such as `<|bos|>` in untrusted text stay text with
`tokenizer(text, split_special_tokens=True)`. In conversations they always stay text."""
PROMPTS = {"chat": '[{"role": "user", "content": "How do you spell kif?"}]', "base": '"The with statement"'}


def model_card(run: LoadedRun) -> str:
    """The text of README.md: YAML for the hub, then description, use, data, budget, scores and σ."""
    about = run.part("run")
    front = ["---", f"license: {LICENCE}", "library_name: transformers", "pipeline_tag: text-generation"]
    front += ["tags:", "- nanogka", *(f"- {name}" for name in _mixers(run)), "---", ""]
    parts = [
        f"# {plain(about.get('tag', run.folder.name))}",
        _introduction(run),
        "## Use\n" + USE.replace("{prompt}", PROMPTS.get(run.kind, PROMPTS["base"])),
        "## Data and budget\n\n" + _budget(run),
        "## Scores\n\n" + _scores(run),
        "## Bandwidths\n\n" + _bandwidths(run),
        "## Limits and license\n\n" + _limits(run),
    ]
    return "\n".join(front) + "\n\n".join(parts) + "\n"


def _mixers(run: LoadedRun) -> list[str]:
    return sorted({mixer.name for mixer in run.model.config.mixers()})


def _introduction(run: LoadedRun) -> str:
    config = run.model.config
    labels = ", ".join(MIXERS[name].label for name in _mixers(run))
    shape = f"{config.n_layer} layers of width {config.n_embd}, heads of {config.head_dim}"
    kind = "replies in conversations" if run.kind == "chat" else "continues text; it was not trained to converse"
    parameters = run.accounting.total_parameters
    pattern = attention_name(config.mixer_pattern)
    return (
        f"A language model of {number(parameters)} parameters that {kind}. {shape}, context {config.sequence_len:,}"
        f" tokens, vocabulary {config.vocab_size:,}; token mixing: {labels} (pattern {pattern})."
        f"\n\nGaussian Kernel Attention has no query, key or value projections: [arXiv 2605.02144]({PAPER})."
    )


def _budget(run: LoadedRun) -> str:
    settings, about = run.config["settings"], run.part("run")
    batch, flops = about.get("total_batch_size"), about.get("flops_per_token")
    tokens = None if batch is None else run.step * batch
    lines = [line for line in run.lines if line["step"] <= run.step]
    seconds = [line["total_seconds"] for line in lines if isinstance(line.get("total_seconds"), int | float)]
    rows = [("training data", code_span(settings.get("data", MISSING)))]
    if run.kind == "chat":
        rows.append(("fine-tuned from", code_span((about.get("base") or {}).get("run", MISSING))))
    rows += [
        ("steps", number(run.step)),
        ("tokens", number(tokens)),
        ("training FLOPs", scientific(tokens * flops if tokens and flops else None)),
        ("time", duration(seconds[-1] if seconds else None)),
        ("hardware", plain(about.get("hardware", MISSING))),
        ("dtype", plain(about.get("dtype", MISSING))),
        ("seed", number(settings.get("seed"))),
    ]
    return markdown_table(["", ""], rows)


def _scores(run: LoadedRun) -> str:
    script = "chat_eval" if run.kind == "chat" else "base_eval"
    found = run.evaluation
    if found.get("step") != run.step:
        command = code_span(f"python -m scripts.{script} --run {shlex.quote(run.folder.name)}")
        return f"Not evaluated at this step. Run {command}."
    bits = found.get("bpb") or {}
    rows = [
        (f"bits / byte, {split}", number(bits[split]), MISSING, MISSING) for split in ("train", "val") if split in bits
    ]
    for task in found.get("tasks") or []:
        rows.append((plain(task["name"]), *(number(task.get(name)) for name in ("accuracy", "chance", "items"))))
    if not rows:
        return "The evaluation holds no scores."
    return markdown_table(["", "value or accuracy", "chance", "items"], rows)


def _bandwidths(run: LoadedRun) -> str:
    layers = run.model.observations().get("bandwidth", {})
    if not layers:
        return "No layer has a Gaussian kernel."
    rows = [(str(layer), ", ".join(f"{value:.3f}" for value in values.tolist())) for layer, values in layers.items()]
    return f"σ of each head (initial value {run.bandwidth_start:.3f}).\n\n" + markdown_table(
        ["layer", "σ"], rows, left=2
    )


def _limits(run: LoadedRun) -> str:
    data = code_span(run.config["settings"].get("data", MISSING))
    return (
        "A small model, trained for study. Its answers are often wrong, and nothing was done to make it safe. Code and"
        f" weights are under the MIT license. The data ({data}) have their own licenses."
    )
