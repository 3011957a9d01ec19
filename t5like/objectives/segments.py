"""Joins one or two texts for an encoder: [CLS] first [SEP] second [SEP]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from t5like.objectives.ragged import Ragged, within


class Segments(NamedTuple):
  tokens: np.ndarray  # [rows, length] int32, padded with 0
  token_types: np.ndarray  # [rows, length] int32: 1 on the second text and its [SEP]
  lengths: np.ndarray  # [rows] int64


def join_segments(first: Ragged, second: Ragged | None, length: int, cls: int, sep: int) -> Segments:
  """Joins texts into rows of `length`, truncating the longer text first, then both.

  Like Hugging Face's `truncation="longest_first"`: if both are truncated, an odd token goes to the text
  that was longer, or to the second. (Google's BERT gives it to the first.)
  """
  if second is None:
    second = Ragged(np.zeros((len(first.tokens), 0), np.int32), np.zeros(len(first.tokens), np.int64))
    room, second_sep = length - 2, 0
  else:
    room, second_sep = length - 3, 1
  if room < 0:
    raise ValueError(f"invalid length: {length} (too short for [CLS] and [SEP])")
  kept_first, kept_second = _longest_first(first.lengths, second.lengths, room)
  lengths = kept_first + kept_second + 2 + second_sep
  tokens = np.zeros((len(lengths), length), np.int32)
  positions = np.arange(length)[None, :]
  begin_second = kept_first[:, None] + 2
  width = min(first.tokens.shape[1], room)
  tokens[:, 1 : 1 + width] = first.tokens[:, :width]
  if np.any(kept_first < width):
    tokens[positions > kept_first[:, None]] = 0
  if second.tokens.shape[1]:
    inside = (positions >= begin_second) & (positions < begin_second + kept_second[:, None])
    tokens[inside] = second.tokens[within(kept_second, second.tokens.shape[1])]
  tokens[:, 0] = cls
  rows = np.arange(len(tokens))
  tokens[rows, kept_first + 1] = sep
  if second_sep:
    tokens[rows, lengths - 1] = sep
  token_types = (positions >= begin_second) & (positions < lengths[:, None])
  return Segments(tokens, token_types.astype(np.int32), lengths)


def _longest_first(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the lengths of both after truncation."""
  shorter = np.minimum(np.minimum(first, second), room // 2)  # not truncated, or both are truncated to half
  longer = np.minimum(np.maximum(first, second), room - shorter)
  first_is_longer = first > second
  return np.where(first_is_longer, longer, shorter), np.where(first_is_longer, shorter, longer)
