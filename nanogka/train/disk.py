"""The space that a run's checkpoints need, and whether the disk has it: known before anything is trained."""

import shutil
from pathlib import Path

import torch

from nanogka.checkpoint import list_checkpoints
from nanogka.common.formatting import gigabytes
from nanogka.model import GPT, GPTConfig, model_costs
from nanogka.train.optimizer import optimizer_state_bytes
from nanogka.train.plan import TrainPlan


def checkpoint_bytes(config: GPTConfig) -> int:
    """Size of a checkpoint: weights and optimizer state in float32."""
    with torch.device("meta"):
        state = optimizer_state_bytes(GPT(config))
    return 4 * model_costs(config).total_parameters + state


def checkpoints_at_once(plan: TrainPlan) -> int:
    """The largest number of checkpoints on the disk: those that are kept, and one that is being written."""
    every, total = plan.settings.save_every, plan.num_iterations
    saved = -(-total // every) if every else 1
    return min(plan.settings.keep + plan.settings.keep_best + 1, saved)


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def check_disk(plan: TrainPlan) -> list[str]:
    """Return a warning if the disk has no room for all checkpoints that the run will keep.

    Raises ValueError if two do not fit: the second one is written while the first is still needed. Checkpoints in the
    run's folder count as free space, because rotation or --overwrite deletes them.
    """
    size, most = checkpoint_bytes(plan.config), checkpoints_at_once(plan)
    folder = plan.folder / "checkpoints"
    held = sum(file.stat().st_size for path in list_checkpoints(folder) for file in path.iterdir() if file.is_file())
    room = free_bytes(plan.folder) + held
    least = min(2, most)
    got = f"{gigabytes(room)} on the disk of {plan.folder}"
    if room < least * size:
        raise ValueError(
            f"NANOGKA_BASE_DIR: got {got}, expected room for {least} checkpoints of {gigabytes(size)}; "
            "free some space, or name a folder on another disk"
        )
    if room < most * size:
        return [
            f"WARNING: {got}, less than the {most} checkpoints of {gigabytes(size)} that --keep {plan.settings.keep} "
            f"and --keep-best {plan.settings.keep_best} will hold at once"
        ]
    return []
