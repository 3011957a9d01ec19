"""Decode settings from user options: infers the method and tokenizes stop texts."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from t5like.decoding.settings import BEAM_OPTIONS, SAMPLING_OPTIONS, DecodeSettings, check_types
from t5like.errors import InvalidSetting, nearest

STOP = "stop"
# All settings that a user may give.
OPTIONS = (*(field.name for field in dataclasses.fields(DecodeSettings) if field.name != "stop_sequences"), STOP)
_DEFAULT_LENGTH = 128
# Hugging Face's names of settings.
_THEIR_NAMES = {
  "num_beams": "beams", "max_new_tokens": "max_length", "min_new_tokens": "min_length", "do_sample": "temperature",
  "num_return_sequences": "n_best", "no_repeat_ngram_size": "no_repeat_ngram", "forced_bos_token_id": "forced_first",
  "bad_words_ids": "forbidden", "suppress_tokens": "forbidden",
}  # fmt: skip


class _Encoder(Protocol):
  """The part of a vocabulary that texts of stops and tokens need."""

  @property
  def unk_id(self) -> int: ...

  def encode(self, text: str) -> Sequence[int]: ...


def decode_settings(
  given: Mapping[str, Any], vocabulary: _Encoder, positions: int | None = None
) -> tuple[DecodeSettings, tuple[str, ...]]:
  r"""Returns the settings and the stop texts.

  given: fields of DecodeSettings, and stop texts under `stop`, in which \n and \t may be escaped. A forced token may be
    a text, such as de_DE; forbidden sequences may be texts.
  positions: the number of learned positions of the model, if it has them.

  The search ends early if a stop text is generated in its usual tokens; callers also cut outputs at the text, because
  other tokens can spell it too. Raises InvalidSetting.
  """
  if not all(isinstance(text, str) and text for text in given.get(STOP, ())):
    raise InvalidSetting(f"stop={given[STOP]!r} is invalid", expected="texts that are not empty")
  stops = tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in given.get(STOP, ()))
  known = tuple(ids for text in stops for ids in _spellings(text, vocabulary, ("",)))
  fields = {name: value for name, value in given.items() if name != STOP}
  for name in fields:
    if name not in OPTIONS:
      closest = _THEIR_NAMES.get(name) or nearest(name, OPTIONS)
      raise InvalidSetting(f"unknown setting {name}", nearest=closest, known=", ".join(OPTIONS))
  if "forbidden" in fields:
    fields["forbidden"] = _sequences(fields["forbidden"], vocabulary)
  if isinstance(fields.get("forced_first"), str):
    fields["forced_first"] = _token(fields["forced_first"], vocabulary)
  check_types(fields)
  if not 0 <= fields.get("seed", 0) < 2**32:
    raise InvalidSetting(f"seed={fields['seed']} is invalid", expected="a whole number from 0 to 4294967295")
  fields.setdefault("method", _method(fields))
  fields.setdefault(
    "max_length", _DEFAULT_LENGTH if positions is None else min(_DEFAULT_LENGTH, max(positions // 2, 1))
  )
  return DecodeSettings(stop_sequences=known, **fields), stops


def with_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
  """Adds a model's own settings to those of the user, which come first; without those of a method that is not used."""
  given = dict(given)
  check_types({name: value for name, value in given.items() if name != "forced_first"})  # may be a text here
  if given.get("beams") == 1 and "beams" in defaults:
    del given["beams"]
    given.setdefault("method", "greedy")
  if any(name in given for name in ("method", *SAMPLING_OPTIONS, *BEAM_OPTIONS, "n_best")):
    given.setdefault("method", _method(given))
  merged = options_for(given.get("method", defaults.get("method", "")), defaults) | given
  if "min_length" not in given and "max_length" in merged:
    merged["min_length"] = min(merged.get("min_length", 0), merged["max_length"])
  return merged


def without_own_end(decoding: Mapping[str, Any], eos_id: int) -> dict[str, Any]:
  """Returns a model's settings without the vocabulary's own end of sequence among `more_ends`."""
  settings = dict(decoding)
  if others := tuple(dict.fromkeys(token for token in settings.pop("more_ends", ()) if token != eos_id)):
    settings["more_ends"] = others
  return settings


def options_for(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the options that a method uses, to keep when switching to it."""
  others = {"greedy": (*SAMPLING_OPTIONS, *BEAM_OPTIONS, "n_best"), "sample": BEAM_OPTIONS, "beam": SAMPLING_OPTIONS}
  return {name: value for name, value in given.items() if name not in others.get(method, ())}


def _sequences(given: Sequence[Any], vocabulary: _Encoder) -> tuple[tuple[int, ...], ...]:
  """Returns the token ids of sequences, texts and single ids; raises InvalidSetting for a text that has no tokens."""
  found = []
  for entry in given if isinstance(given, (list, tuple)) else [given]:
    sequence = [entry] if isinstance(entry, numbers.Integral) else entry
    if isinstance(sequence, (list, tuple)) and all(isinstance(token, numbers.Integral) for token in sequence):
      found.append(tuple(map(int, sequence)))
    elif isinstance(entry, str) and (spellings := _spellings(entry, vocabulary, ("", " "))):
      found += spellings
    else:
      raise InvalidSetting(f"forbidden={entry!r} is invalid", expected="texts of the vocabulary, or lists of token ids")
  return tuple(dict.fromkeys(found))


def _spellings(text: str, vocabulary: _Encoder, between: Sequence[str]) -> list[tuple[int, ...]]:
  """Returns the token ids of a text at the start of an output, and of the text after others with what is `between`.

  A text has other tokens within a word than at its start.
  """
  if not text:
    return []
  before = tuple(vocabulary.encode(","))
  after = [tuple(vocabulary.encode(f",{space}{text}")) for space in between]
  found = [tuple(vocabulary.encode(text)), *(ids[len(before) :] for ids in after if ids[: len(before)] == before)]
  return [ids for ids in dict.fromkeys(found) if ids and vocabulary.unk_id not in ids]


def _token(text: str, vocabulary: _Encoder) -> int:
  """Returns the id of a token given as text or as a number; raises InvalidSetting for other texts."""
  ids = [int(text)] if text.isdecimal() else list(vocabulary.encode(text))
  if len(ids) != 1 or ids[0] == vocabulary.unk_id:
    raise InvalidSetting(f"forced_first={text!r} is invalid", expected="one token of the vocabulary, or its id")
  return ids[0]


def _method(fields: Mapping[str, Any]) -> str:
  """Infers the method from the settings given."""
  if any(name in fields for name in SAMPLING_OPTIONS):
    return "sample"
  return "beam" if any(name in fields for name in (*BEAM_OPTIONS, "n_best")) else "greedy"
