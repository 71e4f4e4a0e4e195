"""Run a script in one process per GPU, on one node or several.

    python -m scripts.launch --nproc_per_node=8 -m scripts.base_train -- --depth 20 --device cuda

The flags before the script are those of torchrun, and a lone `--` separates them from the script's flags. Unlike
torchrun, the command ends with the exit code of the process that failed first: 2 if the script refused its settings, 3
if the loss was not finite, 128 + n after signal n. It prints no traceback. After Ctrl-C or SIGTERM it waits
four minutes for the script to save its work (torchrun: 30 seconds).
"""

import logging
import os
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(argv: list[str] | None = None) -> int:
    """Launch the script and return its exit code."""
    # The last checkpoint of a large model takes longer than torch's 30 seconds.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "240")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch does the same, with a warning
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the script has said what is wrong
    try:
        arguments = run.parse_args(sys.argv[1:] if argv is None else argv)
        arguments.standalone |= not arguments.rdzv_endpoint and not arguments.master_port  # one node, on any free port
        run.run(arguments)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        code = failure.exitcode if failure.exitcode >= 0 else 128 - failure.exitcode  # negative: the number of a signal
        print(f"launch: rank {rank} ended first, with exit code {code}", file=sys.stderr)
        return code
    except SignalException as stopped:  # the workers have ended by now
        return 128 + stopped.sigval.value
    return 0


if __name__ == "__main__":
    sys.exit(main())
