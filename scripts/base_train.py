"""Pretrain a model.

    python -m scripts.base_train --depth 4 --sequence-len 512 --num-iterations 200 --total-batch-size 8192
    python -m scripts.launch --nproc_per_node=8 -m scripts.base_train -- --depth 20 --data fineweb-edu --device cuda
    python -m scripts.base_train --depth 20 --dry-run          print the plan and its cost, train nothing
    python -m scripts.base_train --depth 20 --dry-run --hardware h100 --devices 8 --price 3    on other hardware

Everything goes to NANOGKA_BASE_DIR/runs/<run>: config.yaml, metrics.jsonl, checkpoints. `--resume auto` continues a
run that was stopped and reproduces the losses of an uninterrupted run.
"""

import sys
from collections.abc import Callable

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.formatting import as_started, printable
from nanogka.data.loader import validation_batches
from nanogka.evaluate.bpb import BitsPerByte, draw_samples, measure_bits_per_byte
from nanogka.evaluate.bundle import open_core_tasks
from nanogka.evaluate.core import core_evaluation
from nanogka.model import GPT
from nanogka.train.costs import describe_run, on_hardware
from nanogka.train.pretraining import plan_pretraining, pretraining_loader, train_run
from nanogka.train.run import TrainingRun
from nanogka.train.settings import TrainSettings
from nanogka.train.trainer import Evaluation
from tasks import CORE


def validation(run: TrainingRun) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures bits per byte on the validation split, which the ranks share."""
    token_bytes = run.tokenizer.token_bytes()

    def measure(model: GPT) -> dict[str, float]:
        data = validation_batches(
            run.corpus,
            run.tokenizer,
            batch_size=run.batch.rows,
            sequence_len=run.config.sequence_len,
            max_tokens=run.settings.eval_tokens,
            packing=run.settings.packing,
            ranks=run.ranks,
        )
        mine = measure_bits_per_byte(model, ((batch.inputs, batch.targets) for batch in data), token_bytes)
        nats, count, tokens = run.ranks.sum([mine.nats, mine.bytes, mine.tokens], run.device)
        return {"val_bpb": BitsPerByte(nats, int(count), int(tokens)).value}

    return measure


def samples(run: TrainingRun) -> Callable[[GPT], dict[str, list[str]]]:
    """Return a function that lets rank 0 continue a few prompts."""

    def sample(model: GPT) -> dict[str, list[str]]:
        drawn = draw_samples(model, run.tokenizer) if run.ranks.is_main else ()
        return {"samples": [printable(f"> {one['prompt']}{one['text']}") for one in drawn]}

    return sample


def body(settings: TrainSettings, errors: Errors) -> int:
    """Check everything, then train; returns the exit code."""
    ranks, max_per_task = Ranks.from_environment(), settings.core_max_per_task
    settings.check(errors)
    errors.raise_if_any()
    tasks = []
    if settings.core_every > 0:
        tasks = open_core_tasks(settings.eval_bundle, CORE, max_per_task)
    run = plan_pretraining(settings, ranks)
    if settings.hardware:
        run = on_hardware(run)
    if ranks.is_main:
        print(describe_run(run), flush=True)
    if settings.dry_run:
        return 0

    def evaluations(run: TrainingRun) -> list[Evaluation]:
        found = []
        if tasks:
            core = core_evaluation(tasks, CORE, run.tokenizer, ranks, max_per_task)
            found.append(Evaluation(settings.core_every, core))
        if settings.sample_every > 0:
            found.append(Evaluation(settings.sample_every, samples(run)))
        # Validation comes last, so that its line is the last of a step.
        return [*found, Evaluation(settings.eval_every, validation(run))]

    code = train_run(run, pretraining_loader, evaluations, add_files=lambda to: run.tokenizer.save(to / "tokenizer"))
    if ranks.is_main and code == 0:
        print(f"done: {run.folder}")
        print(as_started(f"evaluate: python -m scripts.base_eval --run {run.folder.name}"))
    return code


main = command("base_train", TrainSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
