"""Random numbers without a generator: a hash of (seed, epoch, row, purpose, index).

The same row gets the same numbers whatever the batch size, the order, the worker or the host, and
nothing has to be saved to go on after a restart.
"""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # step of the SplitMix64 sequence (Steele et al. 2014)


def mix(x: np.ndarray) -> np.ndarray:
  """SplitMix64's finalizer: a bijection on uint64 in which every input bit moves every output bit."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def combine(*counters: int | np.ndarray) -> np.ndarray:
  """One uint64 key from several counters, broadcast against each other."""
  key = np.zeros(1, np.uint64)
  for counter in counters:
    key = mix((key ^ np.asarray(counter).astype(np.uint64)) + _GOLDEN)
  return key


@dataclasses.dataclass(frozen=True)
class Draws:
  """The random numbers that belong to some rows."""

  keys: np.ndarray  # [rows] uint64

  @classmethod
  def of(cls, seed: int, epoch: int | np.ndarray, rows: np.ndarray) -> Draws:
    return cls(combine(seed, epoch, rows))

  def bits(self, purpose: str, count: int) -> np.ndarray:
    """[rows, count] uniform uint64; another purpose gives independent numbers."""
    start = combine(self.keys, zlib.crc32(purpose.encode()))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return mix(start[:, None] + steps[None, :])

  def uniform(self, purpose: str, count: int) -> np.ndarray:
    """[rows, count] float64 in [0, 1)."""
    return (self.bits(purpose, count) >> np.uint64(11)) * 2.0**-53

  def integers(self, purpose: str, count: int, below: int | np.ndarray) -> np.ndarray:
    """[rows, count] int64 in range(below); `below` is one number, one a row [rows, 1], or one a draw.

    The product of 32 random bits and `below`, without rejection: uneven by less than below / 2^32.
    """
    return (((self.bits(purpose, count) >> np.uint64(32)) * np.asarray(below, np.uint64)) >> np.uint64(32)).astype(
      np.int64
    )

  def subsets(self, purpose: str, size: int | np.ndarray, chosen: int | np.ndarray) -> np.ndarray:
    """[rows, max size] bool: in row r, `chosen[r]` of the first `size[r]` positions, every subset equally likely.

    Floyd's algorithm (Bentley and Floyd 1987), a step for all rows at a time: as many random numbers
    as positions are chosen, instead of a sort of all positions.
    """
    rows = len(self.keys)
    size, chosen = (np.broadcast_to(np.asarray(n, np.int64), rows) for n in (size, chosen))
    if np.any(chosen < 0) or np.any(chosen > size):
      raise ValueError("cannot choose more positions than there are")
    member = np.zeros((rows, int(size.max(initial=0)) + 1), bool)
    steps = int(chosen.max(initial=0))
    newest = (size - chosen)[:, None] + np.arange(steps)[None, :]  # [rows, steps]: the position each step adds
    drawn = self.integers(purpose, steps, newest + 1)
    # Rows that are done draw the spare last column.
    done = np.arange(steps)[None, :] >= chosen[:, None]
    newest[done] = drawn[done] = member.shape[1] - 1
    flat = member.reshape(-1)
    base = np.arange(rows) * member.shape[1]
    newest, drawn = (newest + base[:, None]).T.copy(), (drawn + base[:, None]).T.copy()  # [steps, rows]
    for new, draw in zip(newest, drawn, strict=True):
      flat[np.where(flat[draw], new, draw)] = True
    return member[:, :-1]

  def orders(self, purpose: str, lengths: np.ndarray, width: int) -> np.ndarray:
    """[rows, width]: a random permutation of the first `lengths[r]` positions of each row, the rest in place."""
    keys = self.bits(purpose, width)
    keys[np.arange(width)[None, :] >= lengths[:, None]] = np.uint64(2**64 - 1)
    return np.argsort(keys, axis=1, kind="stable")


def permute(positions: np.ndarray, size: int | np.ndarray, key: int | np.ndarray) -> np.ndarray:
  """A pseudo-random permutation of range(size), evaluated only at `positions`; sizes and keys may differ.

  A four-round Feistel network over the next even number of bits, walked until the value falls
  inside range(size): O(1) memory, any position at once, a bijection for every key.
  """
  result = np.asarray(positions).astype(np.uint64)
  sizes = np.broadcast_to(np.asarray(size, np.int64), result.shape)
  if np.any(result >= sizes.astype(np.uint64)):
    raise ValueError("a position is outside its permutation")
  # Half of the bits that hold the largest value, at least 1; frexp gives the bits of a number exactly.
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
