"""T5's bias inside a TPU kernel: tiles of [query, key] from one value a distance, and back.

A tile's entry (row r, column c) depends on c - r alone. The kernel is given a strip of eight rows, each shifted by
one more (one register's worth), and doubles it: rows 8 to 15 are rows 0 to 7 shifted by eight, and so on. That is
log2(rows / 8) rotations a tile, against reading a [heads, query, key] matrix again for every row of the batch.
The gradient folds a tile back in the same way.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

ROWS = 8  # of a 32-bit vector register


def strips(by_distance: jax.Array) -> jax.Array:
  """[heads, n] -> [heads, 8, n]: row s is shifted right by s."""
  return jnp.stack([jnp.roll(by_distance, s, axis=1) for s in range(ROWS)], axis=1)


def tile_of(window: jax.Array, rows: int) -> jax.Array:
  """[8, rows + columns] -> [rows, columns], where entry (r, c) is the window's (0, rows + c - r)."""
  tile, size = window, ROWS
  while size < rows:
    tile = jnp.concatenate([tile, pltpu.roll(tile, size, 1)], axis=0)
    size *= 2
  return tile[:, rows:]


def window_of(tile: jax.Array) -> jax.Array:
  """The transpose of `tile_of`: [rows, columns] -> [8, rows + columns]."""
  rows, columns = tile.shape
  window = jnp.concatenate([jnp.zeros((rows, rows), tile.dtype), tile], axis=1)
  while rows > ROWS:
    rows //= 2
    window = window[:rows] + pltpu.roll(window[rows:], window.shape[1] - rows, 1)
  return window
