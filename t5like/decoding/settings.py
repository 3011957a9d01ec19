"""How to search for an output, checked before anything is compiled."""

from __future__ import annotations

import dataclasses
import math

from t5like.errors import InvalidSetting, nearest

METHODS = ("greedy", "sample", "beam")
PENALTY_FORMS = ("gnmt", "power")
EARLY_STOPPING = ("never", "heuristic", "first")
_BEAMS = 4
_LONGEST, _MOST_COPIES = 1_000_000, 4096


@dataclasses.dataclass(frozen=True)
class DecodeSettings:
  """Which tokens to write. Lengths count written tokens, not those of a prompt.

  method              greedy: the likeliest token. sample: a token drawn by its probability. beam: beam search
  max_length          stop after so many tokens, an end of sequence among them
  min_length          so many tokens come before an end of sequence or the end of a stop sequence
  stop_sequences      token ids after which a row ends, as at the end of sequence
  repetition_penalty  above 1, tokens that were read or written already become less likely (Keskar et al. 2019, 4.1)

  of sampling:
  temperature         below 1 likelier tokens gain, above 1 they lose
  top_k               only the k likeliest tokens; 0: all
  top_p               only the likeliest tokens that together reach this probability (Holtzman et al. 2019); after
                      top_k where both are given
  min_p               only tokens that are at least so probable as a share of the likeliest (Nguyen et al. 2024)
  seed                a row's draws depend on the seed, its id and the position: not on the batch it is in

  of beam search:
  beams               hypotheses kept at each step (default: 4)
  length_penalty      alpha: log-likelihoods are divided by a power of the length. 0: not at all; more: longer outputs
  penalty_form        gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, as T5X). power: length^alpha (as Hugging Face)
  early_stopping      when a row may end with its beams all finished. never: when no other could still become better
                      (as T5X). heuristic: when none is better at the present length. first: at once

  n_best              outputs a row: the best of the beams, or so many samples
  """

  method: str = "greedy"
  max_length: int = 128
  min_length: int = 0
  stop_sequences: tuple[tuple[int, ...], ...] = ()
  repetition_penalty: float = 1.0
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  seed: int = 0
  beams: int | None = None
  length_penalty: float = 0.6
  penalty_form: str = "gnmt"
  early_stopping: str = "never"
  n_best: int = 1

  def __post_init__(self):
    sequences = tuple(tuple(int(token) for token in sequence) for sequence in self.stop_sequences)
    object.__setattr__(self, "stop_sequences", sequences)
    for field, choices in (("method", METHODS), ("penalty_form", PENALTY_FORMS), ("early_stopping", EARLY_STOPPING)):
      value = getattr(self, field)
      if value not in choices:
        raise _bad(field, value, f"one of {', '.join(choices)}", nearest=nearest(str(value), choices))
    self._check_ranges()
    self._check_belongs()
    if self.method == "beam" and self.beams is None:
      object.__setattr__(self, "beams", max(_BEAMS, self.n_best))
    if self.method == "beam" and self.n_best > self.beams:
      raise _bad("n_best", self.n_best, f"at most beams = {self.beams}: there are no more to choose from")

  def _check_ranges(self):
    self._check("max_length", 1 <= self.max_length <= _LONGEST, f"1 to {_LONGEST:,}")
    self._check("min_length", 0 <= self.min_length <= self.max_length, f"0 to max_length = {self.max_length}")
    self._check("n_best", 1 <= self.n_best <= _MOST_COPIES, f"1 to {_MOST_COPIES:,}")
    self._check("beams", self.beams is None or 1 <= self.beams <= _MOST_COPIES, f"1 to {_MOST_COPIES:,}")
    self._check("top_k", 0 <= self.top_k < 2**31, "0 (all tokens) or more")
    self._check("top_p", 0.0 < self.top_p <= 1.0, "above 0, at most 1 (all tokens)")
    self._check("min_p", 0.0 <= self.min_p <= 1.0, "0 (all tokens) to 1")
    self._check("repetition_penalty", 0.0 < self.repetition_penalty < math.inf, "above 0; 1 changes nothing")
    self._check("length_penalty", math.isfinite(self.length_penalty), "a number; 0 changes nothing")
    self._check("temperature", 0.0 < self.temperature < math.inf, 'above 0; for the likeliest tokens, method="greedy"')
    self._check(
      "stop_sequences", all(s and min(s) >= 0 for s in self.stop_sequences), "sequences of one or more token ids"
    )

  def _check(self, field: str, good: bool, expected: str):
    if not good:
      raise _bad(field, getattr(self, field), expected)

  def _check_belongs(self):
    """An option that the method would not look at is a mistake."""
    of_method = {
      "sample": ("temperature", "top_k", "top_p", "min_p"),
      "beam": ("beams", "length_penalty", "penalty_form", "early_stopping"),
    }
    defaults = {field.name: field.default for field in dataclasses.fields(self)}
    for method, fields in of_method.items():
      for field in fields:
        value = getattr(self, field)
        if method != self.method and value != defaults[field]:
          raise _bad(field, value, f'method="{method}": method="{self.method}" takes no notice of it')
    if self.method == "greedy" and self.n_best > 1:
      raise _bad("n_best", self.n_best, 'method="beam" or method="sample": greedy search has one output')

  @property
  def copies(self) -> int:
    """Rows of the cache for each row of a batch."""
    return self.beams if self.method == "beam" else self.n_best


def _bad(field: str, value: object, expected: str, **lines: str) -> InvalidSetting:
  return InvalidSetting(f"{field} = {value!r} cannot work", expected=expected, **lines)
