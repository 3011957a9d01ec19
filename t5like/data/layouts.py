"""Converts token rows to model batches (feature names as in seqio and T5X)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t5like.objectives import Lengths, Masked, Ragged
from t5like.objectives.ragged import numbered, within

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Examples:
  """Inputs and targets, with any end-of-sequence already appended, and the row of each example."""

  inputs: Ragged
  targets: Ragged
  rows: int
  row: np.ndarray | None = None  # [examples] in ascending order; None: one example per row, not packed
  padding: int = 0  # the id after an encoder's inputs in rows that are not packed


def enclosed(texts: Ragged, length: int | None, before: tuple[int, ...], after: tuple[int, ...]) -> Ragged:
  """Returns texts between the tokens `before` and `after`, trimmed so that all have `length`; None: any length."""
  if not before and not after:
    return texts
  first, room = len(before), None if length is None else max(length - len(before) - len(after), 0)
  kept = texts.lengths if room is None else np.minimum(texts.lengths, room)
  width = texts.tokens.shape[1] if room is None else min(texts.tokens.shape[1], room)
  out = np.zeros((len(kept), first + width + len(after)), np.int32)
  out[:, :first] = before
  out[:, first : first + width] = texts.tokens[:, :width]
  for number, token in enumerate(after):
    out[np.arange(len(out)), first + kept + number] = token
  return Ragged(out, first + kept + len(after))


def zero_loss_on_filler_rows(batch: Batch, real: np.ndarray) -> Batch:
  """Sets the loss weights to 0 in the rows that are not `real` [rows] and only fill up the batch.

  Labels of rows have no weights: such a row is emptied.
  """
  if not any(name.endswith("_loss_weights") for name in batch):
    return {
      name: array * real.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype) for name, array in batch.items()
    }
  return {
    name: np.where(real[:, None], array, np.zeros((), array.dtype)) if name.endswith("_loss_weights") else array
    for name, array in batch.items()
  }


def padded(texts: Ragged, length: int, padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """Trims or pads texts to [rows, length], one per row; also returns a mask that is True on text."""
  out = _wide(texts.tokens, length, np.int32)
  real = within(np.minimum(texts.lengths, length), length)
  return np.where(real, out, np.int32(padding)) if padding else out, real


@dataclasses.dataclass(frozen=True)
class PackedRows:
  """Texts packed into rows [rows, length]."""

  tokens: np.ndarray
  segment_ids: np.ndarray  # 1, 2, ... for the texts of a row, 0 on padding
  positions: np.ndarray  # from 0 in every text


def pack_rows(texts: Ragged, row: np.ndarray, rows: int, length: int) -> PackedRows:
  """Packs texts into their rows; raises ValueError if they do not fit."""
  counts = np.bincount(row, minlength=rows)
  before = np.cumsum(texts.lengths) - texts.lengths
  first = np.minimum(np.cumsum(counts) - counts, len(row) - 1)  # the first text of each row
  begin = before - before[first][row] if len(row) else before
  if len(row) and int((begin + texts.lengths).max()) > length:
    raise ValueError("packed texts are longer than their row")
  indices = np.repeat(row * length + begin, texts.lengths) + numbered(texts.lengths)
  out = np.zeros((3, rows * length), np.int32)
  out[0, indices] = texts.tokens[texts.valid]
  out[1, indices] = np.repeat(numbered(counts) + 1, texts.lengths)
  out[2, indices] = numbered(texts.lengths)
  return PackedRows(*out.reshape(3, rows, length))


def encoder_decoder(examples: Examples, lengths: Lengths, start: int = 0) -> Batch:
  """Builds a batch with inputs for the encoder and targets for the decoder."""
  if examples.row is None:
    inputs, _ = padded(examples.inputs, lengths.inputs, examples.padding)
    targets, real = padded(examples.targets, lengths.targets)
    # The first padded target still has end-of-sequence as its input; weight 0 excludes it from the loss.
    return {
      "encoder_input_tokens": inputs,
      "decoder_input_tokens": _shifted(targets, start),
      "decoder_target_tokens": targets,
      "decoder_loss_weights": real.astype(np.float32),
    }
  inputs = pack_rows(examples.inputs, examples.row, examples.rows, lengths.inputs)
  targets = pack_rows(examples.targets, examples.row, examples.rows, lengths.targets)
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
  """Builds a batch with inputs and targets concatenated, [rows, inputs + targets]; the loss is on targets only."""
  return _decoder(examples, lengths, start).batch


def decoder_loss_on_inputs(examples: Examples, lengths: Lengths, start: int = 0) -> Batch:
  """Like `decoder`, with the loss on inputs and targets, as if each text were one."""
  rows = _decoder(examples, lengths, start)
  return rows.batch | {"decoder_loss_weights": rows.real.astype(np.float32)}


def prefix_lm(examples: Examples, lengths: Lengths, start: int = 0) -> Batch:
  """Like `decoder`, with a mask of the positions that attend to one another in both directions.

  These are the inputs and one more position: the decoder's input is shifted by one, so the last
  input token is at the position that predicts the first target.
  """
  rows = _decoder(examples, lengths, start)
  return rows.batch | {"decoder_causal_attention": rows.prefix.astype(np.int32)}


class _DecoderRows(NamedTuple):
  batch: Batch
  real: np.ndarray  # True on text
  prefix: np.ndarray  # True on the inputs and one more position


def _decoder(examples: Examples, lengths: Lengths, start: int) -> _DecoderRows:
  length = lengths.inputs + lengths.targets
  inputs, targets = (_cut(t, n) for t, n in ((examples.inputs, lengths.inputs), (examples.targets, lengths.targets)))
  joined = _joined(inputs, targets)
  if examples.row is None:
    tokens, real = padded(joined, length)
    position = np.broadcast_to(np.arange(length, dtype=np.int32)[None, :], tokens.shape)
    prefix_length = inputs.lengths[:, None]
    packing: Batch = {}
    shifted = _shifted(tokens, start)
  else:
    packed = pack_rows(joined, examples.row, examples.rows, length)
    tokens, real, position = packed.tokens, packed.segment_ids > 0, packed.positions
    prefix_length = _expand_to_segments(inputs.lengths, examples.row, packed)
    packing = {"decoder_segment_ids": packed.segment_ids, "decoder_positions": packed.positions}
    shifted = _shifted(tokens, start, packed)
  batch = {
    "decoder_input_tokens": shifted,
    "decoder_target_tokens": tokens,
    "decoder_loss_weights": (real & (position >= prefix_length)).astype(np.float32),
  }
  return _DecoderRows(batch | packing, real, (position <= prefix_length) & (real | (position == prefix_length)))


def causal(texts: Ragged, lengths: Lengths) -> Batch:
  """Builds a batch in which each token predicts the next; rows have one more token than is predicted."""
  tokens, real = padded(texts, lengths.targets + 1)
  return {
    "decoder_input_tokens": tokens[:, :-1],
    "decoder_target_tokens": tokens[:, 1:],
    "decoder_loss_weights": real[:, 1:].astype(np.float32),
  }


def encoder(masked: Masked, length: int) -> Batch:
  """Builds the batch [rows, length] of a masked-token encoder."""
  inputs, real = padded(masked.inputs, length)

  batch = {
    "encoder_input_tokens": inputs,
    "encoder_target_tokens": _wide(masked.targets, length, np.int32),
    "encoder_loss_weights": _wide(masked.weights, length, np.float32),
    "encoder_segment_ids": real.astype(np.int32),
    "encoder_positions": np.where(real, np.arange(length, dtype=np.int32)[None, :], np.int32(0)),
    "encoder_token_types": _wide(masked.token_types, length, np.int32),
  }
  if masked.order is not None:
    batch["encoder_order"] = _wide(masked.order, length, np.int32)
  return batch if masked.labels is None else batch | {"labels": masked.labels.astype(np.int32)}


def blank(layout: str, lengths: Lengths, rows: int, packed: bool, shifted: bool) -> Batch:
  """Builds a batch without text, in the shapes of real batches."""
  nothing = Ragged(np.zeros((rows, 0), np.int32), np.zeros(rows, np.int64))
  if layout == "encoder":
    empty = np.zeros((rows, 0), np.int32)
    return encoder(Masked(nothing, empty, empty, empty, np.zeros(rows, np.int32)), lengths.inputs)
  if shifted:
    return causal(nothing, lengths)
  return LAYOUTS[layout](Examples(nothing, nothing, rows, np.arange(rows) if packed else None), lengths, 0)


# From inputs and targets to a training batch, by a model's `batch_layout`, or by an experiment's `train_layout`.
LAYOUTS: dict[str, Callable[[Examples, Lengths, int], Batch]] = {
  "encoder_decoder": encoder_decoder,
  "decoder": decoder,
  "decoder_loss_on_inputs": decoder_loss_on_inputs,
  "prefix_lm": prefix_lm,
}


def _wide(array: np.ndarray, length: int, dtype: type) -> np.ndarray:
  """Trims rows, or fills them up with zeros."""
  out = np.zeros((len(array), length), dtype)
  width = min(array.shape[1], length)
  out[:, :width] = array[:, :width]
  return out


def _shifted(tokens: np.ndarray, start: int, packed: PackedRows | None = None) -> np.ndarray:
  """Shifts tokens right by one; every text begins with the start token."""
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
  """Appends each second text to its first."""
  both = np.concatenate([first.tokens, second.tokens], axis=1)
  return Ragged.gather(both, np.concatenate([first.valid, second.valid], axis=1))


def _expand_to_segments(values: np.ndarray, row: np.ndarray, packed: PackedRows) -> np.ndarray:
  """Returns the value of each position's text, -1 on padding: [rows, length]."""
  counts = np.bincount(row, minlength=len(packed.tokens))
  table = np.full((len(counts), int(counts.max(initial=0)) + 1), -1, np.int64)
  table[row, numbered(counts) + 1] = values
  return np.take_along_axis(table, packed.segment_ids.astype(np.int64), axis=1)
