"""BERT's WordPiece (Devlin et al. 2018), cased and uncased. Ids equal those of Hugging Face's BertTokenizer."""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from t5like.errors import UserError
from t5like.vocabularies.base import fingerprint_of
from t5like.vocabularies.subwords import SpecialNames, SubwordVocabulary
from t5like.vocabularies.tokenizer_config import tokenizer_settings

_CONTINUES = "##"
# BERT splits words at white space first; all libraries agree on these characters.
WORDS = re.compile(r"[^ \t\n\r]+")
# A sequence ends with [SEP], so this is the end-of-sequence.
_NAMES = SpecialNames(pad="[PAD]", eos="[SEP]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")


def load_wordpiece(path: str | Path, lower_case: bool | None = None) -> SubwordVocabulary:
  """Loads a file with one piece per line; the line number is the id.

  Text is lower-cased and its accents are stripped according to `lower_case`; if that is None, according to
  tokenizer_config.json next to the file, or else if no piece has capitals.
  """
  path = Path(path).expanduser()
  file = path.read_bytes()
  pieces = file.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
  vocabulary = {piece.rstrip("\r"): token for token, piece in enumerate(pieces)}
  missing = [name for name in _NAMES.all() if name not in vocabulary]
  if missing:
    raise UserError(
      f"{path} is not a BERT vocabulary: {', '.join(missing)} missing", expected="one WordPiece per line, as in BERT's"
    )
  settings = tokenizer_settings(path)
  if str(settings.get("tokenizer_class")).startswith("BertJapanese"):
    raise UserError(f"{path} is of a BertJapaneseTokenizer, which finds words with MeCab: it is not supported")
  if lower_case is None:
    lower_case = settings.get("do_lower_case", not _has_capitals(vocabulary))
  split_chinese = settings.get("tokenize_chinese_chars", True)
  strip_accents = settings.get("strip_accents")  # None: as lower_case
  tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_NAMES.unk, continuing_subword_prefix=_CONTINUES))
  tokenizer.normalizer = normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=split_chinese,
    strip_accents=strip_accents,
    lowercase=lower_case,
  )
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece(prefix=_CONTINUES)
  tokenizer.add_special_tokens(_NAMES.all())
  ends = ((_NAMES.sep, vocabulary[_NAMES.sep]), (_NAMES.cls, vocabulary[_NAMES.cls]))
  tokenizer.post_processor = processors.BertProcessing(*ends)
  fingerprint = fingerprint_of("wordpiece", file, lower_case, split_chinese, strip_accents)
  reload, files = (load_wordpiece, (path, lower_case)), {"vocab.txt": path}
  settings = {"do_lower_case": lower_case, "tokenize_chinese_chars": split_chinese, "strip_accents": strip_accents}
  return SubwordVocabulary(tokenizer, _NAMES, _begins_word, path, fingerprint, reload, WORDS, files, settings)


def _begins_word(piece: str) -> bool:
  return not piece.startswith(_CONTINUES)


def _has_capitals(vocabulary: dict[str, int]) -> bool:
  return any(piece != piece.lower() for piece in vocabulary if not piece.startswith("["))
