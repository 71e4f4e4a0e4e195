"""The model card (README.md) of an exported run, written from the files of the run's folder."""

import json
import shlex

from nanogka.common.formatting import MISSING, code_span, duration, markdown_table, number, plain, scientific
from nanogka.model import MIXERS, attention_name
from nanogka.runs import LoadedRun

CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
tags:
- nanogka
{tags}
---
# {name}

A language model of {parameters:,} parameters that {kind}. {config.n_layer} layers of width {config.n_embd}, heads of \
{config.head_dim}, context {config.sequence_len:,} tokens, vocabulary {config.vocab_size:,}; token mixing: {mixers} \
(pattern {pattern}).

Gaussian Kernel Attention has no query, key or value projections: [arXiv 2605.02144](https://arxiv.org/abs/2605.02144).

{tools}## Use

With nanogka installed, none of this folder's code runs:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from nanogka.export import register_with_transformers

register_with_transformers()
name = "."  # this folder, or its name on the hub
model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
generate({prompt}, max_new_tokens=50)
```

With nanogka and vLLM installed, `vllm serve FOLDER{serve}` serves it.

Without nanogka, drop the lines with `register_with_transformers` and pass `trust_remote_code=True` to both
`from_pretrained`. This runs the four .py files of this folder, which need only torch and transformers 4.57 or 5.

Special tokens such as `<|bos|>` in untrusted text stay text with `tokenizer(text, split_special_tokens=True)`. In
conversations they always stay text.

## Data and budget

{budget}

## Scores

{scores}

## Bandwidths

{bandwidths}

## Limits and license

A small model, trained for study. Its answers are often wrong, and nothing was done to make it safe. Code and weights \
are under the MIT license. The data ({data}) have their own licenses.
"""

TOOLS = """\
**This model may call a calculator.** A reply can end with a call of the function `calculator` with the argument
`expression`. Your program computes the result and sends it back as a message with the role `tool`. Then the model
continues its reply:

```python
from nanogka.export import read_reply
from nanogka.generate.calculator import calculate  # or your own function from an expression to a text

messages = [{"role": "user", "content": "What is 2 + 4 + 3?"}]
while True:
    messages = generate(messages, max_new_tokens=50, skip_special_tokens=False)[0]["generated_text"]
    messages[-1]["content"], expression = read_reply(messages[-1]["content"])
    if expression is None:
        break
    function = {"name": "calculator", "arguments": {"expression": expression}}
    messages[-1]["tool_calls"] = [{"type": "function", "function": function}]
    messages.append({"role": "tool", "content": calculate(expression) or ""})
```

`generate` is the pipeline below. Without `skip_special_tokens=False` it returns the expression as text. Without
nanogka, split the reply at `<|python_start|>`, which begins a call.

"""
SERVE_TOOLS = " --enable-auto-tool-choice --tool-call-parser nanogka"


def model_card(run: LoadedRun, question: str = "Hello") -> str:
    """The text of README.md. The example of a chat model asks `question`."""
    config, chat = run.model.config, run.kind == "chat"
    mixers = sorted({mixer.name for mixer in config.mixers()})
    return CARD.format(
        tags="\n".join(f"- {name}" for name in mixers),
        name=plain(run.part("run").get("tag", run.folder.name)),
        config=config,
        parameters=run.accounting.total_parameters,
        kind="replies in conversations" if chat else "continues text; it was not trained to converse",
        mixers=", ".join(MIXERS[name].label for name in mixers),
        pattern=attention_name(config.mixer_pattern),
        prompt=_messages(question) if chat else '"The with statement"',
        tools=TOOLS if chat else "",
        serve=SERVE_TOOLS if chat else "",
        budget=_budget(run),
        scores=_scores(run),
        bandwidths=_bandwidths(run),
        data=code_span(run.part("settings").get("data", MISSING)),
    )


def _messages(question: str) -> str:
    return json.dumps([{"role": "user", "content": question}], ensure_ascii=False)


def _budget(run: LoadedRun) -> str:
    settings, about = run.part("settings"), run.part("run")
    batch, flops = about.get("total_batch_size"), about.get("flops_per_token")
    lines = [line for line in run.train if line["step"] <= run.step]
    # What the run logged; a step of reinforcement learning has as many tokens as its replies.
    planned = None if batch is None else run.step * batch
    tokens = lines[-1].get("tokens", planned) if lines else planned
    seconds = [line.get("total_seconds") or 0 for line in lines]
    rows = [("training data", code_span(settings.get("data", MISSING)))]
    if run.kind == "chat":
        rows.append(("fine-tuned from", code_span((about.get("base") or {}).get("run", MISSING))))
    rows += [
        ("steps", number(run.step)),
        ("tokens", number(tokens)),
        ("training FLOPs", scientific(tokens * flops if tokens and flops else None)),
        ("time", duration(max(seconds, default=0) or None)),
        ("hardware", plain(about.get("hardware", MISSING))),
        ("dtype", plain(about.get("dtype", MISSING))),
        ("seed", number(settings.get("seed"))),
    ]
    return markdown_table(["", ""], rows)


def _scores(run: LoadedRun) -> str:
    evaluation, script = run.evaluation, "chat_eval" if run.kind == "chat" else "base_eval"
    if evaluation.get("step") != run.step:
        command = code_span(f"python -m scripts.{script} --run {shlex.quote(run.folder.name)}")
        return f"Not evaluated at this step. Run {command}."
    rows: list[tuple[str, ...]] = []
    for split, bits in (evaluation.get("bpb") or {}).items():
        rows.append((f"bits / byte, {split}", number(bits), MISSING, MISSING))
    for task in evaluation.get("tasks") or []:
        rows.append((plain(task["name"]), *(number(task.get(name)) for name in ("accuracy", "chance", "items"))))
    return markdown_table(["", "value or accuracy", "chance", "items"], rows) if rows else "There are no scores."


def _bandwidths(run: LoadedRun) -> str:
    layers = run.model.observations().get("bandwidth", {})
    if not layers:
        return "No layer has a Gaussian kernel."
    rows = [(str(layer), ", ".join(f"{value:.3f}" for value in values.tolist())) for layer, values in layers.items()]
    table = markdown_table(["layer", "σ"], rows, left=2)
    return f"σ of each head (initial value {run.bandwidth_start:.3f}).\n\n{table}"
