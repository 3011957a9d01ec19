"""What every objective is: a function from rows of text to what a model reads and predicts, that knows its lengths."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Literal

import numpy as np

from t5like.errors import UserError, nearest
from t5like.objectives.ragged import Ragged
from t5like.objectives.randomness import Draws

VARIANTS = ("paper", "t5")


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
  """What objectives must know of a vocabulary."""

  vocab_size: int
  pad: int | None
  eos: int
  sentinels: tuple[int, ...] = ()  # in the order of use: the first span gets the first
  mask: int | None = None
  cls: int | None = None
  sep: int | None = None
  others: frozenset[int] = frozenset()  # more ids that are no text: never hidden, never drawn
  sentence_ends: tuple[int, ...] = ()
  word_starts: np.ndarray | None = dataclasses.field(default=None, compare=False)  # [vocab_size] bool

  @classmethod
  def of(cls, vocabulary: Any) -> SpecialTokens:
    """From any vocabulary of `t5like.vocabularies`."""
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
      others=frozenset(vocabulary.special_ids),
      sentence_ends=tuple(vocabulary.sentence_end_ids),
      word_starts=vocabulary.word_starts,
    )

  @property
  def start(self) -> int:
    """What a decoder begins with: padding, as T5, or end-of-text where 0 is a word."""
    return 0 if self.pad == 0 else self.eos

  @functools.cached_property
  def sentinel_array(self) -> np.ndarray:
    return np.asarray(self.sentinels, np.int32)

  @functools.cached_property
  def reserved(self) -> np.ndarray:
    """[vocab_size] True for ids that are no text."""
    table = np.zeros(self.vocab_size, bool)
    ids = {self.pad, self.eos, self.mask, self.cls, self.sep, *self.sentinels, *self.others} - {None}
    table[[i for i in ids if i < self.vocab_size]] = True
    return table

  @functools.cached_property
  def drawable(self) -> np.ndarray:
    """The ids that may stand in for a token at random."""
    return np.flatnonzero(~self.reserved).astype(np.int32)

  def is_text(self, rows: Ragged) -> np.ndarray:
    """[rows, width] True on tokens that may be hidden."""
    return rows.valid & ~self.reserved.take(rows.tokens, mode="clip")


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Tokens a row needs (`raw`) and what it becomes, end-of-sequence included."""

  raw: int
  inputs: int
  targets: int


@dataclasses.dataclass(frozen=True)
class Rows(Ragged):
  """Rows of text; `others` has a row from another document for each, where an objective compares documents."""

  others: Ragged | None = None


@dataclasses.dataclass(frozen=True)
class Pairs:
  """What an encoder-decoder reads and answers, or a decoder goes through, before end-of-sequence."""

  inputs: Ragged
  targets: Ragged


@dataclasses.dataclass(frozen=True)
class Masked:
  """What an encoder reads and predicts in place, special tokens included; arrays are [rows, width of inputs]."""

  inputs: Ragged
  targets: np.ndarray  # the text before masking
  weights: np.ndarray  # bool: the positions that are predicted
  token_types: np.ndarray
  labels: np.ndarray | None = None  # [rows], for next-sentence prediction: 0 where the second part follows the first


class Objective:
  """Called with rows of text it gives `Pairs` or `Masked`."""

  name: ClassVar[str]
  # For models that read inputs and write targets, or for encoders that fill in.
  makes: ClassVar[Literal["pairs", "masked"]] = "pairs"
  # What a row is: a piece of all documents read end to end; a piece of one document; whole sentences.
  unit: Literal["stream", "document", "sentences"] = "stream"
  # Documents inside a row are closed by end-of-sequence.
  separated: ClassVar[bool] = False
  # Inputs and targets are closed by end-of-sequence.
  closed: ClassVar[bool] = True
  # The first token of a row is given and not predicted: targets are the row moved by one.
  shifted: ClassVar[bool] = False
  needs_others: bool = False
  # `lengths` gives room for all but the rarest targets, not for every one.
  targets_vary: ClassVar[bool] = False

  def lengths(self, inputs: int) -> Lengths:
    """What fits into `inputs` input tokens."""
    raise NotImplementedError

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    """Raises UserError where the vocabulary cannot serve this objective at these lengths."""

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs | Masked:
    raise NotImplementedError


def at_least(objective: Objective, inputs: int, smallest: int) -> None:
  if inputs < smallest:
    raise UserError(
      f"{objective.name} needs at least {smallest} input tokens, not {inputs}", try_="--gin.LENGTHS={'inputs': 512}"
    )


def check_share(name: str, value: float, zero: bool = False) -> None:
  if not (0 <= value < 1 if zero else 0 < value < 1):
    raise UserError(f"{name} must lie between 0 and 1, not {value}")


def check_variant(objective: Objective, variant: str) -> None:
  if variant not in VARIANTS:
    raise UserError(
      f"no variant {variant!r} of {objective.name}", nearest=nearest(variant, VARIANTS), known=", ".join(VARIANTS)
    )


def check_sentinels(objective: Objective, needed: int, raw: int, special: SpecialTokens, often: str = "") -> None:
  if needed > len(special.sentinels):
    raise UserError(
      f"{objective.name} of {raw} tokens needs {needed} sentinels{often}, the vocabulary has {len(special.sentinels)}",
      try_="longer spans, a lower noise density, a shorter LENGTHS['inputs'], or a vocabulary with more extra_ids",
    )


def check_mask(objective: Objective, special: SpecialTokens) -> None:
  if special.mask is None:
    raise UserError(
      f"{objective.name} needs a mask token, the vocabulary has none",
      try_="a vocabulary with [MASK] or sentinels: --gin.VOCABULARY=bert_uncased or t5",
    )
