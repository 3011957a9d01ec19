"""Decoding settings, validated before anything is compiled."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence

from t5like.errors import InvalidSetting, nearest

METHODS = ("greedy", "sample", "beam")
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p")
BEAM_OPTIONS = ("beams", "length_penalty", "penalty_form", "early_stopping")
PENALTY_FORMS = ("gnmt", "power")
EARLY_STOPPING = ("never", "heuristic", "first")
_DEFAULT_BEAMS = 4
_MAX_LENGTH, _MAX_HYPOTHESES = 2**20, 4096  # lengths are rounded up to powers of 2
_WHOLE = ("max_length", "min_length", "n_best", "top_k", "no_repeat_ngram", "seed")
_WHOLE_OR_NONE = ("beams", "forced_first")
_REAL = ("repetition_penalty", "temperature", "top_p", "min_p", "length_penalty")
_TYPES = {
  **dict.fromkeys(_WHOLE, (numbers.Integral, "a whole number")),
  **dict.fromkeys(_WHOLE_OR_NONE, (numbers.Integral | None, "a whole number")),
  **dict.fromkeys(_REAL, (numbers.Real, "a number")),
  "more_ends": (Sequence, "a list of token ids"),
  "forced_end": (bool, "True or False"),
}


@dataclasses.dataclass(frozen=True)
class DecodeSettings:
  """Settings of a search. Lengths count generated tokens, without the prompt.

  method              greedy: the likeliest token. sample: a random token by probability. beam: beam search
  max_length          maximum number of tokens, including the end of sequence
  min_length          minimum number of tokens before an end of sequence, or up to the end of a stop sequence
  stop_sequences      sequences of token ids that end an output, like the end of sequence
  more_ends           ids of other ends of sequence, besides the vocabulary's, such as that of a chat's turn
  repetition_penalty  above 1, tokens of the prompt and the output become less likely (Keskar et al. 2019, 4.1)
  no_repeat_ngram     no sequence of this many tokens occurs twice in prompt and output (Paulus et al. 2017); 0: any may
  forbidden           sequences of token ids that no output contains; of a text, those that usually spell it, as a word
                      or within one: a longer token that contains it is not among them
  forced_first        the id of the first token, such as BART's <s> or a language code; None: any
  forced_end          an output that reaches max_length ends there with the end of sequence

  Sampling:
  temperature         below 1 favors likelier tokens, above 1 less likely ones
  top_k               sample from the k likeliest tokens; 0: all
  top_p               sample from the likeliest tokens whose total probability reaches top_p (Holtzman et al. 2019);
                      applied after top_k
  min_p               drop tokens less probable than min_p times the likeliest (Nguyen et al. 2024)
  seed                samples depend only on the seed, the row's id and the position, not on the batch

  Beam search:
  beams               hypotheses kept at each step (default: 4)
  length_penalty      alpha: log-likelihoods are divided by a power of the length; 0: no penalty; higher: longer outputs
  penalty_form        gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, T5X). power: length^alpha (Hugging Face)
  early_stopping      when a row with all beams finished ends. never: when no live hypothesis can still become better
                      (T5X). heuristic: when none is better at the current length. first: immediately

  n_best              outputs per row: the best beams, or the number of samples
  """

  method: str = "greedy"
  max_length: int = 128
  min_length: int = 0
  stop_sequences: tuple[tuple[int, ...], ...] = ()
  more_ends: tuple[int, ...] = ()
  repetition_penalty: float = 1.0
  no_repeat_ngram: int = 0
  forbidden: tuple[tuple[int, ...], ...] = ()
  forced_first: int | None = None
  forced_end: bool = False
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
    check_types(vars(self))
    for field, kind in {**dict.fromkeys((*_WHOLE, *_WHOLE_OR_NONE), int), **dict.fromkeys(_REAL, float)}.items():
      if (value := getattr(self, field)) is not None:  # of numpy, possibly
        object.__setattr__(self, field, kind(value))
    ids = [token for token in self.more_ends if isinstance(token, numbers.Integral) and not isinstance(token, bool)]
    if len(ids) < len(self.more_ends) or min(ids, default=0) < 0 or isinstance(self.more_ends, bytes):
      raise _invalid("more_ends", self.more_ends, _TYPES["more_ends"][1])
    object.__setattr__(self, "more_ends", tuple(dict.fromkeys(map(int, ids))))
    for field in ("stop_sequences", "forbidden"):
      sequences = tuple(tuple(int(token) for token in sequence) for sequence in getattr(self, field))
      object.__setattr__(self, field, sequences)
    for field, choices in (("method", METHODS), ("penalty_form", PENALTY_FORMS), ("early_stopping", EARLY_STOPPING)):
      value = getattr(self, field)
      if value not in choices:
        raise _invalid(field, value, f"one of {', '.join(choices)}", nearest=nearest(str(value), choices))
    self._check_ranges()
    self._check_method()
    if self.method == "beam" and self.beams is None:
      object.__setattr__(self, "beams", max(_DEFAULT_BEAMS, self.n_best))
    if self.method == "beam" and self.n_best > self.beams:
      raise _invalid("n_best", self.n_best, f"at most beams={self.beams}")

  def _check_ranges(self):
    self._check("max_length", 1 <= self.max_length <= _MAX_LENGTH, f"1 to {_MAX_LENGTH:,}")
    self._check("min_length", 0 <= self.min_length <= self.max_length, f"0 to max_length={self.max_length}")
    self._check("n_best", 1 <= self.n_best <= _MAX_HYPOTHESES, f"1 to {_MAX_HYPOTHESES:,}")
    self._check("beams", self.beams is None or 1 <= self.beams <= _MAX_HYPOTHESES, f"1 to {_MAX_HYPOTHESES:,}")
    self._check("top_k", 0 <= self.top_k < 2**31, "at least 0 (all tokens)")
    self._check("top_p", 0.0 < self.top_p <= 1.0, "above 0, at most 1 (all tokens)")
    self._check("min_p", 0.0 <= self.min_p <= 1.0, "0 (all tokens) to 1")
    self._check("repetition_penalty", 0.0 < self.repetition_penalty < math.inf, "above 0; 1: no penalty")
    self._check("no_repeat_ngram", 0 <= self.no_repeat_ngram <= _MAX_LENGTH, "at least 0 (any sequence may repeat)")
    self._check("forced_first", self.forced_first is None or self.forced_first >= 0, "the id of a token, or None")
    self._check("length_penalty", math.isfinite(self.length_penalty), "a finite number; 0: no penalty")
    self._check(
      "temperature", 0.0 < self.temperature < math.inf, 'above 0; use method="greedy" for the likeliest tokens'
    )
    for field in ("stop_sequences", "forbidden"):
      valid = all(sequence and min(sequence) >= 0 for sequence in getattr(self, field))
      self._check(field, valid, "nonempty sequences of token ids")

  def _check(self, field: str, valid: bool, expected: str):
    if not valid:
      raise _invalid(field, getattr(self, field), expected)

  def _check_method(self):
    """Rejects options that the method ignores."""
    defaults = {field.name: field.default for field in dataclasses.fields(self)}
    for method, fields in (("sample", SAMPLING_OPTIONS), ("beam", BEAM_OPTIONS)):
      for field in fields:
        value = getattr(self, field)
        if method != self.method and value != defaults[field]:
          raise _invalid(field, value, f'method="{method}": method="{self.method}" ignores it')
    if self.method == "greedy" and self.n_best > 1:
      raise _invalid("n_best", self.n_best, 'method="beam" or method="sample": greedy search has only one output')

  @property
  def hypotheses_per_row(self) -> int:
    """The number of cache rows per batch row."""
    return self.beams if self.method == "beam" else self.n_best


def check_types(given: Mapping[str, object]) -> None:
  """Raises InvalidSetting if a field has a value of another type."""
  for field, value in given.items():
    kind, expected = _TYPES.get(field, (object, ""))
    if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
      raise _invalid(field, value, expected)


def _invalid(field: str, value: object, expected: str, **lines: str) -> InvalidSetting:
  return InvalidSetting(f"{field}={value!r} is invalid", expected=expected, **lines)
