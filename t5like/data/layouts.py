"""From token rows to the batch a model takes (names as in seqio and T5X)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from t5like.objectives import Lengths, Masked, Ragged
from t5like.objectives.ragged import numbered, within

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Examples:
  """Inputs and targets, closed by end-of-sequence where they are to be, and the row that each stands in."""

  inputs: Ragged
  targets: Ragged
  rows: int
  row: np.ndarray | None = None  # [examples] in ascending order; None: one a row, not packed

  @classmethod
  def from_padded(cls, inputs: np.ndarray, targets: np.ndarray) -> Examples:
    """One a row from [rows, length] arrays padded with 0, which then is no token."""
    inputs, targets = (Ragged(rows, np.count_nonzero(rows, axis=1)) for rows in (inputs, targets))
    return cls(inputs, targets, len(inputs.lengths))


def closed(texts: Ragged, length: int, eos: int) -> Ragged:
  """Trimmed so that end-of-sequence still fits into `length`, and closed by it."""
  kept = np.minimum(texts.lengths, length - 1)
  width = min(texts.tokens.shape[1], length - 1)
  out = np.zeros((len(kept), width + 1), np.int32)
  out[:, :width] = texts.tokens[:, :width]
  out[np.arange(len(out)), kept] = eos
  return Ragged(out, kept + 1)


def counting(batch: Batch, real: np.ndarray) -> Batch:
  """The batch in which only the rows that are `real` [rows] weigh anything: the others fill it up."""
  return {
    name: np.where(real[:, None], array, np.zeros((), array.dtype)) if name.endswith("_loss_weights") else array
    for name, array in batch.items()
  }


def padded(texts: Ragged, length: int) -> tuple[np.ndarray, np.ndarray]:
  """One text a row, cut or padded with 0 to [rows, length]; and True where there is text."""
  out = np.zeros((len(texts.lengths), length), np.int32)
  width = min(texts.tokens.shape[1], length)
  out[:, :width] = texts.tokens[:, :width]
  return out, within(np.minimum(texts.lengths, length), length)


@dataclasses.dataclass(frozen=True)
class Placed:
  """Texts one behind the other in rows [rows, length]."""

  tokens: np.ndarray
  segment_ids: np.ndarray  # 1, 2, ... for the texts of a row, 0 on padding
  positions: np.ndarray  # from 0 in every text


def placed(texts: Ragged, row: np.ndarray, rows: int, length: int) -> Placed:
  """Packs texts into the rows they belong to; they must fit."""
  counts = np.bincount(row, minlength=rows)
  before = np.cumsum(texts.lengths) - texts.lengths
  first = np.minimum(np.cumsum(counts) - counts, max(len(row) - 1, 0))  # the first text of each row
  begin = before - before[first][row] if len(row) else before
  if len(row) and int((begin + texts.lengths).max()) > length:
    raise ValueError("packed texts are longer than their row")
  places = np.repeat(row * length + begin, texts.lengths) + numbered(texts.lengths)
  out = np.zeros((3, rows * length), np.int32)
  out[0, places] = texts.tokens[texts.valid]
  out[1, places] = np.repeat(numbered(counts) + 1, texts.lengths)
  out[2, places] = numbered(texts.lengths)
  return Placed(*out.reshape(3, rows, length))


def encoder_decoder(examples: Examples, lengths: Lengths, start: int = 0) -> Batch:
  """Inputs to the encoder, targets to the decoder."""
  if examples.row is None:
    inputs, _ = padded(examples.inputs, lengths.inputs)
    targets, real = padded(examples.targets, lengths.targets)
    # Under a padded target the shifted row still shows end-of-sequence; weight 0 takes it out of the loss.
    return {
      "encoder_input_tokens": inputs,
      "decoder_input_tokens": _shifted(targets, start),
      "decoder_target_tokens": targets,
      "decoder_loss_weights": real.astype(np.float32),
    }
  inputs = placed(examples.inputs, examples.row, examples.rows, lengths.inputs)
  targets = placed(examples.targets, examples.row, examples.rows, lengths.targets)
  return {
    "encoder_input_tokens": inputs.tokens,
    "encoder_segment_ids": inputs.segment_ids,
    "encoder_positions": inputs.positions,
    "decoder_input_tokens": _shifted(targets.tokens, start, targets),
    "decoder_target_tokens": targets.tokens,
    "decoder_loss_weights": (targets.segment_ids > 0).astype(np.float32),
    "decoder_segment_ids": targets.segment_ids,
    "decoder_positions": targets.positions,
  }


def decoder(examples: Examples, lengths: Lengths, start: int = 0) -> Batch:
  """Inputs and targets end to end in rows of [inputs + targets]; only targets count in the loss."""
  return _decoder(examples, lengths, start)[0]


def prefix_lm(examples: Examples, lengths: Lengths, start: int = 0) -> Batch:
  """As `decoder`, with the positions marked that see one another in both directions.

  These are the inputs and one position more: the decoder is fed rows shifted by one, so the last
  input stands where the first target is predicted.
  """
  batch, prefix = _decoder(examples, lengths, start)
  return batch | {"decoder_causal_attention": prefix.astype(np.int32)}


def _decoder(examples: Examples, lengths: Lengths, start: int) -> tuple[Batch, np.ndarray]:
  """The batch, and True on the inputs and one position more."""
  length = lengths.inputs + lengths.targets
  inputs, targets = (_cut(t, n) for t, n in ((examples.inputs, lengths.inputs), (examples.targets, lengths.targets)))
  joined = _joined(inputs, targets)
  if examples.row is None:
    tokens, real = padded(joined, length)
    place = np.broadcast_to(np.arange(length, dtype=np.int32)[None, :], tokens.shape)
    prefix_length = inputs.lengths[:, None]
    packing: Batch = {}
    shifted = _shifted(tokens, start)
  else:
    packed = placed(joined, examples.row, examples.rows, length)
    tokens, real, place = packed.tokens, packed.segment_ids > 0, packed.positions
    prefix_length = _of_segments(inputs.lengths, examples.row, packed)
    packing = {"decoder_segment_ids": packed.segment_ids, "decoder_positions": packed.positions}
    shifted = _shifted(tokens, start, packed)
  batch = {
    "decoder_input_tokens": shifted,
    "decoder_target_tokens": tokens,
    "decoder_loss_weights": (real & (place >= prefix_length)).astype(np.float32),
  }
  return batch | packing, (place <= prefix_length) & (real | (place == prefix_length))


def causal(texts: Ragged, lengths: Lengths) -> Batch:
  """Each token predicts the next, the first of a row is given: rows of one token more than are predicted."""
  tokens, real = padded(texts, lengths.targets + 1)
  return {
    "decoder_input_tokens": tokens[:, :-1],
    "decoder_target_tokens": tokens[:, 1:],
    "decoder_loss_weights": real[:, 1:].astype(np.float32),
  }


def encoder(masked: Masked, length: int) -> Batch:
  """What an encoder reads and fills in; rows [rows, length]."""
  inputs, real = padded(masked.inputs, length)

  def wide(array: np.ndarray, dtype: type) -> np.ndarray:
    out = np.zeros((len(array), length), dtype)
    width = min(array.shape[1], length)
    out[:, :width] = array[:, :width]
    return out

  batch = {
    "encoder_input_tokens": inputs,
    "encoder_target_tokens": wide(masked.targets, np.int32),
    "encoder_loss_weights": wide(masked.weights, np.float32),
    "encoder_segment_ids": real.astype(np.int32),
    "encoder_positions": np.where(real, np.arange(length, dtype=np.int32)[None, :], np.int32(0)),
    "encoder_token_types": wide(masked.token_types, np.int32),
  }
  return batch if masked.labels is None else batch | {"labels": masked.labels.astype(np.int32)}


def blank(layout: str, lengths: Lengths, rows: int, packed: bool, shifted: bool) -> Batch:
  """A batch without text, of the shapes that batches have."""
  nothing = Ragged(np.zeros((rows, 0), np.int32), np.zeros(rows, np.int64))
  if layout == "encoder":
    empty = np.zeros((rows, 0), np.int32)
    return encoder(Masked(nothing, empty, empty, empty, np.zeros(rows, np.int32)), lengths.inputs)
  if shifted:
    return causal(nothing, lengths)
  return LAYOUTS[layout](Examples(nothing, nothing, rows, np.arange(rows) if packed else None), lengths, 0)


# By the name that a model's `batch_layout` gives: inputs and targets to a training batch.
LAYOUTS: dict[str, Callable[[Examples, Lengths, int], Batch]] = {
  "encoder_decoder": encoder_decoder,
  "decoder": decoder,
  "prefix_lm": prefix_lm,
}


def _shifted(tokens: np.ndarray, start: int, packed: Placed | None = None) -> np.ndarray:
  """Moved right by one; every text begins with the start token."""
  shifted = np.empty_like(tokens)
  shifted[:, 0] = start
  shifted[:, 1:] = tokens[:, :-1]
  if packed is not None:
    shifted[packed.positions == 0] = start
    shifted[packed.segment_ids == 0] = 0
  return shifted


def _cut(texts: Ragged, length: int) -> Ragged:
  return Ragged(texts.tokens[:, :length], np.minimum(texts.lengths, length))


def _joined(first: Ragged, second: Ragged) -> Ragged:
  """Each second text behind its first."""
  both = np.concatenate([first.tokens, second.tokens], axis=1)
  return Ragged.gather(both, np.concatenate([first.valid, second.valid], axis=1))


def _of_segments(values: np.ndarray, row: np.ndarray, packed: Placed) -> np.ndarray:
  """[rows, length]: the value of the text that stands there; -1 on padding."""
  counts = np.bincount(row, minlength=len(packed.tokens))
  table = np.full((len(counts), int(counts.max(initial=0)) + 1), -1, np.int64)
  table[row, numbered(counts) + 1] = values
  return np.take_along_axis(table, packed.segment_ids.astype(np.int64), axis=1)
