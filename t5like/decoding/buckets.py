"""Rounds lengths up to a few buckets, so that few functions are compiled."""

from __future__ import annotations


def bucket(length: int, smallest: int = 16, at_most: int | None = None) -> int:
  """Rounds `length` up to the next of 16, 24, 32, 48, 64, 96, ..., i.e. by at most half.

  `at_most` is the largest bucket.
  """
  power = 1 << (max(length, 1) - 1).bit_length()
  between = power * 3 // 4
  size = max(between if power >= 4 and between >= length else power, smallest)
  return size if at_most is None else max(min(size, at_most), length)
