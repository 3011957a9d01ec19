"""Batches as a pure function of (seed, step).

A source answers `source[step]` with the batch of that step, whatever was asked before: nothing is
saved to resume, and any number of hosts or threads sees the same data. Grain reads ahead in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import grain
import numpy as np

from t5like.data.cache import TokenCache
from t5like.data.layouts import LAYOUTS, Batch, ragged, with_eos
from t5like.errors import UserError
from t5like.objectives import Draws, Lengths, Objective, Ragged, Rows, SpecialTokens
from t5like.objectives.randomness import combine, permute


@dataclasses.dataclass(frozen=True)
class HostShare:
  """Which rows of every global batch this host makes."""

  host: int = 0
  hosts: int = 1

  def rows(self, batch_size: int) -> np.ndarray:
    share = batch_size // self.hosts
    return np.arange(self.host * share, (self.host + 1) * share)


def shuffled_rows(step: int, batch_size: int, share: HostShare, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Epochs and row numbers of this host's part of a batch; an epoch visits every row exactly once."""
  position = np.int64(step) * batch_size + share.rows(batch_size)
  epochs = position // rows
  shuffled = permute(position % rows, rows, combine(seed, epochs, 0x5487FF1E))
  return epochs, shuffled


@dataclasses.dataclass(frozen=True)
class CorpusBatches:
  """A corpus read end to end in rows of `lengths.raw` tokens, corrupted afresh every epoch."""

  cache: TokenCache
  objective: Objective
  lengths: Lengths
  special: SpecialTokens
  batch_size: int
  seed: int
  share: HostShare = HostShare()
  layout: str = "encoder_decoder"

  def __post_init__(self):
    if self.rows_per_epoch < 1:
      raise UserError(
        f"the corpus has {self.cache.tokens} tokens, fewer than one row of {self.lengths.raw}",
        cache=self.cache.folder,
        try_="a shorter LENGTHS['inputs'], or more text",
      )

  @property
  def rows_per_epoch(self) -> int:
    return self.cache.tokens // self.lengths.raw

  def __getitem__(self, step: int) -> Batch:
    epochs, rows = shuffled_rows(step, self.batch_size, self.share, self.rows_per_epoch, self.seed)
    tokens = np.stack([self.cache.stream(int(row) * self.lengths.raw, self.lengths.raw) for row in rows])
    pairs = self.objective(Rows.full(tokens), Draws.of(self.seed, epochs, rows), self.special)
    return LAYOUTS[self.layout](*_closed(pairs.inputs, pairs.targets, self.lengths, self.special))


@dataclasses.dataclass(frozen=True)
class ExampleBatches:
  """Labelled examples, one a row, shuffled every epoch."""

  cache: TokenCache
  lengths: Lengths
  special: SpecialTokens
  batch_size: int
  seed: int
  share: HostShare = HostShare()
  layout: str = "encoder_decoder"

  @property
  def rows_per_epoch(self) -> int:
    return self.cache.examples

  def __getitem__(self, step: int) -> Batch:
    _, rows = shuffled_rows(step, self.batch_size, self.share, self.rows_per_epoch, self.seed)
    return LAYOUTS[self.layout](*_inputs_and_targets(self.cache, rows, self.lengths, self.special))


def _inputs_and_targets(
  cache: TokenCache, rows: np.ndarray, lengths: Lengths, special: SpecialTokens
) -> tuple[np.ndarray, np.ndarray]:
  examples = [cache.example(int(row)) for row in rows]
  inputs, targets = (ragged([example[name] for example in examples]) for name in ("inputs", "targets"))
  return _closed(inputs, targets, lengths, special)


def _closed(inputs: Ragged, targets: Ragged, lengths: Lengths, special: SpecialTokens) -> tuple[np.ndarray, np.ndarray]:
  """Both cut or padded to their length, with end-of-sequence."""
  return with_eos(inputs, lengths.inputs, special.eos), with_eos(targets, lengths.targets, special.eos)


def evaluation_batches(
  cache: TokenCache, lengths: Lengths, special: SpecialTokens, batch_size: int, limit: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Every example once, in order: its numbers [rows], inputs and targets [rows, length].

  The last batch is filled up with copies of its first row, whose number is -1 and whose targets
  are all padding, so that they weigh nothing in a loss.
  """
  count = min(cache.examples, limit or cache.examples)
  for start in range(0, count, batch_size):
    rows = np.arange(start, start + batch_size)
    real = rows < count
    inputs, targets = _inputs_and_targets(cache, np.where(real, rows, start), lengths, special)
    yield np.where(real, rows, -1), inputs, np.where(real[:, None], targets, 0)


def read_ahead(
  source: CorpusBatches | ExampleBatches, first_step: int, last_step: int, threads: int = 1
) -> Iterator[Batch]:
  """The batches of steps first_step .. last_step - 1 in order, made in background threads."""
  steps = grain.MapDataset.range(first_step, last_step).map(source.__getitem__)
  return iter(steps.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(2, 2 * threads))))
