"""Check a new GPU node: correctness, speed and the cost of a run.

    python -m scripts.gpu_first --price 24              all GPUs of the node, at 24 dollars per hour
    python -m scripts.gpu_first --depth 12 --mixers gaussian --price 0.4    one card of 24 GB, for a smaller model
    python -m scripts.gpu_first --gpus 1 --only machine,kernels,correct
    python -m scripts.gpu_first --smoke                 every stage on a CPU, with tiny sizes

Run it first on a new node. It checks the machine and the download rate, and compares the kernels with float64. It
measures the speed of attention, of a training step and of messages between GPUs. It trains for 30 steps with a crash in
between. The last line is GO with the expected time and cost of the run, or NO-GO with the reason. All numbers go to
OUT/results.md and the output of the stages to OUT/log.txt. After NO-GO the exit code is 1.
"""

import os
import sys

if "--smoke" in sys.argv:  # Triton reads the variable when it is imported, so it must be set before that
    os.environ["TRITON_INTERPRET"] = "1"

from nanogka.bench.first_hour import Settings, run
from nanogka.common.cli import command

main = command("gpu_first", Settings, run, __doc__)

if __name__ == "__main__":
    sys.exit(main())
