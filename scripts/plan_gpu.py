"""Compute speed, memory and price of a training run on GPUs that are not here.

    python -m scripts.plan_gpu --depth 20 --hardware h100 --attention gaussian
    python -m scripts.plan_gpu --depth 24 --attention successor --network july --devices 8 --price 3
    python -m scripts.plan_gpu --attention gaussian,successor,dot_product --markdown
    python -m scripts.plan_gpu --compare

Torch's compiler plans the kernels of a micro-batch, traced on fake tensors of the real sizes (20 to 40 CPU seconds).
Launches and bytes are counted in that plan. Times come from the roofline in nanogka/train/estimate.py, which is fitted
to published runs. `--compare` prints the computed times of these runs, of others and of
one step of this code.
"""

import sys

from nanogka.bench.gpu_costs import Settings, plan_gpu
from nanogka.common.cli import command

main = command("plan_gpu", Settings, plan_gpu, __doc__)

if __name__ == "__main__":
    sys.exit(main())
