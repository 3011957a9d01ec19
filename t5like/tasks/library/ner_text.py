"""Named entities as text and back (the format of TANL, Paolini et al. 2021). Plain Python: no TensorFlow.

    ner: Rick lives in New York .
    [ Rick | person ] lives in [ New York | location ] .

The answer repeats the sentence, so that every entity has a position. Brackets and bars inside words are
replaced by `(`, `)` and `/`, also in the input: markup is unambiguous, and tags are recovered exactly.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

OPEN, BAR, CLOSE = "[", "|", "]"
# Replacements of markup characters inside words.
WRITTEN_AS = {OPEN: "(", BAR: "/", CLOSE: ")"}
# A word in a file may contain whitespace or be empty; in text it must be a single word.
NOT_IN_A_WORD = r"[\t\n\f\r ]+|^$"
FILLER = "_"

_WRITTEN_AS = str.maketrans(WRITTEN_AS)


def as_word(token: str) -> str:
  """Returns a token as written in inputs and targets."""
  return re.sub(NOT_IN_A_WORD, FILLER, token).translate(_WRITTEN_AS)


def tags_of_text(
  text: str,
  example: Mapping[str, Any] | None = None,
  is_target: bool = False,
  type_names: Mapping[str, str] | None = None,
) -> list[str]:
  """Returns IOB2 tags of the example's `tokens`, from a text with marked entities; a postprocessor.

  `type_names` maps entity types to the words used in the text. A model may not repeat the sentence
  exactly: its words are aligned with the tokens, and an entity covers the tokens its words align with.
  Malformed markup is ignored.
  """
  del is_target  # targets have the same format
  words, spans = _parse(text)
  tokens = [as_word(_text(token)) for token in example["tokens"]]
  places = _alignment(words, tokens)
  types = {name: kind for kind, name in (type_names or {}).items()}
  tags = ["O"] * len(tokens)
  for start, end, name in spans:
    aligned = [places[word] for word in range(start, end) if word in places]
    if not aligned or any(tags[place] != "O" for place in range(aligned[0], aligned[-1] + 1)):
      continue
    kind = types.get(name, name)
    tags[aligned[0]] = f"B-{kind}"
    tags[aligned[0] + 1 : aligned[-1] + 1] = [f"I-{kind}"] * (aligned[-1] - aligned[0])
  return tags


def _parse(text: str) -> tuple[list[str], list[tuple[int, int, str]]]:
  """Returns the words without markup, and (start, end, type name) of every entity, end exclusive."""
  words: list[str] = []
  spans = []
  start = None
  parts = iter([part for part in text.split(" ") if part])
  for part in parts:
    if part == OPEN:
      start = len(words)
    elif part == BAR:
      name = _until_close(parts)
      if name and start is not None and start < len(words):
        spans.append((start, len(words), name))
      start = None
    elif part != CLOSE:
      words.append(part)
  return words, spans


def _until_close(parts: Iterator[str]) -> str:
  """Returns the words before the closing bracket, or '' if there is none."""
  name = []
  for part in parts:
    if part == CLOSE:
      return " ".join(name)
    name.append(part)
  return ""


def _alignment(words: Sequence[str], tokens: Sequence[str]) -> dict[int, int]:
  """Maps each word of an answer to the token it repeats, if there is one."""
  if list(words) == list(tokens):
    return {place: place for place in range(len(tokens))}
  places = {}
  for kind, first, last, first_token, last_token in difflib.SequenceMatcher(
    None, words, tokens, autojunk=False
  ).get_opcodes():
    if kind in ("equal", "replace"):  # "replace" for example when a letter is not in the vocabulary
      places |= zip(range(first, last), range(first_token, last_token), strict=False)
  return places


def _text(token: str | bytes) -> str:
  return token.decode("utf-8") if isinstance(token, bytes) else token
