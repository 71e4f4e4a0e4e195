"""Measure what mixers can do in context: copy repeated tokens, and recall values by their keys.

    python -m scripts.induction docs/research/families.yaml
    python -m scripts.induction docs/research/families.yaml --only baseline,gka --tasks repeat --depths 1,2

The families are those of a study's grid, of which nothing else is used. `nanogka.study.induction` describes the tasks,
`nanogka.study.induction_run` the experiments. Trials are lines of a .jsonl file and are not repeated; a table is
printed, and a plot of each task is written beside that file.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors


@dataclass(frozen=True)
class Settings:
    """Settings."""

    grid: str = flag("", "YAML file with `families`, such as a study's grid", positional=True)
    output: str = flag("", "file of finished trials (default: beside the grid, its name with -induction.jsonl)")
    only: str = flag("", "try these families only, separated by commas (default: all)")
    tasks: str = flag("repeat,recall", "tasks to try, separated by commas")
    depths: str = flag("1,2,3", "numbers of layers, separated by commas")
    seeds: int = flag(2, "models of each kind", ge=1, le=1000)
    length: int = flag(32, "greatest length of what is repeated (repeat)", ge=1, le=10**5)
    pairs: str = flag("4,8,16,32", "numbers of pairs of key and value (recall), separated by commas")
    vocab_size: int = flag(128, "number of token ids", ge=1, le=2**20)
    width: int = flag(128, "features of a position in the model", ge=1, le=2**14)
    head_dim: int = flag(64, "features per head", ge=1, le=2**14)
    steps: int = flag(150, "steps of each training", ge=1, le=10**7)
    batch_tokens: int = flag(1024, "tokens per step, about", ge=1, le=2**24)
    lr_scales: str = flag("1,3", "factors of all learning rates; each family takes its best")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "type of activations and products", ("auto", "float32", "bfloat16"))


def body(settings: Settings, errors: Errors) -> None:
    """Try, print the table, draw the plots."""
    from nanogka.common.runtime import pick_device
    from nanogka.study.induction_run import Induction, plot, table  # takes pydantic

    device = errors.capture(lambda: pick_device(settings.device))
    induction = Induction(settings, device, errors, lambda line: print(line, flush=True))
    rows = induction.run()
    print(table(rows, induction.families))
    for task in induction.tasks:
        name = f"{induction.path.stem}-{task}.png"
        print(plot(task, rows, induction.families, induction.path.with_name(name)))


main = command("induction", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
