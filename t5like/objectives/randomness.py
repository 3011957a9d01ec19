"""Stateless random numbers: a hash of (seed, epoch, row, purpose, index).

A row gets the same numbers for any batch size, order, worker and host, and there is no state to save
for a restart.
"""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # step of the SplitMix64 sequence (Steele et al. 2014)


def mix(x: np.ndarray) -> np.ndarray:
  """Applies SplitMix64's finalizer: a bijection on uint64 in which every input bit affects every output bit."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def combine(*counters: int | np.ndarray) -> np.ndarray:
  """Hashes several counters, broadcast against each other, into uint64 keys."""
  key = np.zeros(1, np.uint64)
  for counter in counters:
    key = mix((key ^ np.asarray(counter).astype(np.uint64)) + _GOLDEN)
  return key


@dataclasses.dataclass(frozen=True)
class Draws:
  """The random numbers of a set of rows."""

  keys: np.ndarray  # [rows] uint64

  @classmethod
  def of(cls, seed: int, epoch: int | np.ndarray, rows: np.ndarray) -> Draws:
    return cls(combine(seed, epoch, rows))

  def bits(self, purpose: str, count: int) -> np.ndarray:
    """Returns uniform uint64 [rows, count]; numbers for different purposes are independent."""
    start = combine(self.keys, zlib.crc32(purpose.encode()))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return mix(start[:, None] + steps[None, :])

  def uniform(self, purpose: str, count: int) -> np.ndarray:
    """Returns float64 in [0, 1): [rows, count]."""
    return (self.bits(purpose, count) >> np.uint64(11)) * 2.0**-53

  def integers(self, purpose: str, count: int, below: int | np.ndarray) -> np.ndarray:
    """Returns int64 in range(below): [rows, count]; `below` is one number, one per row [rows, 1], or one per draw.

    Multiplies 32 random bits by `below`, without rejection: the bias is less than below / 2^32.
    """
    return (((self.bits(purpose, count) >> np.uint64(32)) * np.asarray(below, np.uint64)) >> np.uint64(32)).astype(
      np.int64
    )

  def subsets(self, purpose: str, size: int | np.ndarray, chosen: int | np.ndarray) -> np.ndarray:
    """Chooses `chosen[r]` of the first `size[r]` positions of row r uniformly; returns bool [rows, max size].

    Floyd's algorithm (Bentley and Floyd 1987), vectorized over rows: needs one random number per chosen
    position, instead of a sort of all positions.
    """
    rows = len(self.keys)
    size, chosen = (np.broadcast_to(np.asarray(n, np.int64), rows) for n in (size, chosen))
    if np.any(chosen < 0) or np.any(chosen > size):
      raise ValueError("cannot choose more positions than there are")
    member = np.zeros((rows, int(size.max(initial=0)) + 1), bool)
    steps = int(chosen.max(initial=0))
    newest = (size - chosen)[:, None] + np.arange(steps)[None, :]  # [rows, steps]: the position added by each step
    drawn = self.integers(purpose, steps, newest + 1)
    # Finished rows use the spare last column.
    done = np.arange(steps)[None, :] >= chosen[:, None]
    newest[done] = drawn[done] = member.shape[1] - 1
    flat = member.reshape(-1)
    base = np.arange(rows) * member.shape[1]
    newest, drawn = (newest + base[:, None]).T.copy(), (drawn + base[:, None]).T.copy()  # [steps, rows]
    for new, draw in zip(newest, drawn, strict=True):
      flat[np.where(flat[draw], new, draw)] = True
    return member[:, :-1]

  def orders(self, purpose: str, lengths: np.ndarray, width: int) -> np.ndarray:
    """Permutes the first `lengths[r]` positions of each row at random, the rest stays: [rows, width]."""
    keys = self.bits(purpose, width)
    keys[np.arange(width)[None, :] >= lengths[:, None]] = np.uint64(2**64 - 1)
    return np.argsort(keys, axis=1, kind="stable")


def permute(positions: np.ndarray, size: int | np.ndarray, key: int | np.ndarray) -> np.ndarray:
  """Evaluates a pseudo-random permutation of range(size) at `positions`; sizes and keys may differ by position.

  A four-round Feistel network over the next even number of bits with cycle walking, repeated until the
  value is inside range(size): O(1) memory, random access, a bijection for every key.
  """
  result = np.asarray(positions).astype(np.uint64)
  sizes = np.broadcast_to(np.asarray(size, np.int64), result.shape)
  if np.any(result >= sizes.astype(np.uint64)):
    raise ValueError("a position is out of range")
  # Half of the bits of the largest value, at least 1; frexp returns the exact number of bits.
  half = np.maximum((np.frexp(np.maximum(sizes - 1, 1).astype(np.float64))[1] + 1) // 2, 1).astype(np.uint64)
  low = (np.uint64(1) << half) - np.uint64(1)
  sizes = sizes.astype(np.uint64)
  keys = np.broadcast_to(np.asarray(key).astype(np.uint64), result.shape)
  walking = np.arange(result.size)
  flat = result.reshape(-1)
  half, low, sizes, keys = (np.broadcast_to(x, result.shape).reshape(-1) for x in (half, low, sizes, keys))
  rounds = [combine(keys, number) for number in range(4)]
  while walking.size:
    left, right = flat[walking] >> half[walking], flat[walking] & low[walking]
    for round_keys in rounds:
      left, right = right, left ^ (mix(round_keys[walking] + right) & low[walking])
    flat[walking] = (left << half[walking]) | right
    walking = walking[flat[walking] >= sizes[walking]]
  return flat.reshape(result.shape).astype(np.int64)
