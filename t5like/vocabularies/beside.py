"""What Hugging Face's files beside a vocabulary say of it: settings of the tokenizer, and tokens that were added."""

from __future__ import annotations

from pathlib import Path

from t5like.files import storage

SETTINGS, ADDED = "tokenizer_config.json", "added_tokens.json"


def tokenizer_settings(path: Path) -> dict:
  """Those of the vocabulary file `path`; none where the model was not downloaded with them."""
  return _read(path.with_name(SETTINGS))


def added_tokens(path: Path) -> dict[str, int]:
  """Tokens that text is cut into beside those of the vocabulary file `path`, or again, with their ids."""
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
