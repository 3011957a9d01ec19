"""Byte-pair encodings of the GPT family and RoBERTa. Ids equal those of Hugging Face's tokenizers."""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from t5like.errors import UserError
from t5like.files import storage
from t5like.vocabularies.base import fingerprint_of
from t5like.vocabularies.subwords import SpecialNames, SubwordVocabulary
from t5like.vocabularies.tokenizer_config import tokenizer_settings
from t5like.vocabularies.wordpiece import WORDS

_END_OF_WORD = "</w>"
# White-space bytes in byte-level BPE: space, tab, newline, vertical tab, form feed, carriage return.
_BLANKS = tuple("ĠĉĊċČč")

# White space and what follows it: no word of GPT-2's pattern continues from anything else into white space.
_CHUNKS = re.compile(r"\s*\S+|\s+")

# One token ends a document and starts the next. With bytes nothing is unknown, and there is no padding token.
_GPT2 = SpecialNames(eos="<|endoftext|>", bos="<|endoftext|>")
_PIECES = "a JSON object with the id of each piece"
_ROBERTA = SpecialNames(pad="<pad>", eos="</s>", unk="<unk>", bos="<s>", cls="<s>", sep="</s>", mask="<mask>")
_OPT = SpecialNames(pad="<pad>", eos="</s>", unk="<unk>", bos="</s>")  # RoBERTa's pieces; </s> opens a text
# DeBERTa's first version: GPT-2's pieces, BERT's special tokens.
_DEBERTA = SpecialNames(pad="[PAD]", eos="[SEP]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")


def load_bpe(pieces: str | Path, merges: str | Path) -> SubwordVocabulary:
  """Loads vocab.json and merges.txt: byte-level BPE (GPT-2, RoBERTa, DeBERTa), or GPT's with its end-of-word mark."""
  pieces, merges = Path(pieces).expanduser(), Path(merges).expanduser()
  vocabulary, pairs = _read_pieces(pieces), _read_merges(merges)
  settings = tokenizer_settings(pieces)
  kinds = (_OPT,) if settings.get("add_bos_token") is True else (_DEBERTA, _ROBERTA)
  spaced = settings.get("add_prefix_space") is True
  fingerprint = fingerprint_of("bpe", pieces.read_bytes(), merges.read_bytes(), *[b"add_prefix_space"] * spaced)
  origin = (pieces, fingerprint, (load_bpe, (pieces, merges)))
  files = {"vocab.json": pieces, "merges.txt": merges}
  # GPT-2 last, as its end of text is a piece of the others.
  for names in (*kinds, _GPT2):
    if all(name in vocabulary for name in names.all()):
      tokenizer = _byte_level(vocabulary, pairs, names, spaced)
      if settings.get("add_bos_token") is True and names in (_OPT, _GPT2):
        special = [(names.bos, vocabulary[names.bos])]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{names.bos} $A", special_tokens=special)
      # Chunks of a text must not get a space of their own.
      chunks, kept = (None, {"add_prefix_space": True}) if spaced else (_CHUNKS, {})
      return SubwordVocabulary(tokenizer, names, _begins_word, *origin, chunks, files, kept)
  if any(piece.endswith(_END_OF_WORD) for piece in vocabulary):
    tokenizer, names = _lower_cased(vocabulary, pairs)
    return SubwordVocabulary(tokenizer, names, _any_piece, *origin, WORDS, files)
  raise UserError(
    f"unsupported byte-pair vocabulary: {pieces}",
    expected=f"GPT-2's with {_GPT2.eos}, RoBERTa's with {' '.join(_ROBERTA.all())}, or GPT's with {_END_OF_WORD}",
  )


def _byte_level(
  vocabulary: dict[str, int], pairs: list[tuple[str, str]], names: SpecialNames, spaced: bool
) -> Tokenizer:
  """Builds a tokenizer; `spaced`: as if a space preceded the text."""
  tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
  tokenizer.decoder = decoders.ByteLevel()
  # RoBERTa's mask includes the space before a word.
  tokenizer.add_special_tokens([AddedToken(name, lstrip=name == names.mask) for name in names.all()])
  return tokenizer


def _lower_cased(vocabulary: dict[str, int], pairs: list[tuple[str, str]]) -> tuple[Tokenizer, SpecialNames]:
  """Builds GPT's tokenizer of 2018, which splits words as BERT does.

  It has no end-of-sequence; its newline piece, which never results from text, serves as one.
  """
  tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", end_of_word_suffix=_END_OF_WORD))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.BPEDecoder(suffix=_END_OF_WORD)
  tokenizer.add_special_tokens(["<unk>"])
  newline = f"\n{_END_OF_WORD}"
  if newline not in vocabulary:
    raise UserError("the vocabulary has no newline piece to use as end-of-sequence", expected=repr(newline))
  return tokenizer, SpecialNames(eos=newline, unk="<unk>")


def _begins_word(piece: str) -> bool:
  return piece.startswith(_BLANKS)


def _any_piece(piece: str) -> bool:
  """Returns True: GPT's pieces mark where a word ends, not where it starts, so each counts as a word."""
  del piece
  return True


def _read_pieces(path: Path) -> dict[str, int]:
  try:
    vocabulary = storage.read_json(path)
  except ValueError as error:
    raise UserError(f"{path} is not a vocab.json", because=error, expected=_PIECES) from None
  if not all(isinstance(token, int) for token in vocabulary.values()):
    raise UserError(f"{path} is not a vocab.json", expected=_PIECES)
  return vocabulary


def _read_merges(path: Path) -> list[tuple[str, str]]:
  if not path.is_file():
    raise UserError("the merges of a byte-pair vocabulary are missing", file=path)
  lines = path.read_text(encoding="utf-8").split("\n")
  pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
  if any(len(pair) != 2 for pair in pairs):
    raise UserError(f"{path} is not a merges file", expected="two pieces per line")
  return pairs
