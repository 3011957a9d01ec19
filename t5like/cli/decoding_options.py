"""Decoding settings as command-line options and as settings of the interactive prompt."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5like.errors import InvalidSetting, UserError, nearest

if TYPE_CHECKING:  # importing jax would slow down --help
  from t5like.decoding import DecodeSettings
  from t5like.vocabularies import Vocabulary


def _truth(text: str) -> bool:
  """Parses True or False."""
  if text.lower() not in ("true", "false"):
    raise ValueError(text)
  return text.lower() == "true"


# Field of DecodeSettings -> (type, help text).
OPTIONS: dict[str, tuple[type, str]] = {
  "method": (str, "greedy, sample or beam (default: greedy, unless other options imply one)"),
  "max_length": (int, "maximum number of generated tokens (default: 128, at most half of the model's positions)"),
  "min_length": (int, "minimum number of generated tokens"),
  "temperature": (float, "sampling: below 1 sharpens, above 1 flattens the distribution"),
  "top_k": (int, "sampling: only the k most likely tokens"),
  "top_p": (float, "sampling: only the most likely tokens up to this total probability"),
  "min_p": (float, "sampling: only tokens with at least this fraction of the highest probability"),
  "seed": (int, "sampling: random seed (default: 0); samples depend on the seed and the row only"),
  "beams": (int, "beam search: hypotheses kept at each step (default: 4)"),
  "length_penalty": (float, "beam search: higher values favor longer outputs (default: 0.6)"),
  "penalty_form": (str, "beam search: gnmt, as in T5X (default), or power, as in Hugging Face"),
  "early_stopping": (str, "beam search: never (default), heuristic or first"),
  "n_best": (int, "outputs per row: the best beams, or the number of samples"),
  "repetition_penalty": (float, "above 1: penalize tokens of the prompt and the output"),
  "no_repeat_ngram": (int, "no sequence of N tokens occurs twice (default: 0, any may)"),
  "forced_first": (str, "the first token, as text or id: the code of a language, BART's <s>"),
  "forced_end": (_truth, "True: outputs that reach max_length end with the end of sequence"),
}
STOP = "stop"
# Options that may be repeated, each a text.
TEXTS = {
  STOP: r"end outputs before this text (\n: newline); may be repeated",
  "forbidden": "do not generate the tokens of this text, a word or a part of one; may be repeated",
}
_SHOWN = {str: "NAME", int: "N", float: "X", _truth: "True"}


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("decoding")
  for name, (kind, text) in OPTIONS.items():
    group.add_argument(f"--{name}", type=kind, metavar=_SHOWN[kind], help=text)
  for name, text in TEXTS.items():
    group.add_argument(f"--{name}", action="append", metavar="TEXT", help=text)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the options given, by field of DecodeSettings; stop texts under `stop`."""
  return {name: getattr(args, name) for name in (*OPTIONS, *TEXTS) if getattr(args, name) is not None}


def parse_option(name: str, text: str) -> Any:
  """Parses the value of a setting."""
  if name in TEXTS:
    return [text] if text else []
  if name not in OPTIONS:
    raise UserError(
      f"unknown setting {name!r}", nearest=nearest(name, [*OPTIONS, *TEXTS]), known=", ".join([*OPTIONS, *TEXTS])
    )
  kind = OPTIONS[name][0]
  try:
    return kind(text)
  except ValueError:
    expected = {int: "an integer", float: "a number", _truth: "True or False"}[kind]
    raise UserError(f"invalid {name}: {text}", expected=expected) from None


def decode_settings(
  given: Mapping[str, Any], vocabulary: Vocabulary, positions: int | None = None
) -> tuple[DecodeSettings, tuple[str, ...]]:
  """Calls `t5like.decoding.options.decode_settings`; its errors name command-line options."""
  from t5like.decoding import options

  try:
    return options.decode_settings(given, vocabulary, positions)
  except InvalidSetting as error:
    raise error.as_option() from None


def method_for(name: str) -> str | None:
  """Returns the only method that uses an option; None if several do."""
  from t5like.decoding.settings import BEAM_OPTIONS, SAMPLING_OPTIONS

  return {**dict.fromkeys(SAMPLING_OPTIONS, "sample"), **dict.fromkeys(BEAM_OPTIONS, "beam")}.get(name)
