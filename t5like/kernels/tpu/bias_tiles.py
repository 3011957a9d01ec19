"""T5's bias inside a TPU kernel: [query, key] tiles from one value per distance, and back.

Entry (row r, column c) of a tile depends only on c - r. The kernel receives a strip of eight rows (one register), each
shifted by one more, and doubles it: rows 8 to 15 are rows 0 to 7 shifted by eight, and so on. That takes
log2(rows / 8) rotations per tile, instead of reading a [heads, query, key] matrix for every row of the batch.
The gradient folds a tile back in the same way.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

ROWS = 8  # of a 32-bit vector register


def strips(by_distance: jax.Array) -> jax.Array:
  """Stacks shifted copies, [heads, n] -> [heads, 8, n]: row s is shifted right by s."""
  return jnp.stack([jnp.roll(by_distance, s, axis=1) for s in range(ROWS)], axis=1)


def tile_from_window(window: jax.Array, rows: int) -> jax.Array:
  """Expands a window [8, rows + columns] to a tile [rows, columns] whose entry (r, c) is window[0, rows + c - r]."""
  tile, size = window, ROWS
  while size < rows:
    tile = jnp.concatenate([tile, pltpu.roll(tile, size, 1)], axis=0)
    size *= 2
  return tile[:, rows:]


def window_from_tile(tile: jax.Array) -> jax.Array:
  """Computes the transpose of `tile_from_window`: [rows, columns] -> [8, rows + columns]."""
  rows, columns = tile.shape
  window = jnp.concatenate([jnp.zeros((rows, rows), tile.dtype), tile], axis=1)
  while rows > ROWS:
    rows //= 2
    window = window[:rows] + pltpu.roll(window[rows:], window.shape[1] - rows, 1)
  return window
