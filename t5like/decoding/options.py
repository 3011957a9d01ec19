"""Decode settings from the few that a caller gives: the method follows from them, stop texts become tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from t5like.decoding.settings import DecodeSettings
from t5like.errors import InvalidSetting

STOP = "stop"
OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
OF_BEAMS = ("beams", "length_penalty", "penalty_form", "early_stopping", "n_best")
_LENGTH = 128


class _Encoder(Protocol):
  """A vocabulary, as far as stop texts need one."""

  @property
  def unk_id(self) -> int: ...

  def encode(self, text: str) -> Sequence[int]: ...


def decode_settings(
  given: Mapping[str, Any], vocabulary: _Encoder, positions: int | None = None
) -> tuple[DecodeSettings, tuple[str, ...]]:
  r"""Returns the settings, and the texts before which outputs end.

  given: fields of DecodeSettings, and texts under `stop`, in which \n and \t may be escaped.
  positions: the number of positions of a model that has learned them.

  A stop text ends the search where it is written in the vocabulary's usual tokens; the text itself decides what
  is shown, as other tokens may spell it too. Raises InvalidSetting.
  """
  stops = tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in given.get(STOP, ()))
  sequences = [vocabulary.encode(text) for text in stops]
  known = tuple(tuple(ids) for ids in sequences if ids and vocabulary.unk_id not in ids)
  fields = {name: value for name, value in given.items() if name != STOP}
  if not 0 <= fields.get("seed", 0) < 2**32:
    raise InvalidSetting(f"seed={fields['seed']} cannot work", expected="a whole number from 0 to 4294967295")
  fields.setdefault("method", _method(fields))
  fields.setdefault("max_length", _LENGTH if positions is None else min(_LENGTH, max(positions // 2, 1)))
  return DecodeSettings(stop_sequences=known, **fields), stops


def _method(fields: Mapping[str, Any]) -> str:
  """The method that the other settings belong to."""
  if any(name in fields for name in OF_SAMPLING):
    return "sample"
  return "beam" if any(name in fields for name in OF_BEAMS) else "greedy"
