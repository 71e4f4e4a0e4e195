"""Compute speed and cost of a training run on GPUs that are not here.

    python -m scripts.plan_gpu --depth 20 --hardware h100 --attention gaussian
    python -m scripts.plan_gpu --depth 24 --attention successor --network july --devices 8 --price 3

Torch's compiler plans the kernels of a micro-batch, traced on fake tensors of the real sizes (20 to 40 CPU seconds).
Launches and bytes are counted in that plan. Times come from the roofline in nanogka/train/roofline.py, which is fitted
to a published run of nanochat. Nothing was measured on a GPU.
"""

import sys
from dataclasses import asdict, dataclass

from nanogka.common.cli import command, flag, json_flag, print_json
from nanogka.common.errors import Errors
from nanogka.common.formatting import duration, plain_table
from nanogka.common.runtime import PEAKS, Hardware


@dataclass(frozen=True)
class Settings:
    """Settings."""

    depth: int = flag(20, "number of layers", ge=1)
    attention: str = flag("gaussian", "token mixer, or a pattern of letters")
    network: str = flag("february", "nanochat's network: february or july")
    sequence_len: int = flag(2048, "context in tokens", ge=2)
    vocab_size: int = flag(32768, "size of the vocabulary", ge=1)
    rows: int = flag(32, "rows of a micro-batch", ge=1)
    hardware: str = flag("h100", f"GPU: {', '.join(PEAKS)}")
    devices: int = flag(8, "number of GPUs", ge=1)
    price: float = flag(3.0, "price per device and hour", ge=0)
    json: bool = json_flag()


def body(settings: Settings, errors: Errors) -> None:
    """Plan the kernels, compute the times, print both."""
    from nanogka.bench.gpu_plan import plan_kernels
    from nanogka.model import GPTConfig, model_costs
    from nanogka.train.budget import plan_budget
    from nanogka.train.roofline import step_time

    s, names = settings, {name.lower(): name for name in PEAKS}
    name = names.get(s.hardware.lower(), "")
    errors.require(name != "", "--hardware", s.hardware, ", ".join(PEAKS))
    shape = {"sequence_len": s.sequence_len, "vocab_size": s.vocab_size, "network": s.network}
    config = errors.capture(lambda: GPTConfig.from_depth(s.depth, s.attention, **shape))
    errors.raise_if_any()
    budget, positions = plan_budget(config), s.rows * s.sequence_len
    plan = plan_kernels(config, s.rows)
    moved = plan.moved * budget.total_batch_size / s.devices / positions
    hardware = Hardware(name, *PEAKS[name])
    step = step_time(config, hardware, budget.total_batch_size, s.devices, moved)
    assert step is not None, "hardware and traffic are known"
    assert hardware.peak_flops, "`PEAKS` has it"
    seconds = step.total * budget.num_iterations
    flops = model_costs(config).flops_per_token * budget.total_batch_size / s.devices
    mfu = flops / step.total / hardware.peak_flops
    price = s.price * s.devices * seconds / 3600
    print(
        plain_table(
            [
                ("kernels that the compiler writes, per micro-batch", f"{plan.fused:,}"),
                ("launches per micro-batch, without the loss's", f"{plan.launches:,}"),
                ("bytes that those kernels move", f"{plan.moved / 1e9:,.1f} GB"),
                ("bytes kept for the backward pass", f"{plan.kept / 1e9:,.1f} GB"),
                *((f"{kind}, per step", f"{1e3 * value:,.0f} ms") for kind, value in asdict(step).items()),
                (f"step of {budget.total_batch_size:,} tokens on {s.devices} × {name}", f"{1e3 * step.total:,.0f} ms"),
                ("tokens per second", f"{budget.total_batch_size / step.total:,.0f}"),
                ("MFU", f"{mfu:.0%}"),
                (f"run of {budget.num_iterations:,} steps", f"{duration(seconds)}, ${price:,.2f}"),
            ]
        )
    )
    document = {"fused": plan.fused, "launches": plan.launches, "moved_bytes": plan.moved, "kept_bytes": plan.kept}
    print_json(document | {"seconds": asdict(step), "mfu": mfu, "run_seconds": seconds, "price": price}, s.json)


main = command("plan_gpu", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
