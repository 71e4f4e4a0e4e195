"""How a split is cut: shards, the blocks in each, and the numbers of rows.

A stream of the loader asks for one shard after the other, so a shard need not be there before its turn comes. Numbers
of blocks and rows are only names; those of one shard never depend on what is known of another that is still to come.
"""

import numpy as np


class Layout:
    """A split whose shards are all there.

    Attributes:
        shards: (S,) int64, the shards' numbers.
        rows: in all of them, where that is known.
    """

    def __init__(self, sizes: np.ndarray, shard_of: np.ndarray) -> None:
        """`sizes`, `shard_of`: (N,) int64, rows in each block and the shard it lies in."""
        self.sizes, self.shard_of = sizes, shard_of
        self.shards: np.ndarray = np.unique(shard_of)
        self.rows: int | None = int(sizes.sum())
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)

    def ready(self, shard: int) -> bool:
        """Whether a shard can be read now. Raises ValueError if it never will be."""
        return True

    def name(self, shard: int) -> str:
        """A shard as people know it."""
        return f"shard {shard}"

    def blocks(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the blocks of a shard that is ready, and the rows in each: two (n,) int64 arrays."""
        numbers = np.flatnonzero(self.shard_of == shard)
        return numbers, self.sizes[numbers]

    def first_row(self, block: int) -> int:
        """The number of a block's first row; the others follow."""
        return int(self._starts[block])

    def block_of(self, row: int) -> tuple[int, int]:
        """The block that a row lies in, and that block's shard."""
        block = int(np.searchsorted(self._starts, row, "right")) - 1
        return block, int(self.shard_of[block])
