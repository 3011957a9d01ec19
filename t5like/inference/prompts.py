"""Texts in tokens as the batch that a model reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from t5like.inference.batching import Shape


def prompt_batch(layout: str, texts: Sequence[Sequence[int]], shape: Shape) -> dict[str, np.ndarray]:
  """One text a row, [rows, length]. Its length, not its ids, tells it from padding: any id may be part of a text.

  Rows that only fill up the batch have one token: no softmax is over nothing.
  """
  tokens = np.zeros((shape.rows, shape.length), np.int32)
  lengths = np.ones(shape.rows, np.int32)
  for row, text in enumerate(texts):
    tokens[row, : len(text)], lengths[row] = text, max(len(text), 1)
  if layout in ("encoder", "encoder_decoder"):
    return {"encoder_input_tokens": tokens, "encoder_lengths": lengths}
  real = (np.arange(shape.length)[None, :] < lengths[:, None]).astype(np.int32)
  batch = {"decoder_input_tokens": tokens, "decoder_segment_ids": real}
  return batch | ({"decoder_causal_attention": real} if layout == "prefix_lm" else {})
