"""Decode settings from user options: infers the method and tokenizes stop texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from t5like.decoding.settings import DecodeSettings
from t5like.errors import InvalidSetting

STOP = "stop"
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p")
BEAM_OPTIONS = ("beams", "length_penalty", "penalty_form", "early_stopping", "n_best")
_DEFAULT_LENGTH = 128


class _Encoder(Protocol):
  """The part of a vocabulary that stop texts need."""

  @property
  def unk_id(self) -> int: ...

  def encode(self, text: str) -> Sequence[int]: ...


def decode_settings(
  given: Mapping[str, Any], vocabulary: _Encoder, positions: int | None = None
) -> tuple[DecodeSettings, tuple[str, ...]]:
  r"""Returns the settings and the stop texts.

  given: fields of DecodeSettings, and stop texts under `stop`, in which \n and \t may be escaped.
  positions: the number of learned positions of the model, if it has them.

  The search ends early if a stop text is generated in its canonical tokenization; callers also cut outputs at the
  text, because other tokens can spell it too. Raises InvalidSetting.
  """
  stops = tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in given.get(STOP, ()))
  sequences = [vocabulary.encode(text) for text in stops]
  known = tuple(tuple(ids) for ids in sequences if ids and vocabulary.unk_id not in ids)
  fields = {name: value for name, value in given.items() if name != STOP}
  if not 0 <= fields.get("seed", 0) < 2**32:
    raise InvalidSetting(f"seed={fields['seed']} is invalid", expected="a whole number from 0 to 4294967295")
  fields.setdefault("method", _method(fields))
  fields.setdefault(
    "max_length", _DEFAULT_LENGTH if positions is None else min(_DEFAULT_LENGTH, max(positions // 2, 1))
  )
  return DecodeSettings(stop_sequences=known, **fields), stops


def _method(fields: Mapping[str, Any]) -> str:
  """Infers the method from the settings given."""
  if any(name in fields for name in SAMPLING_OPTIONS):
    return "sample"
  return "beam" if any(name in fields for name in BEAM_OPTIONS) else "greedy"
