"""One or two texts as an encoder reads them: [CLS] first [SEP] second [SEP]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from t5like.objectives.ragged import Ragged, within


class Segments(NamedTuple):
  tokens: np.ndarray  # [rows, length] int32, padded with 0
  token_types: np.ndarray  # [rows, length] int32: 1 on the second text and its [SEP]
  lengths: np.ndarray  # [rows] int64


def join_segments(first: Ragged, second: Ragged | None, length: int, cls: int, sep: int) -> Segments:
  """Rows of `length`; what does not fit is cut from the end of the longer text, then of both.

  As Hugging Face's `truncation="longest_first"`: where both are cut and an odd token is left, it stays
  with the text that was longer, or with the second. (Google's BERT leaves it to the first.)
  """
  if second is None:
    second = Ragged(np.zeros((len(first.tokens), 0), np.int32), np.zeros(len(first.tokens), np.int64))
    room, closing = length - 2, 0
  else:
    room, closing = length - 3, 1
  if room < 0:
    raise ValueError(f"a row of {length} tokens has no room for [CLS] and [SEP]")
  kept_first, kept_second = _longest_first(first.lengths, second.lengths, room)
  lengths = kept_first + kept_second + 2 + closing
  tokens = np.zeros((len(lengths), length), np.int32)
  places = np.arange(length)[None, :]
  begin_second = kept_first[:, None] + 2
  width = min(first.tokens.shape[1], room)
  tokens[:, 1 : 1 + width] = first.tokens[:, :width]
  if np.any(kept_first < width):
    tokens[places > kept_first[:, None]] = 0
  if second.tokens.shape[1]:
    inside = (places >= begin_second) & (places < begin_second + kept_second[:, None])
    tokens[inside] = second.tokens[within(kept_second, second.tokens.shape[1])]
  tokens[:, 0] = cls
  rows = np.arange(len(tokens))
  tokens[rows, kept_first + 1] = sep
  if closing:
    tokens[rows, lengths - 1] = sep
  token_types = (places >= begin_second) & (places < lengths[:, None])
  return Segments(tokens, token_types.astype(np.int32), lengths)


def _longest_first(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
  """The lengths that are left of both."""
  shorter = np.minimum(np.minimum(first, second), room // 2)  # stays whole, or both are cut to half
  longer = np.minimum(np.maximum(first, second), room - shorter)
  first_is_longer = first > second
  return np.where(first_is_longer, longer, shorter), np.where(first_is_longer, shorter, longer)
