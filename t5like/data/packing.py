"""Which examples share a row: planned once from their lengths, filled anew every epoch.

The plan is made of lengths, not of examples: a row of the plan says "one of the examples with 37
inputs and 2 targets, one with 12 and 1, ...". Each epoch deals the examples of every length out
afresh. So all epochs have the same number of rows, and any row of any epoch is found without
planning the ones before it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from t5like.objectives.ragged import numbered
from t5like.objectives.randomness import combine, permute


@dataclasses.dataclass(frozen=True)
class PackingPlan:
  """Rows of slots; a slot takes an example of one class, a class is all examples of equal lengths."""

  first_slot: np.ndarray  # [rows + 1]
  slot_class: np.ndarray  # [slots]
  slot_number: np.ndarray  # [slots], which of its class's slots it is
  class_begin: np.ndarray  # [classes + 1], into `examples`
  examples: np.ndarray  # [slots], example numbers sorted by class

  @property
  def rows(self) -> int:
    return len(self.first_slot) - 1

  def fill(self, rows: np.ndarray, epochs: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of some rows of some epochs, and for each the index into `rows` it belongs to."""
    counts = self.first_slot[rows + 1] - self.first_slot[rows]
    slots = np.repeat(self.first_slot[rows], counts) + numbered(counts)
    row = np.repeat(np.arange(len(rows)), counts)
    classes = self.slot_class[slots]
    sizes = self.class_begin[classes + 1] - self.class_begin[classes]
    keys = combine(seed, epochs[row], classes, 0xBAC6)
    dealt = permute(self.slot_number[slots], sizes, keys)
    return self.examples[self.class_begin[classes] + dealt], row


def plan_packing(lengths: np.ndarray, room: np.ndarray) -> PackingPlan:
  """Packs examples of `lengths` [examples, sides] into rows with `room` [sides] on each side.

  All examples of equal lengths are placed at a time, each into the row that it fills best. Longest
  first is best where few share a row. Where many do, it leaves short examples for the end, which
  may run out of room on the other side; then all lengths are placed in turns.
  """
  if np.any(lengths > room) or np.any(lengths < 0):
    raise ValueError("an example is longer than a row")
  classes, class_of = np.unique(lengths, axis=0, return_inverse=True)
  class_of = class_of.reshape(-1)
  sizes = np.bincount(class_of, minlength=len(classes))
  longest_first = np.arange(len(classes))[::-1]  # np.unique sorts by the first side, then the next
  filling = _filled(classes, room, longest_first, sizes[longest_first])
  if filling.rows > _WORTH_ANOTHER_TRY * (lengths.sum(axis=0) / room).max():
    filling = min(filling, _filled(classes, room, *_in_turns(sizes)), key=lambda f: f.rows)
  row, slot_class = filling.slots()
  order = np.argsort(row, kind="stable")
  row, slot_class = row[order], slot_class[order]
  slot_number = np.empty(len(row), np.int64)
  slot_number[np.argsort(slot_class, kind="stable")] = numbered(sizes)
  first_slot = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=filling.rows))])
  class_begin = np.concatenate([[0], np.cumsum(sizes)])
  return PackingPlan(first_slot, slot_class, slot_number, class_begin, np.argsort(class_of, kind="stable"))


_WORTH_ANOTHER_TRY = 1.02  # rows, against the fewest that could do
_TURNS = 16


def _in_turns(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Classes and counts: about a 16th of each class a turn, in an order drawn once and for all."""
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
  """Rows begun, by the room they have left."""

  def __init__(self, room: np.ndarray):
    self.room = room
    self.rows = 0
    self._left: dict[tuple[int, ...], list[np.ndarray]] = {}  # room left on each side: row numbers
    self._counts = np.zeros(room + 1, np.int64)  # rows with that room left
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
    fits = self._counts[tuple(slice(int(n), None) for n in lengths)] > 0
    first = fits.reshape(-1).argmax()
    if not fits.reshape(-1)[first]:
      return None
    return tuple(int(i + n) for i, n in zip(np.unravel_index(first, fits.shape), lengths, strict=True))

  def _take(self, cell: tuple[int, ...], count: int) -> np.ndarray:
    waiting = self._left[cell]
    rows = waiting.pop()
    if len(rows) > count:
      waiting.append(rows[count:])
      rows = rows[:count]
    self._counts[cell] -= len(rows)
    return rows

  def _put(self, cell: tuple[int, ...], rows: np.ndarray) -> None:
    self._left.setdefault(cell, []).append(rows)
    self._counts[cell] += len(rows)

  def slots(self) -> tuple[np.ndarray, np.ndarray]:
    """The row and the class of every slot."""
    rows = [rows for rows, _ in self._placed]
    return np.concatenate(rows), np.repeat([number for _, number in self._placed], [len(r) for r in rows])
