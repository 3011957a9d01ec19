"""Row sources with random access: any row of any epoch is a function of the seed and its number.

A source has `rows_per_epoch` rows and returns a batch for `rows(numbers)`; numbers run through all
epochs. Sources are stateless: there is nothing to save, and hosts, threads and restarts see the same rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from t5like.data.cache import TokenCache
from t5like.data.document_plans import RowPlan, TokenStream, plan_rows
from t5like.data.first_tokens import FirstTokens
from t5like.data.layouts import LAYOUTS, Batch, Examples, causal, enclosed, encoder
from t5like.data.mixing import mixture_rows
from t5like.data.packing import PackingPlan, plan_packing
from t5like.data.row_order import PooledOrder, shuffled
from t5like.errors import UserError
from t5like.objectives import Draws, Lengths, Masked, Objective, Pairs, Ragged, Rows, SpecialTokens
from t5like.objectives.randomness import combine

_OTHER = 0x07E2  # the random stream of rows of other documents
_TURN = 0x7C12  # that of the start of an epoch of windows


class RowSource(Protocol):
  @property
  def rows_per_epoch(self) -> int: ...

  def rows(self, numbers: np.ndarray) -> Batch: ...


@dataclasses.dataclass(frozen=True)
class CorpusRows:
  """A corpus in rows of `lengths.raw` tokens, corrupted differently every epoch."""

  cache: TokenCache | FirstTokens
  objective: Objective
  lengths: Lengths
  special: SpecialTokens
  seed: int
  layout: str = "encoder_decoder"
  # Adds segment ids (one example per row), so that the rows can be in one batch with packed ones.
  as_packed: bool = False
  # The order of a corpus that is read in place; None: all rows are shuffled.
  order: PooledOrder | None = None

  def __post_init__(self):
    if self.order and (self.objective.needs_others or self.objective.unit == "sentences"):
      how = "other documents at random" if self.objective.needs_others else "all text at the start, to find sentences"
      raise UserError(
        f"the objective {self.objective.name} reads {how}: its token cache must be on this machine",
        cache=self.cache.folder,
        try_="a larger CACHE_LOCAL_GB",
      )
    if self.rows_per_epoch < 1:
      raise UserError(
        f"the corpus is shorter than one row: {self.cache.tokens} tokens (expected at least {self.lengths.raw})",
        cache=self.cache.folder,
        try_="reduce LENGTHS['inputs'], or add text",
      )

  @cached_property
  def plan(self) -> RowPlan:
    return plan_rows(self.cache, self.objective, self.lengths.raw, self.special)

  @property
  def rows_per_epoch(self) -> int:
    return self.plan.rows

  def rows(self, numbers: np.ndarray) -> Batch:
    if self.order:
      self._read_ahead(numbers)
    epochs, rows = (self.order.shuffled if self.order else shuffled)(numbers, self.rows_per_epoch, self.seed)
    text = self.plan.read(rows)
    others = None
    if self.objective.needs_others:
      others = self.plan.read(self.plan.sample_other_rows(rows, combine(self.seed, epochs, rows, _OTHER)))
    draws = Draws.of(self.seed, epochs, rows)
    result = self.objective(Rows(text.tokens, text.lengths, others), draws, self.special)
    return to_batch(result, self.objective, self.lengths, self.special, self.layout, self.as_packed)

  def _read_ahead(self, numbers: np.ndarray) -> None:
    """Starts to read the pools of these rows, and the one after them."""
    pools = self.order.pools(numbers, self.rows_per_epoch)
    for pool in range(int(pools.min(initial=0)), int(pools.max(initial=0)) + 2):
      # Sources of other phases, with other rows, have the same cache.
      self.cache.read_ahead((self.lengths.raw, self.seed, pool), lambda pool=pool: self._tokens_of(pool))

  def _tokens_of(self, pool: int) -> tuple[np.ndarray, np.ndarray]:
    return self.plan.tokens(*self.order.spans(pool, self.rows_per_epoch, self.seed))


@dataclasses.dataclass(frozen=True)
class WindowRows:
  """A corpus, documents end to end, in `streams` equal parts that are read side by side, a window in every step.

  For models that carry their state: row b of step s is the s-th window of stream b.

  Rows are numbered as in any source: number n is row n % streams of step n // streams. Every epoch starts at another
  token of the corpus, drawn from the seed, and continues with the first token after the last. `decoder_continues` is 0
  for the first window of an epoch, 1 where a window follows that of the step before.
  """

  cache: TokenCache | FirstTokens
  lengths: Lengths
  special: SpecialTokens
  seed: int
  streams: int

  def __post_init__(self):
    if self.cache.pool:
      raise UserError(
        "a model that carries its state reads all parts of a corpus at once: its token cache must be on this machine",
        cache=self.cache.folder,
        try_="a larger CACHE_LOCAL_GB",
      )
    if self.windows < 1:
      raise UserError(
        f"the corpus of {self._text.length:,} tokens is too short for {self.streams} streams of "
        f"{self.lengths.targets} tokens",
        cache=self.cache.folder,
        try_="a smaller BATCH_SIZE or LENGTHS['inputs']",
      )

  @cached_property
  def _text(self) -> TokenStream:
    return TokenStream.of(self.cache, self.special.eos)

  @property
  def windows(self) -> int:
    """The windows of a stream; the last token of each is the first of the next."""
    return (self._text.length // self.streams - 1) // self.lengths.targets

  @property
  def rows_per_epoch(self) -> int:
    return self.windows * self.streams

  def rows(self, numbers: np.ndarray) -> Batch:
    steps, streams = np.divmod(numbers, self.streams)
    epochs, windows = np.divmod(steps, self.windows)
    length, size = self._text.length, self.lengths.targets + 1
    keys = combine(self.seed, epochs, _TURN)
    turn = (keys % np.uint64(length)).astype(np.int64)
    begin = (turn + streams * (length // self.streams) + windows * self.lengths.targets) % length
    tokens = self._text.read(begin, size)
    # The circle: what is past the end is the beginning.
    start, left = self._text.read(np.zeros(1, np.int64), size)[0], length - begin[:, None]
    column = np.arange(size)[None, :]
    tokens = np.where(column < left, tokens, start[np.maximum(column - left, 0)]).astype(np.int32)
    return causal(Ragged.full(tokens), self.lengths) | {"decoder_continues": (windows > 0).astype(np.int32)}


def to_batch(
  corrupted: Pairs | Masked,
  objective: Objective,
  lengths: Lengths,
  special: SpecialTokens,
  layout: str,
  as_packed: bool = False,
) -> Batch:
  """Arranges the output of an objective into a batch for a model of this layout."""
  if objective.makes == "masked":
    return encoder(corrupted, lengths.inputs)
  if objective.shifted:
    return causal(corrupted.targets, lengths)
  inputs, targets = corrupted.inputs, corrupted.targets
  if objective.closed:
    if lengths.inputs:
      inputs = enclosed(inputs, lengths.inputs, special.before_inputs, (special.eos, *special.after_inputs))
    targets = enclosed(targets, lengths.targets, special.before_targets, (special.eos,))
  row = np.arange(len(targets.lengths)) if as_packed else None
  examples = Examples(inputs, targets, len(targets.lengths), row, special.padding)
  return LAYOUTS[layout](examples, lengths, special.start)


@dataclasses.dataclass(frozen=True)
class ExampleRows:
  """Labeled examples, one per row or packed, shuffled every epoch."""

  cache: TokenCache
  lengths: Lengths
  special: SpecialTokens
  seed: int
  layout: str = "encoder_decoder"
  pack: bool = False

  @cached_property
  def plan(self) -> PackingPlan:
    """The packing plan, from lengths after trimming and with end-of-sequence."""
    room = np.array([self.lengths.inputs, self.lengths.targets])
    return plan_packing(np.stack([self._used("inputs"), self._used("targets")], axis=1), room)

  def _used(self, feature: str) -> np.ndarray:
    """Returns the tokens that each example takes in a row."""
    around = sum(map(len, _around(self.special)[feature]))
    return np.minimum(example_lengths(self.cache, feature) + around, getattr(self.lengths, feature))

  @property
  def rows_per_epoch(self) -> int:
    return self.plan.rows if self.pack else self.cache.examples

  @property
  def examples_per_row(self) -> float:
    return self.cache.examples / max(self.rows_per_epoch, 1)

  @property
  def efficiency(self) -> float:
    """The fraction of input tokens that are not padding; of target tokens if there are no inputs."""
    used, room = self._used("inputs"), self.lengths.inputs
    if not used.any():
      used, room = self._used("targets"), self.lengths.targets
    return float(used.sum() / max(self.rows_per_epoch * room, 1))

  def rows(self, numbers: np.ndarray) -> Batch:
    epochs, rows = shuffled(numbers, self.rows_per_epoch, self.seed)
    row = None
    if self.pack:
      rows, row = self.plan.fill(rows, epochs, self.seed)
    examples = dataclasses.replace(
      read_examples(self.cache, rows, self.lengths, self.special), rows=len(numbers), row=row
    )
    return LAYOUTS[self.layout](examples, self.lengths, self.special.start)


def read_examples(cache: TokenCache, numbers: np.ndarray, lengths: Lengths, special: SpecialTokens) -> Examples:
  """Returns inputs and targets of the given examples, trimmed and with end-of-sequence as their task defines it."""
  inputs, targets = (
    _read(cache, feature, numbers, length, special)
    for feature, length in (("inputs", lengths.inputs), ("targets", lengths.targets))
  )
  return Examples(inputs, targets, len(numbers), padding=special.padding)


def _around(special: SpecialTokens) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
  """Returns the tokens before a text and after its end-of-sequence, by feature."""
  return {"inputs": (special.before_inputs, special.after_inputs), "targets": (special.before_targets, ())}


def _read(cache: TokenCache, feature: str, numbers: np.ndarray, length: int, special: SpecialTokens) -> Ragged:
  if feature not in cache.features:  # a decoder may have targets only
    return Ragged(np.zeros((len(numbers), 0), np.int32), np.zeros(len(numbers), np.int64))
  texts, eos_placement = cache.texts(feature, numbers), cache.eos_placement(feature)
  before, after = _around(special)[feature]
  if eos_placement != "none":
    after = (special.eos, *after)
  texts = enclosed(texts, length if eos_placement == "after_trim" else None, before, after)
  return Ragged(texts.tokens[:, :length], np.minimum(texts.lengths, length))


def example_lengths(cache: TokenCache, feature: str) -> np.ndarray:
  """Returns the untrimmed length of a feature in each example, including any end-of-sequence: [examples]."""
  if feature not in cache.features:
    return np.zeros(cache.examples, np.int64)
  return cache.lengths(feature) + (cache.eos_placement(feature) != "none")


@dataclasses.dataclass(frozen=True)
class MixtureRows:
  """Rows of several sources with examples at given rates; each source has its own epochs."""

  sources: Sequence[RowSource]
  rates: Sequence[float]

  @cached_property
  def row_rates(self) -> list[float]:
    """The rates of rows: a task of short texts has more examples in a packed row."""
    sizes = [source.examples_per_row if isinstance(source, ExampleRows) else 1.0 for source in self.sources]
    return [rate / (size or 1.0) for rate, size in zip(self.rates, sizes, strict=True)]

  @property
  def rows_per_epoch(self) -> int:
    """The rows of all sources."""
    return sum(source.rows_per_epoch for source in self.sources)

  def rows(self, numbers: np.ndarray) -> Batch:
    task, own = mixture_rows(numbers, self.row_rates)
    batch: Batch = {}
    for index in np.unique(task):
      mine = np.flatnonzero(task == index)
      for name, array in self.sources[index].rows(own[mine]).items():
        batch.setdefault(name, np.zeros((len(numbers), *array.shape[1:]), array.dtype))[mine] = array
    return batch
