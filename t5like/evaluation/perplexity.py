"""Loss, perplexity and bits per byte of text; the latter compares models with different vocabularies.

Bits per byte are the nats of all predicted tokens divided by the bytes of the original text times ln 2. For a causal
language model this measures the likelihood of the text. A denoiser predicts only the masked part given the rest: its
numbers compare with those of other denoisers, not of language models.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from t5like import decoding, parallel
from t5like.data.layouts import Batch, zero_loss_on_filler_rows
from t5like.data.rows import to_batch
from t5like.errors import UserError
from t5like.evaluation.loss_sums import sum_batches
from t5like.inference.generation import shard_batch
from t5like.objectives import Draws, Lengths, Objective, Rows, SpecialTokens
from t5like.training.losses import LossSettings
from t5like.training.step import eval_step

_SEED = 0x10551  # the same corruption in every evaluation
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class TextLoss:
  """Sums over a text, from which scores are computed."""

  nats: float
  tokens: int  # predicted tokens
  correct: float | None  # correctly predicted tokens; None: unknown
  bytes: int  # of the original text of these tokens

  @property
  def loss(self) -> float:
    return self.nats / self.tokens

  def scores(self) -> dict[str, float]:
    found = {
      "loss": self.loss,
      "perplexity": math.exp(min(self.loss, 700.0)),  # e^710 overflows a float64
      "bits_per_byte": self.nats / (max(self.bytes, 1) * math.log(2)),
    }
    if self.correct is not None:
      found["accuracy"] = 100 * self.correct / self.tokens
    return found | {"target_tokens": self.tokens, "bytes": self.bytes}


@dataclasses.dataclass(frozen=True)
class Window:
  """A window of a text; only its last `counted` predictions count."""

  text: int
  begin: int  # in the text with its start token
  length: int  # number of predictions
  counted: int


def sliding_windows(lengths: Sequence[int], window: int, stride: int) -> list[Window]:
  """Returns windows of at most `window` predictions, `stride` apart, in which every token counts exactly once.

  A text of n tokens has n predictions: its first token follows a start token.
  """
  if not 1 <= stride <= window:
    raise UserError(f"invalid --stride={stride}", expected=f"1 to --window={window}: every token counts once")
  windows = []
  for text, length in enumerate(lengths):
    done, begin = 0, 0
    while done < length:
      end = min(begin + window, length)
      windows.append(Window(text, begin, end - begin, end - done))
      done, begin = end, begin + stride
  return windows


class BatchLosses:
  """Computes the loss of training batches; compiled once per shape."""

  def __init__(self, model: nn.Module, mesh: Mesh, batch_size: int = 16):
    self._mesh = mesh
    batch_shards = parallel.row_shards(mesh.shape)
    self.batch_size = -(-batch_size // batch_shards) * batch_shards

    def step(params: Any, batch: Batch) -> dict[str, jax.Array]:
      return eval_step(model, LossSettings(), params, batch)

    self._step = jax.jit(step, out_shardings=parallel.replicated(mesh))

  def __call__(self, params: Any, batches: Iterable[Batch], total: int, progress: Progress) -> tuple[float, int, float]:
    """Returns nats, predicted tokens and correct predictions; `progress` receives rows done and `total`."""
    batch_sums = (self._sums(params, batch) for batch in batches)
    totals = sum_batches(batch_sums, lambda done: progress(min(done * self.batch_size, total), total))
    return totals["loss"], round(totals["target_tokens"]), totals["accuracy"]

  def _sums(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
    with parallel.sharding_context(self._mesh):
      return self._step(params, shard_batch(batch, self._mesh))


def causal_loss(
  losses: BatchLosses,
  params: Any,
  texts: Sequence[Sequence[int]],
  bytes_: int,
  start: int,
  window: int,
  stride: int,
  progress: Progress = lambda done, total: None,
) -> TextLoss:
  """Returns the loss of a decoder over texts: each token given those before it in its window."""
  rows = [np.concatenate([[start], text]).astype(np.int32) for text in texts]
  windows = sorted(sliding_windows([len(text) for text in texts], window, stride), key=lambda w: w.length)

  def batches() -> Iterator[Batch]:
    for i in range(0, len(windows), losses.batch_size):
      yield _causal_batch(rows, windows[i : i + losses.batch_size], losses.batch_size, window)

  nats, tokens, correct = losses(params, batches(), len(windows), progress)
  assert tokens == sum(len(text) for text in texts), "every token counts exactly once"
  return TextLoss(nats, tokens, correct, bytes_)


def _causal_batch(rows: Sequence[np.ndarray], windows: Sequence[Window], size: int, at_most: int) -> Batch:
  length = decoding.bucket(max(w.length for w in windows), at_most=at_most)
  tokens = np.zeros((2, size, length), np.int32)
  weights = np.zeros((size, length), np.float32)
  for row, w in enumerate(windows):
    text = rows[w.text][w.begin : w.begin + w.length + 1]
    tokens[0, row, : w.length], tokens[1, row, : w.length] = text[:-1], text[1:]
    weights[row, w.length - w.counted : w.length] = 1.0
  return {"decoder_input_tokens": tokens[0], "decoder_target_tokens": tokens[1], "decoder_loss_weights": weights}


def denoising_loss(
  losses: BatchLosses,
  params: Any,
  texts: Sequence[Sequence[int]],
  bytes_: int,
  objective: Objective,
  lengths: Lengths,
  special: SpecialTokens,
  progress: Progress = lambda done, total: None,
) -> TextLoss:
  """Returns the loss of a denoiser over texts in rows of at most `lengths.raw` tokens, each token in one row.

  Rows hold one text, or all texts concatenated, as the objective does in training. Bytes are prorated to the masked
  tokens.
  """
  rows = _rows(texts, objective, lengths.raw, special.eos)
  hidden = 0

  def batches() -> Iterator[Batch]:
    nonlocal hidden
    for first in range(0, len(rows), losses.batch_size):
      batch = _denoising_batch(rows, first, losses.batch_size, objective, lengths, special)
      side = "encoder" if "encoder_target_tokens" in batch else "decoder"
      targets, counted = batch[f"{side}_target_tokens"], batch[f"{side}_loss_weights"] > 0
      hidden += int(np.count_nonzero(counted & ~special.reserved.take(targets, mode="clip")))
      yield batch

  nats, tokens, correct = losses(params, batches(), len(rows), progress)
  if not tokens:
    raise UserError(f"{objective.name} masked no tokens: the text is too short", tokens=sum(map(len, rows)))
  words = sum(len(text) for text in texts)
  return TextLoss(nats, tokens, correct, round(bytes_ * hidden / words))


def _rows(texts: Sequence[Sequence[int]], objective: Objective, raw: int, eos: int) -> list[np.ndarray]:
  closed = [np.asarray([*text, *([eos] if objective.separated else [])], np.int32) for text in texts]
  sequences = [np.concatenate(closed)] if objective.unit == "stream" else closed
  return [text[first : first + raw] for text in sequences for first in range(0, len(text), raw)]


def _denoising_batch(
  rows: Sequence[np.ndarray], first: int, size: int, objective: Objective, lengths: Lengths, special: SpecialTokens
) -> Batch:
  """Returns a corrupted batch from row `first` on, filled up with copies of zero weight."""
  numbers = np.arange(first, first + size)
  real = numbers < len(rows)
  numbers = np.where(real, numbers, first)
  tokens, counts = np.zeros((size, lengths.raw), np.int32), np.zeros(size, np.int64)
  for row, number in enumerate(numbers):
    counts[row] = len(rows[number])
    tokens[row, : counts[row]] = rows[number]
  corrupted = objective(Rows(tokens, counts, None), Draws.of(_SEED, 0, numbers), special)
  return zero_loss_on_filler_rows(to_batch(corrupted, objective, lengths, special, _layout(objective)), real)


def _layout(objective: Objective) -> str:
  return "encoder" if objective.makes == "masked" else "encoder_decoder"
