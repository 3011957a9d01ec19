"""Reads Hugging Face's files next to a vocabulary: tokenizer settings and added tokens."""

from __future__ import annotations

from pathlib import Path

from t5like.files import storage

SETTINGS, ADDED = "tokenizer_config.json", "added_tokens.json"


def tokenizer_settings(path: Path) -> dict:
  """Returns the settings of the vocabulary file `path`; empty if there are none."""
  return _read(path.with_name(SETTINGS))


def added_tokens(path: Path) -> dict[str, int]:
  """Returns the ids of tokens added to the vocabulary file `path`; some may be in the file, too."""
  added = {name: token for name, token in _read(path.with_name(ADDED)).items() if isinstance(token, int)}
  decoder = tokenizer_settings(path).get("added_tokens_decoder")
  for token, described in decoder.items() if isinstance(decoder, dict) else ():
    if token.isdecimal() and isinstance(described, dict) and isinstance(described.get("content"), str):
      added[described["content"]] = int(token)
  return added


def _read(path: Path) -> dict:
  try:
    return storage.read_json(path)
  except (OSError, ValueError):
    return {}
