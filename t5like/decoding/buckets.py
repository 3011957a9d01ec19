"""Few lengths instead of many, so that few functions are compiled."""

from __future__ import annotations


def bucket(length: int, smallest: int = 16, at_most: int | None = None) -> int:
  """The next of 16, 24, 32, 48, 64, 96, ...: at most half as much again as was asked for.

  `at_most` is the largest there is, and one of them itself.
  """
  power = 1 << (max(length, 1) - 1).bit_length()
  between = power * 3 // 4
  size = max(between if power >= 4 and between >= length else power, smallest)
  return size if at_most is None else max(min(size, at_most), length)
