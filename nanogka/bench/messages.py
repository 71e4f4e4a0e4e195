"""Measure the messages of training between ranks. Start it with torchrun; rank 0 prints one JSON document.

    torchrun --standalone --nproc_per_node=8 -m nanogka.bench.messages cuda 134217728

Every step sums gradients on the rank that owns them (reduce) and sends the new weights to all (broadcast).
"""

import json
import sys

import torch
import torch.distributed as dist

from nanogka.bench.common import seconds
from nanogka.common.distributed import Ranks
from nanogka.common.runtime import pick_device

REPEATS = 10


def main(device_name: str, size: int) -> None:
    """Send buckets of `size` bytes; the results are bytes of the bucket per second."""
    ranks = Ranks.from_environment()
    device = ranks.device(pick_device(device_name))
    results = {}
    with ranks.joined(device):
        bucket = torch.ones(size // 4, device=device)
        operations = {
            "reduce": lambda: dist.reduce(bucket, dst=0),
            "broadcast": lambda: dist.broadcast(bucket, src=0),
        }
        for name, operation in operations.items():
            operation()  # the first message opens the connections
            results[f"{name}_bytes_per_second"] = size / seconds(operation, device, REPEATS)
        # Every reduce sums the ranks' ones on rank 0, and the broadcast sends the sum to all ranks.
        bucket.fill_(1)
        dist.all_reduce(bucket)
        if not bool((bucket == ranks.world_size).all()):
            raise RuntimeError("the ranks' sum is wrong")
    if ranks.is_main:
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
