"""The base class of objectives: functions from rows of text to model inputs and targets, with known lengths."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from t5like.errors import UserError, nearest
from t5like.objectives.ragged import Ragged
from t5like.objectives.randomness import Draws

VARIANTS = ("paper", "t5")


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
  """The parts of a vocabulary that objectives need."""

  vocab_size: int
  pad: int | None
  eos: int
  sentinels: tuple[int, ...] = ()  # in order of use: the first span gets the first
  mask: int | None = None
  cls: int | None = None
  sep: int | None = None
  bos: int | None = None
  opens_texts: bool = False  # a text begins with `bos`, also a decoder's (Llama)
  others: frozenset[int] = frozenset()  # other ids that are not text: never hidden or sampled
  sentence_ends: tuple[int, ...] = ()
  word_starts: np.ndarray | None = dataclasses.field(default=None, compare=False)  # [vocab_size] bool
  cls_last: bool = False  # `cls` ends a row (XLNet)
  closes_rows: bool = True  # without `sep`, a head's rows end with `eos`; not those of an imported decoder
  # Facts of a model, not of its vocabulary.
  start_id: int | None = None  # the decoder's first input
  padding: int = 0  # of an encoder's inputs
  opening: int | None = None  # precedes inputs and targets: BART's <s>
  codes: tuple[int, int] | None = None  # of the languages of inputs and targets
  codes_by_task: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict, compare=False)

  @classmethod
  def of(cls, vocabulary: Any) -> SpecialTokens:
    """Builds it from any vocabulary of `t5like.vocabularies`."""
    sentinels = tuple(vocabulary.sentinel_ids)
    mask = vocabulary.mask_id
    return cls(
      vocab_size=vocabulary.vocab_size,
      pad=vocabulary.pad_id,
      eos=vocabulary.eos_id,
      sentinels=sentinels,
      # T5's vocabulary has no mask: its BERT-style objectives use the first sentinel.
      mask=sentinels[0] if mask is None and sentinels else mask,
      cls=vocabulary.cls_id,
      sep=vocabulary.sep_id,
      bos=vocabulary.bos_id,
      opens_texts=vocabulary.opens_texts,
      cls_last=vocabulary.cls_last,
      others=frozenset(vocabulary.special_ids),
      sentence_ends=tuple(vocabulary.sentence_end_ids),
      word_starts=vocabulary.word_starts,
    )

  @property
  def start(self) -> int:
    """The decoder's start: a language's code, the model's own, what opens texts, padding, or EOS if 0 is a word."""
    if self._starts_with_code:
      return self.codes[1]
    if self.start_id is not None:
      return self.start_id
    if self.opens_texts:
      return self.bos
    return 0 if self.pad == 0 else self.eos

  @property
  def _starts_with_code(self) -> bool:
    """Whether codes follow inputs and start the decoder (mBART). mBART-50 has another start: its codes open texts."""
    marks = {self.pad, self.eos, self.bos, self.cls, self.sep}
    return bool(self.codes) and (self.start_id is None or self.start_id in self.others - marks)

  @property
  def before_inputs(self) -> tuple[int, ...]:
    """The tokens before the text of inputs."""
    return self._opening(0)

  @property
  def before_targets(self) -> tuple[int, ...]:
    """The tokens before the text of targets."""
    return self._opening(1)

  @property
  def after_inputs(self) -> tuple[int, ...]:
    """The tokens after the end-of-sequence of inputs."""
    return (self.codes[0],) if self._starts_with_code else ()

  def _opening(self, side: int) -> tuple[int, ...]:
    code = (self.codes[side],) if self.codes and not self._starts_with_code else ()
    return code or (() if self.opening is None else (self.opening,))

  def of_task(self, task: str) -> SpecialTokens:
    """Returns the tokens with the codes of a task's languages, if it has its own; corpora are tasks `mc4.de`."""
    own = self.codes_by_task.get(task) or self.codes_by_task.get(task.rpartition(".")[2])
    return dataclasses.replace(self, codes=own or self.codes)

  @functools.cached_property
  def sentinel_array(self) -> np.ndarray:
    return np.asarray(self.sentinels, np.int32)

  @functools.cached_property
  def reserved(self) -> np.ndarray:
    """True for ids that are not text: [vocab_size]."""
    table = np.zeros(self.vocab_size, bool)
    ids = {self.pad, self.eos, self.mask, self.cls, self.sep, *self.sentinels, *self.others} - {None}
    table[[i for i in ids if i < self.vocab_size]] = True
    return table

  @functools.cached_property
  def replacement_ids(self) -> np.ndarray:
    """The ids that may replace a token at random."""
    return np.flatnonzero(~self.reserved).astype(np.int32)

  def is_text(self, rows: Ragged) -> np.ndarray:
    """Returns a mask [rows, width] that is True on tokens that may be hidden."""
    return rows.valid & ~self.reserved.take(rows.tokens, mode="clip")


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Tokens of text per row (`raw`), and of its inputs and targets with end-of-sequence."""

  raw: int
  inputs: int
  targets: int


@dataclasses.dataclass(frozen=True)
class Rows(Ragged):
  """Rows of text; `others` has a row from another document for each, for objectives that compare documents."""

  others: Ragged | None = None


@dataclasses.dataclass(frozen=True)
class Pairs:
  """Inputs and targets of an encoder-decoder or decoder, without end-of-sequence."""

  inputs: Ragged
  targets: Ragged


@dataclasses.dataclass(frozen=True)
class Masked:
  """Inputs and in-place targets of an encoder, with special tokens; arrays are [rows, width of inputs]."""

  inputs: Ragged
  targets: np.ndarray  # the text before masking
  weights: np.ndarray  # bool: the positions that are predicted
  token_types: np.ndarray
  # [rows], for next-sentence and sentence-order prediction: 0 if the second part follows the first.
  labels: np.ndarray | None = None
  # The order of prediction: a token is predicted from those of lower order, and its content reads its own, too.
  order: np.ndarray | None = None


class Objective:
  """A pre-training objective: turns rows of text into `Pairs` or `Masked`."""

  name: ClassVar[str]
  # "pairs" of inputs and targets, or "masked" inputs for encoders.
  makes: ClassVar[Literal["pairs", "masked"]] = "pairs"
  # A row is a piece of all documents end to end, a piece of one document, or complete sentences.
  unit: Literal["stream", "document", "sentences"] = "stream"
  # Whether end-of-sequence is appended to the documents within a row.
  separated: ClassVar[bool] = False
  # Whether end-of-sequence is appended to inputs and targets.
  closed: ClassVar[bool] = True
  # Whether targets are the row shifted by one: its first token is given, not predicted.
  shifted: ClassVar[bool] = False
  # Whether each row needs a row from another document.
  needs_others: bool = False
  # Whether rows have labels: of next-sentence or sentence-order prediction.
  labels_rows: bool = False
  # Whether tokens are predicted in an order.
  orders_tokens: ClassVar[bool] = False
  # Whether the length of targets varies: rare ones exceed `lengths` and are trimmed.
  targets_vary: ClassVar[bool] = False

  def lengths(self, inputs: int) -> Lengths:
    """Returns the lengths for rows of `inputs` input tokens."""
    raise NotImplementedError

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    """Raises UserError if the vocabulary does not support this objective at these lengths."""

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs | Masked:
    raise NotImplementedError


def check_min_length(objective: Objective, inputs: int, smallest: int) -> None:
  if inputs < smallest:
    raise UserError(
      f"invalid LENGTHS['inputs'] for {objective.name}: {inputs} (expected at least {smallest})",
      try_="--gin.LENGTHS={'inputs': 512}",
    )


def check_fraction(name: str, value: float, zero: bool = False) -> None:
  if not (0 <= value < 1 if zero else 0 < value < 1):
    raise UserError(f"invalid {name}: {value} (expected between 0 and 1)")


def check_variant(objective: Objective) -> None:
  name, variant = objective.name, objective.variant
  if variant not in VARIANTS:
    raise UserError(
      f"unknown variant of {name}: {variant!r}", nearest=nearest(variant, VARIANTS), known=", ".join(VARIANTS)
    )


def check_sentinels(objective: Objective, needed: int, raw: int, special: SpecialTokens, often: str = "") -> None:
  if needed > len(special.sentinels):
    raise UserError(
      f"{objective.name} of {raw} tokens needs {needed} sentinels{often}; the vocabulary has {len(special.sentinels)}",
      try_="longer spans, a lower noise density, a shorter LENGTHS['inputs'], or a vocabulary with more extra_ids",
    )


def check_mask(objective: Objective, special: SpecialTokens) -> None:
  if special.mask is None:
    raise UserError(
      f"{objective.name} needs a mask token; the vocabulary has none",
      try_="a vocabulary with [MASK] or sentinels: --gin.VOCABULARY=bert_uncased or t5",
    )
