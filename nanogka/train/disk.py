"""How much of the disk a run will take, and whether there is that much."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from nanogka.model import Accounting


@dataclass(frozen=True)
class DiskNeed:
    """What a run will take of a disk.

    Attributes:
        parts: bytes, by what they are for.
        there: bytes of them that the disk holds already. free: bytes free on it.
        folder: where it is.
    """

    parts: dict[str, int]
    there: int
    free: int
    folder: Path

    @property
    def lacking(self) -> int:
        """Bytes that are wanting; 0 if it fits."""
        return max(0, sum(self.parts.values()) - self.there - self.free)

    def lines(self) -> list[str]:
        """For the plan; the second is a warning, where there is reason for one."""
        parts = ", ".join(f"{what} {_gb(size)}" for what, size in self.parts.items())
        total, there = _gb(sum(self.parts.values())), f", {_gb(self.there)} of it there already" if self.there else ""
        lines = [f"disk            {total}: {parts}{there}; {_gb(self.free)} free in {self.folder}"]
        if self.lacking:
            lines.append(
                f"WARNING         the disk is too small by {_gb(self.lacking)}: make room, or let NANOGKA_BASE_DIR "
                "name a folder with more"
            )
        return lines


def disk_need(folder: Path, parts: dict[str, int], there: int = 0) -> DiskNeed:
    """What `parts` mean for the disk of `folder`, which need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return DiskNeed(parts, there, shutil.disk_usage(existing).free, folder)


def checkpoint_bytes(accounting: Accounting) -> int:
    """Of one checkpoint: float32 weights, Muon's momentum of the matrices, AdamW's two averages of all else."""
    matrices = accounting.parameters["matrix"]
    return 4 * accounting.total_parameters + 4 * matrices + 8 * (accounting.total_parameters - matrices)


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
