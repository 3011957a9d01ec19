"""The order in which an epoch reads the rows of a corpus: a function of (seed, epoch), with random access."""

from __future__ import annotations

import dataclasses

import numpy as np

from t5like.data.in_place import UNIT
from t5like.objectives.randomness import combine, permute

_ORDER, _WITHIN_POOL = 0x5487FF1E, 0x9001  # random streams


def shuffled(numbers: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the epoch and the row of running numbers; each epoch is a different permutation of all rows."""
  epochs = numbers // rows
  return epochs, permute(numbers % rows, rows, combine(seed, epochs, _ORDER))


@dataclasses.dataclass(frozen=True)
class PooledOrder:
  """Rows shuffled in two levels, so that a corpus can be read in large pieces, in place.

  The rows are divided into blocks of neighbors. Every epoch deals the blocks, shuffled, to pools: a pool has blocks
  from all over the corpus. The rows of a pool are shuffled among themselves. Each row is read once per epoch; a rest
  of rows that is shorter than a block belongs to the last pool.
  """

  block: int  # rows of a block
  blocks: int  # blocks of a pool

  @classmethod
  def of(cls, row_bytes: int, pool_bytes: int) -> PooledOrder:
    """Returns the order of rows in pools of about that size, with blocks of one unit."""
    return cls(max(UNIT // row_bytes, 1), max(pool_bytes // max(UNIT, row_bytes), 1))

  def shuffled(self, numbers: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the epoch and the row of running numbers, given the rows of an epoch."""
    epochs, numbers = numbers // rows, numbers % rows
    size = self.block * self.blocks
    pools = numbers // size
    sizes = np.minimum(size, rows - pools * size)
    within = permute(numbers - pools * size, sizes, combine(seed, epochs, pools, _WITHIN_POOL))
    dealt = pools * self.blocks + within // self.block
    return epochs, self._blocks(dealt, epochs, rows, seed) * self.block + within % self.block

  def pools(self, numbers: np.ndarray, rows: int) -> np.ndarray:
    """Returns the pool of each running number; pools are numbered through all epochs."""
    return numbers // rows * self._pools(rows) + numbers % rows // (self.block * self.blocks)

  def spans(self, pool: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first row of each block of a pool, and the row after its last."""
    epoch, pool = divmod(pool, self._pools(rows))
    dealt = np.arange(pool * self.blocks, min((pool + 1) * self.blocks, -(-rows // self.block)))
    first = self._blocks(dealt, np.int64(epoch), rows, seed) * self.block
    return first, np.minimum(first + self.block, rows)

  def _pools(self, rows: int) -> int:
    return -(-rows // (self.block * self.blocks))

  def _blocks(self, dealt: np.ndarray, epochs: np.ndarray, rows: int, seed: int) -> np.ndarray:
    """Returns the blocks at places in the order of an epoch; the last place is that of the rest."""
    whole = rows // self.block
    places = np.minimum(dealt, max(whole - 1, 0))
    return np.where(dealt < whole, permute(places, max(whole, 1), combine(seed, epochs, _ORDER)), whole)
