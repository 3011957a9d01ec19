"""Packs examples into rows: planned once from their lengths, filled again every epoch.

The plan holds lengths, not examples: a row of the plan is "one of the examples with 37 inputs and
2 targets, one with 12 and 1, ...". Each epoch shuffles the examples of equal lengths among their
slots. So all epochs have the same number of rows, with random access to any row of any epoch.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from t5like.objectives.ragged import numbered
from t5like.objectives.randomness import combine, permute


@dataclasses.dataclass(frozen=True)
class PackingPlan:
  """Rows of slots. A slot holds an example of one class; a class is all examples of equal lengths."""

  first_slot: np.ndarray  # [rows + 1]
  slot_class: np.ndarray  # [slots]
  slot_number: np.ndarray  # [slots], the slot's number within its class
  class_begin: np.ndarray  # [classes + 1], into `examples`
  examples: np.ndarray  # [slots], example numbers sorted by class

  @property
  def rows(self) -> int:
    return len(self.first_slot) - 1

  def fill(self, rows: np.ndarray, epochs: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples of the given rows and epochs, and each example's index into `rows`."""
    counts = self.first_slot[rows + 1] - self.first_slot[rows]
    slots = np.repeat(self.first_slot[rows], counts) + numbered(counts)
    row = np.repeat(np.arange(len(rows)), counts)
    classes = self.slot_class[slots]
    sizes = self.class_begin[classes + 1] - self.class_begin[classes]
    keys = combine(seed, epochs[row], classes, 0xBAC6)
    dealt = permute(self.slot_number[slots], sizes, keys)
    return self.examples[self.class_begin[classes] + dealt], row


def plan_packing(lengths: np.ndarray, room: np.ndarray) -> PackingPlan:
  """Packs examples of `lengths` [examples, sides] into rows of capacity `room` [sides].

  Best fit, all examples of equal lengths at a time. Longest first is best where few examples share a
  row. Where many do, it leaves the short ones for the end, where rows may be full on the other side;
  then all lengths are placed in turns.
  """
  if np.any(lengths > room) or np.any(lengths < 0):
    raise ValueError("an example is longer than a row")
  classes, class_of = np.unique(lengths, axis=0, return_inverse=True)
  class_of = class_of.reshape(-1)
  sizes = np.bincount(class_of, minlength=len(classes))
  longest_first = np.arange(len(classes))[::-1]  # np.unique sorts by the first side, then the next
  filling = _filled(classes, room, longest_first, sizes[longest_first])
  if filling.rows > _RETRY_ABOVE * (lengths.sum(axis=0) / room).max():
    filling = min(filling, _filled(classes, room, *_in_turns(sizes)), key=lambda f: f.rows)
  row, slot_class = filling.slots()
  order = np.argsort(row, kind="stable")
  row, slot_class = row[order], slot_class[order]
  slot_number = np.empty(len(row), np.int64)
  slot_number[np.argsort(slot_class, kind="stable")] = numbered(sizes)
  first_slot = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=filling.rows))])
  class_begin = np.concatenate([[0], np.cumsum(sizes)])
  return PackingPlan(first_slot, slot_class, slot_number, class_begin, np.argsort(class_of, kind="stable"))


_RETRY_ABOVE = 1.02  # rows, relative to the lower bound
_TURNS = 16


def _in_turns(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns classes and counts: about 1/16 of each class per turn, in a fixed random order."""
  order = np.random.default_rng(0)
  classes, counts = [], []
  for turn in range(_TURNS):
    share = sizes * (turn + 1) // _TURNS - sizes * turn // _TURNS
    some = order.permutation(np.flatnonzero(share))
    classes.append(some)
    counts.append(share[some])
  return np.concatenate(classes), np.concatenate(counts)


def _filled(classes: np.ndarray, room: np.ndarray, order: np.ndarray, counts: np.ndarray) -> _Filling:
  filling = _Filling(room)
  for number, count in zip(order.tolist(), counts.tolist(), strict=True):
    filling.place(number, classes[number], count)
  return filling


class _Filling:
  """Rows by the room left in them."""

  def __init__(self, room: np.ndarray):
    self.room = room
    self.rows = 0
    self._left: dict[tuple[int, ...], list[np.ndarray]] = {}  # row numbers by room left on each side
    self._waits = np.zeros(room + 1, bool)  # whether rows have that room left
    self._placed: list[tuple[np.ndarray, int]] = []

  def place(self, class_number: int, lengths: np.ndarray, count: int) -> None:
    while count:
      cell = self._tightest(lengths)
      if cell is None:
        each = max(int((self.room // np.maximum(lengths, 1)).min()), 1) if lengths.any() else count
        begun = np.arange(self.rows, self.rows + -(-count // each))
        self.rows += len(begun)
        self._put(tuple(self.room.tolist()), begun)
        continue
      taken = self._take(cell, count)
      self._placed.append((taken, class_number))
      self._put(tuple((np.array(cell) - lengths).tolist()), taken)
      count -= len(taken)

  def _tightest(self, lengths: np.ndarray) -> tuple[int, ...] | None:
    fits = self._waits[tuple(slice(int(n), None) for n in lengths)]
    flat = fits.reshape(-1)
    first = flat.argmax()
    if not flat[first]:
      return None
    return tuple(int(i + n) for i, n in zip(np.unravel_index(first, fits.shape), lengths, strict=True))

  def _take(self, cell: tuple[int, ...], count: int) -> np.ndarray:
    waiting = self._left[cell]
    rows = waiting.pop()
    if len(rows) > count:
      waiting.append(rows[count:])
      return rows[:count]
    self._waits[cell] = bool(waiting)
    return rows

  def _put(self, cell: tuple[int, ...], rows: np.ndarray) -> None:
    self._left.setdefault(cell, []).append(rows)
    self._waits[cell] = True

  def slots(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row and the class of every slot."""
    rows = [rows for rows, _ in self._placed]
    return np.concatenate(rows), np.repeat([number for _, number in self._placed], [len(r) for r in rows])
