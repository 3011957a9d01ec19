"""How to search for an output, as options of a command and as settings at a prompt."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5like.errors import InvalidSetting, UserError, nearest

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
  "length_penalty": (float, "beam search: more favors longer outputs (default: 0.6)"),
  "penalty_form": (str, "beam search: gnmt as T5X (the default), or power as Hugging Face"),
  "early_stopping": (str, "beam search: never (the default), heuristic or first"),
  "n_best": (int, "outputs for each row: the best beams, or so many samples"),
  "repetition_penalty": (float, "above 1, tokens that were read or written become less likely"),
}
STOP = "stop"


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
  """As `t5like.decoding.options.decode_settings`; errors name the option."""
  from t5like.decoding import options

  try:
    return options.decode_settings(given, vocabulary, positions)
  except InvalidSetting as error:
    raise error.as_option() from None


def belonging_to(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
  """The options that a method takes notice of: what is kept when another is chosen at a prompt."""
  from t5like.decoding.options import BEAM_OPTIONS, SAMPLING_OPTIONS

  others = {"greedy": (*SAMPLING_OPTIONS, *BEAM_OPTIONS), "sample": BEAM_OPTIONS[:-1], "beam": SAMPLING_OPTIONS}.get(
    method, ()
  )
  return {name: value for name, value in given.items() if name not in others}


def method_for(name: str) -> str | None:
  """The only method that takes notice of an option; None where more do."""
  from t5like.decoding.options import BEAM_OPTIONS, SAMPLING_OPTIONS

  return {**dict.fromkeys(SAMPLING_OPTIONS, "sample"), **dict.fromkeys(BEAM_OPTIONS[:-1], "beam")}.get(name)
