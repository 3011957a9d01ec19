"""What Hugging Face's files beside a vocabulary say of it: settings of the tokenizer, and tokens that were added."""

from __future__ import annotations

import json
from pathlib import Path

SETTINGS, ADDED = "tokenizer_config.json", "added_tokens.json"


def tokenizer_settings(path: Path) -> dict:
  """Those of the vocabulary file `path`; none where the model was not downloaded with them."""
  return _read(path.with_name(SETTINGS))


def added_tokens(path: Path) -> dict[str, int]:
  """Tokens that text is cut into beside those of the vocabulary file `path`, or again, with their ids."""
  added = {name: token for name, token in _read(path.with_name(ADDED)).items() if isinstance(token, int)}
  for token, described in (tokenizer_settings(path).get("added_tokens_decoder") or {}).items():
    if token.isdigit() and isinstance(described, dict) and "content" in described:
      added[described["content"]] = int(token)
  return added


def _read(path: Path) -> dict:
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}
