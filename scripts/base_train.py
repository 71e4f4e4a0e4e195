"""Pretrain a model.

    python -m scripts.base_train --depth 4 --sequence-len 512 --num-iterations 200 --total-batch-size 8192
    torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth 20 --data fineweb-edu

Everything goes to NANOGKA_BASE_DIR/runs/<run>: config.yaml, metrics.jsonl, checkpoints. `--resume auto` continues a run
that was stopped, with the same losses as if it had not been.
"""

import argparse
import sys

from nanogka.cli import from_flags, parse_flags, run_script
from nanogka.data import validation_batches
from nanogka.distributed import Ranks
from nanogka.evaluate import measure_bits_per_byte
from nanogka.evaluate.bits_per_byte import BitsPerByte
from nanogka.model import GPT
from nanogka.problems import Problems
from nanogka.train.launch import launch
from nanogka.train.loop import Evaluation
from nanogka.train.preparation import Preparation, prepare
from nanogka.train.settings import TrainSettings
from tasks.training import core, core_tasks


def validation(preparation: Preparation) -> Evaluation:
    """Bits per byte on the validation split, its batches shared out over the ranks."""
    ranks, rows, length = preparation.ranks, preparation.device_batch_size, preparation.config.sequence_len
    batches = max(1, preparation.settings.eval_tokens // (rows * length * ranks.world_size))
    token_bytes = preparation.tokenizer.token_bytes()

    def run(model: GPT) -> dict[str, float]:
        data = validation_batches(
            preparation.corpus,
            preparation.tokenizer,
            batch_size=rows,
            sequence_len=length,
            max_batches=batches,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
        mine = measure_bits_per_byte(model, ((batch.inputs, batch.targets) for batch in data), token_bytes)
        nats, count, tokens = ranks.sum([mine.nats, mine.bytes, mine.tokens], preparation.device)
        return {"val_bpb": BitsPerByte(nats, int(count), int(tokens)).value}

    return Evaluation(preparation.settings.eval_every, run)


def train(args: argparse.Namespace) -> int:
    """Prepare and train; returns the exit code."""
    ranks, problems = Ranks.from_environment(), Problems()
    settings = from_flags(TrainSettings, args, problems)
    tasks = core_tasks(settings, problems)
    preparation = prepare(settings, ranks, problems)
    afterwards = f"evaluate: python -m scripts.base_eval --run {preparation.folder.name}"
    # CORE first: the last line of a step is then the validation's
    return launch("base_train", preparation, lambda: [*core(preparation, tasks), validation(preparation)], afterwards)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    args = parse_flags(TrainSettings, "base_train", __doc__, argv)
    return run_script(lambda: train(args), "base_train")


if __name__ == "__main__":
    sys.exit(main())
