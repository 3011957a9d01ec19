"""Loads Hugging Face's tokenizer.json: any tokenizer supported by their library."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tokenizers import Tokenizer

from t5like.errors import UserError
from t5like.vocabularies.base import fingerprint_of
from t5like.vocabularies.subwords import SpecialNames, SubwordVocabulary
from t5like.vocabularies.tokenizer_config import tokenizer_settings

# Special tokens of published tokenizers; the first one present is used.
_SPELLINGS = {
  "pad": ("[PAD]", "<pad>"),
  "eos": ("</s>", "<|endoftext|>", "<eos>", "<|end_of_text|>", "[SEP]"),
  "unk": ("[UNK]", "<unk>"),
  "bos": ("<s>", "<|endoftext|>", "<bos>", "<|begin_of_text|>"),
  "cls": ("[CLS]", "<cls>"),
  "sep": ("[SEP]", "<sep>"),
  "mask": ("[MASK]", "<mask>"),
}


def read_tokenizer(path: Path) -> Tokenizer:
  """Reads a tokenizer.json that neither cuts texts nor pads them."""
  try:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode("a")  # fails with tokens around a text that do not exist
  except (KeyboardInterrupt, SystemExit):
    raise
  except BaseException as error:  # the library raises bare Exception; panics of its Rust code are no Exception
    raise UserError(f"{path} is not a tokenizer.json", because=error) from None
  return tokenizer


def load_tokenizer_json(path: str | Path) -> SubwordVocabulary:
  """Loads a tokenizer.json; special tokens come from tokenizer_config.json next to it, else from usual spellings."""
  path = Path(path).expanduser()
  tokenizer = read_tokenizer(path)
  names = SpecialNames(**{kind: _find(kind, path, tokenizer) for kind in _SPELLINGS})
  if names.eos is None:
    raise UserError(f"{path} has no end-of-sequence token", expected=" or ".join(_SPELLINGS["eos"]))
  fingerprint = fingerprint_of("tokenizer.json", path.read_bytes(), names)
  around = tokenizer.encode("a").ids
  opened = tokenizer.token_to_id("<s>") in around[:1] and tokenizer.token_to_id("</s>") not in around  # a decoder's
  if (
    names.mask == "<mask>" and names.cls is None and names.bos == "<s>" and not opened
  ):  # XLM-R: settings do not say so
    names = dataclasses.replace(names, cls=names.bos, sep=names.eos)
  elif names.bos == "[CLS]":  # ALBERT's and DeBERTa's name for it; joined texts have one separator, not RoBERTa's two
    names = dataclasses.replace(names, bos=None)
  return SubwordVocabulary(
    tokenizer,
    names,
    _word_rule(tokenizer),
    path,
    fingerprint,
    (load_tokenizer_json, (path,)),
    files={"tokenizer.json": path},
    settings=tokenizer_settings(path),
  )


def _find(kind: str, path: Path, tokenizer: Tokenizer) -> str | None:
  given = tokenizer_settings(path).get(f"{kind}_token")
  if isinstance(given, dict):  # a serialized AddedToken
    given = given.get("content")
  candidates = (given, *_SPELLINGS[kind]) if isinstance(given, str) else _SPELLINGS[kind]
  return next((name for name in candidates if tokenizer.token_to_id(name) is not None), None)


def _word_rule(tokenizer: Tokenizer):
  """Returns a function that checks whether a piece starts a word."""
  model = json.loads(tokenizer.to_str())["model"]
  if model["type"] == "WordPiece":
    prefix = model["continuing_subword_prefix"]
    return lambda piece: not piece.startswith(prefix)
  pieces = tokenizer.get_vocab()
  marks = tuple(mark for mark in ("▁", "Ġ") if sum(piece.startswith(mark) for piece in pieces) > 1)
  return (lambda piece: piece.startswith(marks)) if marks else (lambda piece: True)
