"""How to search for an output, as options of a command and as settings at a prompt."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5like.errors import UserError, nearest

if TYPE_CHECKING:  # help must not wait for jax
  from t5like.decoding import DecodeSettings
  from t5like.vocabularies import Vocabulary

# By field of DecodeSettings: how a value is read, and what it does.
OPTIONS: dict[str, tuple[type, str]] = {
  "method": (str, "greedy, sample or beam (default: greedy, or what the other options ask for)"),
  "max_length": (int, "write at most so many tokens (default: 128, or half of a model's positions)"),
  "min_length": (int, "write at least so many tokens"),
  "temperature": (float, "sampling: below 1 likelier tokens gain, above 1 they lose"),
  "top_k": (int, "sampling: only the k likeliest tokens"),
  "top_p": (float, "sampling: only the likeliest tokens that together have this probability"),
  "min_p": (float, "sampling: only tokens at least so probable as a share of the likeliest"),
  "seed": (int, "sampling: other draws (default: 0); a row's depend on nothing else"),
  "beams": (int, "beam search: hypotheses kept at each step (default: 4)"),
  "length_penalty": (float, "beam search: more favours longer outputs (default: 0.6)"),
  "penalty_form": (str, "beam search: gnmt as T5X (the default), or power as Hugging Face"),
  "early_stopping": (str, "beam search: never (the default), heuristic or first"),
  "n_best": (int, "outputs for each row: the best beams, or so many samples"),
  "repetition_penalty": (float, "above 1, tokens that were read or written become less likely"),
}
STOP = "stop"
_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_OF_BEAMS = ("beams", "length_penalty", "penalty_form", "early_stopping", "n_best")
_LENGTH = 128


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("how to search for an output")
  for name, (kind, text) in OPTIONS.items():
    group.add_argument(f"--{name}", type=kind, metavar={str: "NAME", int: "N", float: "X"}[kind], help=text)
  group.add_argument(
    f"--{STOP}", action="append", metavar="TEXT", help=r"outputs end before this text; repeat it; \n is a new line"
  )


def given_options(args: argparse.Namespace) -> dict[str, Any]:
  """What was asked for, by field of DecodeSettings; stop texts under `stop`."""
  return {name: getattr(args, name) for name in (*OPTIONS, STOP) if getattr(args, name) is not None}


def parse_option(name: str, text: str) -> Any:
  """The value of a setting that was typed in."""
  if name == STOP:
    return [text] if text else []
  if name not in OPTIONS:
    raise UserError(f"no setting {name!r}", nearest=nearest(name, [*OPTIONS, STOP]), known=", ".join([*OPTIONS, STOP]))
  kind = OPTIONS[name][0]
  try:
    return kind(text)
  except ValueError:
    expected = {int: "a whole number", float: "a number"}[kind]
    raise UserError(f"{name} {text} cannot work", expected=expected) from None


def decode_settings(
  given: Mapping[str, Any], vocabulary: Vocabulary, positions: int | None = None
) -> tuple[DecodeSettings, tuple[str, ...]]:
  """The settings, and the texts before which outputs end.

  A stop text ends the search where it is written in the vocabulary's usual tokens; the text itself decides what
  is shown, as other tokens may spell it too. `positions` is how many a model has.
  """
  from t5like.decoding import DecodeSettings

  stops = tuple(unescaped(text) for text in given.get(STOP, ()))
  sequences = [vocabulary.encode(text) for text in stops]
  known = tuple(tuple(ids) for ids in sequences if ids and vocabulary.unk_id not in ids)
  fields = {name: value for name, value in given.items() if name != STOP}
  if not 0 <= fields.get("seed", 0) < 2**32:
    raise UserError(f"--seed={fields['seed']} cannot work", expected="a whole number from 0 to 4294967295")
  fields.setdefault("method", _method_of(fields))
  fields.setdefault("max_length", _LENGTH if positions is None else min(_LENGTH, max(positions // 2, 1)))
  try:
    return DecodeSettings(stop_sequences=known, **fields), stops
  except UserError as error:
    raise UserError(error.what.replace("DecodeSettings.", "--"), **error.lines) from None


def _method_of(fields: Mapping[str, Any]) -> str:
  """What the other options ask for."""
  if any(name in fields for name in _OF_SAMPLING):
    return "sample"
  return "beam" if any(name in fields for name in _OF_BEAMS) else "greedy"


def belonging_to(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
  """The options that a method takes notice of: what is kept when another is chosen at a prompt."""
  others = {"greedy": (*_OF_SAMPLING, *_OF_BEAMS), "sample": _OF_BEAMS[:-1], "beam": _OF_SAMPLING}.get(method, ())
  return {name: value for name, value in given.items() if name not in others}


def method_for(name: str) -> str | None:
  """The only method that takes notice of an option; None where more do."""
  return {**dict.fromkeys(_OF_SAMPLING, "sample"), **dict.fromkeys(_OF_BEAMS[:-1], "beam")}.get(name)


def unescaped(text: str) -> str:
  r"""With \n and \t as the characters they stand for, which are hard to type on a command line."""
  return text.replace("\\n", "\n").replace("\\t", "\t")
