"""Pretrain a model.

    python -m scripts.base_train --depth 4 --sequence-len 512 --num-iterations 200 --total-batch-size 8192
    torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth 20 --data fineweb-edu
    python -m scripts.base_train --depth 20 --dry-run          only say what the run would be and cost

Everything goes to NANOGKA_BASE_DIR/runs/<run>: config.yaml, metrics.jsonl, checkpoints. `--resume auto` continues a run
that was stopped, with the same losses as if it had not been.
"""

import sys
from collections.abc import Callable

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.formatting import as_started, printable
from nanogka.data.loader import validation_batches
from nanogka.evaluate.bpb import BitsPerByte, draw_samples, measure_bits_per_byte
from nanogka.evaluate.core import core_evaluation
from nanogka.evaluate.sources import open_core_tasks
from nanogka.model import GPT
from nanogka.train.loop import Evaluation, train
from nanogka.train.settings import TrainSettings
from nanogka.train.setup import TextRun, prepare
from tasks import CORE


def validation(context: TextRun) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures bits per byte on the validation split, its batches shared by the ranks."""
    ranks, rows, length = context.ranks, context.device_batch_size, context.config.sequence_len
    batches = max(1, context.settings.eval_tokens // (rows * length * ranks.world_size))
    token_bytes = context.tokenizer.token_bytes()

    def measure(model: GPT) -> dict[str, float]:
        data = validation_batches(
            context.corpus,
            context.tokenizer,
            batch_size=rows,
            sequence_len=length,
            max_batches=batches,
            ranks=ranks,
        )
        mine = measure_bits_per_byte(model, ((batch.inputs, batch.targets) for batch in data), token_bytes)
        nats, count, tokens = ranks.sum([mine.nats, mine.bytes, mine.tokens], context.device)
        return {"val_bpb": BitsPerByte(nats, int(count), int(tokens)).value}

    return measure


def samples(context: TextRun) -> Callable[[GPT], dict[str, list[str]]]:
    """Return a function that lets the first rank continue a few prompts."""

    def sample(model: GPT) -> dict[str, list[str]]:
        drawn = draw_samples(model, context.tokenizer) if context.ranks.is_main else ()
        return {"samples": [printable(f"> {one['prompt']}{one['text']}") for one in drawn]}

    return sample


def body(settings: TrainSettings, errors: Errors) -> int:
    """Prepare and train; returns the exit code."""
    ranks, max_per_task = Ranks.from_environment(), settings.core_max_per_task
    tasks = []
    if settings.core_every > 0:
        tasks = open_core_tasks(settings.eval_bundle, CORE, max_per_task, errors)
    context = prepare(settings, ranks, errors)
    if ranks.is_main:
        print(context.describe(), flush=True)
    if settings.dry_run:
        return 0
    evaluations = [Evaluation(settings.eval_every, validation(context))]
    if settings.sample_every > 0:
        evaluations.insert(0, Evaluation(settings.sample_every, samples(context)))
    if tasks:  # first: the last line of a step is then the validation's
        core = core_evaluation(tasks, CORE, context.tokenizer, ranks, max_per_task)
        evaluations.insert(0, Evaluation(settings.core_every, core))
    with ranks.joined(context.device, settings.rank_timeout):
        code = train(context, evaluations)
    if ranks.is_main and code == 0:
        print(f"done: {context.folder}")
        print(as_started(f"evaluate: python -m scripts.base_eval --run {context.folder.name}"))
    return code


main = command("base_train", TrainSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
