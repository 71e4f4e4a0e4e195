"""The first command on a rented GPU node: is everything right, how fast is it, and what will a run cost?

    python -m scripts.gpu_first --price 24              all GPUs of the node, at 24 dollars per hour
    python -m scripts.gpu_first --gpus 1 --minutes 10
    python -m scripts.gpu_first --smoke                 every stage on a CPU, with tiny sizes

It checks the machine, the download rate, the kernels against float64, the speed of attention, of a training step and of
messages, and trains for 30 steps with a crash in between. The last line is GO with the expected time and cost of depth
20, or NO-GO with the reason. OUT/results.md has all numbers and OUT/log.txt what the stages print. The exit code is 1
after NO-GO.
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
