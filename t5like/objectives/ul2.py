"""UL2's mixture of denoisers (Tay et al. 2022), with a mode token for each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from t5like.errors import UserError
from t5like.objectives.base import Lengths, Objective, Pairs, Rows, SpecialTokens, check_min_length, check_sentinels
from t5like.objectives.language_modeling import PrefixLM
from t5like.objectives.noise import noise_counts
from t5like.objectives.ragged import Ragged
from t5like.objectives.randomness import Draws
from t5like.objectives.span_corruption import SpanCorruption

MODES = ("R", "X", "S")


@dataclasses.dataclass(frozen=True)
class Denoiser:
  """A denoiser of mode R (regular), X (extreme) or S (sequential: a prefix LM, without spans)."""

  mode: str
  mean_span_length: float | None = None
  noise_density: float | None = None
  rate: float = 1.0

  def __post_init__(self):
    if self.mode not in MODES:
      raise UserError(f"unknown UL2 mode: {self.mode!r}", known=", ".join(MODES))
    if (self.mode == "S") != (self.mean_span_length is None):
      raise UserError(f"a UL2 denoiser of mode {self.mode} {'has no' if self.mode == 'S' else 'needs a'} span length")

  @property
  def objective(self) -> Objective:
    return PrefixLM() if self.mode == "S" else SpanCorruption(self.noise_density, self.mean_span_length)


@dataclasses.dataclass(frozen=True)
class UL2(Objective):
  """Samples a denoiser for each row; its inputs begin with the token of the denoiser's mode.

  T5's vocabulary has no mode tokens: the last three sentinels serve as R, X and S, in this order.
  """

  denoisers: Sequence[Denoiser | Sequence] = (
    Denoiser("R", 3, 0.15),
    Denoiser("X", 3, 0.5),
    Denoiser("X", 32, 0.5),
    Denoiser("X", 32, 0.15),
    Denoiser("S"),
  )
  name: ClassVar[str] = "ul2"

  def __post_init__(self):
    # gin files contain tuples.
    given = tuple(d if isinstance(d, Denoiser) else Denoiser(*d) for d in self.denoisers)
    if not given or min(d.rate for d in given) < 0 or sum(d.rate for d in given) <= 0:
      raise UserError("invalid rates of UL2's denoisers (expected non-negative, not all 0)", given=self.denoisers)
    object.__setattr__(self, "denoisers", given)

  def lengths(self, inputs: int) -> Lengths:
    """Returns one raw length for all denoisers: it fits with a mode token even if nothing is removed."""
    check_min_length(self, inputs, 8)
    raw = inputs - 2
    targets = [raw]  # S: all but one token, and end-of-sequence
    for denoiser in self.denoisers:
      if denoiser.mode != "S":
        noise, spans = noise_counts(raw, denoiser.noise_density, denoiser.mean_span_length)
        targets.append(noise + spans + 2)
    return Lengths(raw, inputs, max(targets))

  def check(self, lengths: Lengths, special: SpecialTokens) -> None:
    self._check_sentinels(lengths.raw, special)

  def _check_sentinels(self, raw: int, special: SpecialTokens) -> None:
    spans = [noise_counts(raw, d.noise_density, d.mean_span_length)[1] for d in self.denoisers if d.mode != "S"]
    check_sentinels(self, max(spans, default=0) + 1 + len(MODES), raw, special)

  def __call__(self, rows: Rows, draws: Draws, special: SpecialTokens) -> Pairs:
    self._check_sentinels(rows.tokens.shape[1], special)
    modes = dict(zip(MODES, special.sentinels[-len(MODES) :], strict=True))
    for_spans = dataclasses.replace(
      special, sentinels=special.sentinels[: -len(MODES)], others=special.others | set(modes.values())
    )
    cumulative = np.cumsum([d.rate for d in self.denoisers])
    drawn = draws.uniform("denoiser", 1)[:, 0] * cumulative[-1]
    choice = np.minimum(np.searchsorted(cumulative, drawn, side="right"), len(self.denoisers) - 1)
    inputs: list[tuple[np.ndarray, Ragged]] = []
    targets: list[tuple[np.ndarray, Ragged]] = []
    for number, denoiser in enumerate(self.denoisers):
      mine = np.flatnonzero(choice == number)
      if mine.size:
        part = Rows(rows.tokens[mine], rows.lengths[mine])
        pairs = denoiser.objective(part, Draws(draws.keys[mine]), for_spans)
        inputs.append((mine, _prepend(modes[denoiser.mode], pairs.inputs)))
        targets.append((mine, pairs.targets))
    return Pairs(_merge(inputs, len(choice)), _merge(targets, len(choice)))


def _prepend(token: int, rows: Ragged) -> Ragged:
  first = np.full((len(rows.tokens), 1), token, np.int32)
  return Ragged(np.concatenate([first, rows.tokens], axis=1), rows.lengths + 1)


def _merge(parts: Sequence[tuple[np.ndarray, Ragged]], count: int) -> Ragged:
  """Merges the rows of all denoisers in their original order."""
  tokens = np.zeros((count, max((p.tokens.shape[1] for _, p in parts), default=0)), np.int32)
  lengths = np.zeros(count, np.int64)
  for rows, part in parts:
    tokens[rows, : part.tokens.shape[1]] = part.tokens
    lengths[rows] = part.lengths
  return Ragged(tokens, lengths)
