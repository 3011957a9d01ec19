"""Loads vocabularies by name or path."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from pathlib import Path

from t5like.errors import UserError, nearest
from t5like.files import storage
from t5like.vocabularies.base import Vocabulary
from t5like.vocabularies.byte import ByteVocabulary
from t5like.vocabularies.sentencepiece import LLAMA_FILE, SentencePieceVocabulary
from t5like.vocabularies.spelled import SpelledWords
from t5like.vocabularies.tokenizer_config import SETTINGS, added_tokens

EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
EMBEDDED = {
  "t5": EMBEDDED_FOLDER / "t5.model",  # 32,000 pieces, the vocabulary of all English T5 checkpoints
  "tiny": EMBEDDED_FOLDER / "tiny.model",  # 4,000 pieces of the embedded data, for the quickstart
  "bert_uncased": EMBEDDED_FOLDER / "bert_uncased.txt",
  "bert_cased": EMBEDDED_FOLDER / "bert_cased.txt",
  "gpt2": EMBEDDED_FOLDER / "gpt2.json",
  "roberta": EMBEDDED_FOLDER / "roberta.json",
}
BYTE = "byte"
SPELLED = "spelled"  # any words, for a model that reads their characters
# Known vocabularies that are not included (too large, or for license reasons), and what to download.
NOT_INCLUDED = {
  "mt5": "spiece.model of google/mt5-small, or gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model",
  "gpt1": "vocab.json and merges.txt of openai-community/openai-gpt",
  "llama2": "tokenizer.json (or tokenizer.model) and tokenizer_config.json of meta-llama/Llama-2-7b-hf",
  "llama3": "tokenizer.json and tokenizer_config.json of meta-llama/Meta-Llama-3-8B",
  "mistral": "tokenizer.json (or tokenizer.model) and tokenizer_config.json of mistralai/Mistral-7B-v0.1",
  "olmo2": "tokenizer.json and tokenizer_config.json of allenai/OLMo-2-1124-7B",
  "opt": "vocab.json, merges.txt and tokenizer_config.json of facebook/opt-125m",
  "elmo": "elmo.txt with one word per line, of which </S>, <S> and <UNK> are the first: vocab-2016-09-10.txt of ELMo",
  "bloom": "tokenizer.json and tokenizer_config.json of bigscience/bloom-560m",
}
NAMES = (*EMBEDDED, BYTE, SPELLED, *NOT_INCLUDED)

SEARCH_VARIABLE = "T5LIKE_VOCABULARIES"
DEFAULT_SEARCH_PATH = "~/.cache/t5like/vocabularies"
# Vocabulary files in a folder, in order of preference.
_TOKENIZER = "tokenizer.json"
FILES = (
  "sentencepiece.model", "spiece.model", "vocab.txt", "vocab.json", _TOKENIZER, LLAMA_FILE, "itos.json", "itos.txt",
)  # fmt: skip
ENDINGS = ("", ".model", ".txt", ".json")  # of a name on the search path
_WITH_TOKENIZER_JSON = FILES[:4]  # files next to which a tokenizer.json may say more
# Texts on which files of published models agree: digits, accents, capitals, contractions, other scripts.
_PROBES = ("In 1999 it's 3.14%: naïve café ÀÉ, Grüße.", "MiXeD CaSe don't stop", "日本 and Москва")
_COMPANIONS = ("merges.txt", SETTINGS)  # optional files next to them
_SHOWN = 5  # names in a message
_OPTION = ":extra_ids="


def search_path() -> list[Path]:
  """Returns the folders to search for vocabularies that are not embedded."""
  listed = os.environ.get(SEARCH_VARIABLE, "").split(os.pathsep)
  return [Path(folder).expanduser() for folder in (*listed, DEFAULT_SEARCH_PATH) if folder]


def split_name(name: str) -> tuple[str, str]:
  """Splits a vocabulary's name and its option: "t5:extra_ids=200" is "t5" and ":extra_ids=200"."""
  base, option, number = name.partition(_OPTION)
  return base, option + number


def vocabulary_path(name: str) -> Path:
  """Returns the file of a vocabulary: an embedded one, a path, or one on the search path."""
  name, _ = split_name(name)
  if name in EMBEDDED:
    return EMBEDDED[name]
  if storage.is_remote(name):
    return _fetched(name)
  candidates = [Path(name).expanduser()]
  if not Path(name).is_absolute():
    candidates += [folder / f"{name}{ending}" for folder in search_path() for ending in ENDINGS]
  if name.endswith(".pkl"):
    raise UserError(
      f"{name} is a pickle, which could execute anything: it is not read",
      expected="the same list of words as JSON, or as text with one word per line",
      try_='if you trust the file: python -c "import json, pickle, sys; '
      f"json.dump(list(pickle.load(open(sys.argv[1], 'rb'))), open('itos.json', 'w'))\" {name}",
    )
  for candidate in candidates:
    path = vocabulary_in(candidate) if candidate.is_dir() else candidate
    if path is not None and path.is_file():
      return path
  raise _unknown(name)


def _fetched(name: str) -> Path:
  """Copies a remote vocabulary and its companion files to this machine; returns the local path."""
  storage.check_reachable(name, "VOCABULARY")
  given = storage.as_path(name)
  path = given if given.is_file() else vocabulary_in(given)
  if path is None:
    raise _unknown(name)
  for companion in _COMPANIONS:
    with contextlib.suppress(FileNotFoundError):
      storage.local_copy(path.with_name(companion))
  return storage.local_copy(path)


def vocabulary_in(folder: Path) -> Path | None:
  """Returns the vocabulary file of a folder, such as a downloaded model, or None.

  Added tokens, other rules to split text, and what a tokenizer puts before it are in tokenizer.json, not in the other
  files. Without them, text would be tokenized differently than in training, and an added end-of-sequence would never
  be found.
  """
  path = next((folder / file for file in FILES if (folder / file).is_file()), None)
  if path is None or path.name == _TOKENIZER:
    return path
  if (folder / _TOKENIZER).is_file() and path.name in _WITH_TOKENIZER_JSON:
    return folder / _TOKENIZER if _encodes_otherwise(path, folder / _TOKENIZER) else path
  if not (missing := _missing_tokens(path)):
    return path
  raise UserError(
    f"{folder} adds {len(missing)} tokens that are not in its {path.name}",
    tokens=" ".join(missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else ""),
    try_=f"write {_TOKENIZER} with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder); "
    f"or ignore them: --vocabulary={path}",
  )


def _encodes_otherwise(path: Path, tokenizer: Path) -> bool:
  """Whether tokenizer.json encodes text in another way than the vocabulary file next to it."""
  files = (path, tokenizer, path.with_name(SETTINGS), path.with_name("merges.txt"))
  stamps = tuple(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)
  return _compare_encodings(path, tokenizer, stamps)


@functools.cache
def _compare_encodings(path: Path, tokenizer: Path, stamps: tuple[int, ...]) -> bool:
  from t5like.vocabularies.tokenizer_json import load_tokenizer_json

  try:
    theirs = load_tokenizer_json(tokenizer)
  except UserError:
    return False  # a damaged file, which is not needed
  own = load_vocabulary(str(path))
  # Texts of padding and ends are plain for some, and one may have been added for padding alone.
  named = {theirs.pad_id, own.pad_id, own.unk_id, own.bos_id, own.eos_id, own.cls_id, own.sep_id}
  added = {token: piece.content for token, piece in theirs.tokenizer.get_added_tokens_decoder().items()}
  if any(own.encode(text) != [token] for token, text in added.items() if token not in named):
    return True
  first = own.bos_id if own.opens_texts else None if own.cls_last else own.cls_id
  if theirs.template is not None and theirs.template[0][:1] != (() if first is None else (first,)):
    return True
  return any(own.encode(text) != theirs.encode(text) for text in _PROBES)


def _missing_tokens(path: Path) -> list[str]:
  """Returns tokens added in a folder that are not in its vocabulary file (SentencePiece's sentinels aside)."""
  added = added_tokens(path)
  if not added:
    return []
  own = load_vocabulary(str(path))
  return [name for name, token in added.items() if token >= own.vocab_size]


def load_vocabulary(name: str, extra_ids: int | None = None) -> Vocabulary:
  """Loads a vocabulary by name, file or folder.

  `extra_ids` is the number of sentinels to add, for SentencePiece (default 100, as in T5, unless the
  model has its own) and bytes (default 125, as in ByT5). It can be part of the name: `t5:extra_ids=200`.
  """
  base, option, number = name.partition(_OPTION)
  if option and extra_ids is None:
    if not number.isdigit():
      raise UserError(f"invalid extra_ids in {name!r}", expected="a number, such as t5:extra_ids=200")
    extra_ids = int(number)
  if base == BYTE:
    return ByteVocabulary(extra_ids)
  if base == SPELLED:
    return SpelledWords()
  if base in EMBEDDED:
    return _load_once(base, EMBEDDED[base], extra_ids)
  return _load_file(base, vocabulary_path(base), extra_ids)


def _load_file(name: str, path: Path, extra_ids: int | None) -> Vocabulary:
  kind = _kind(path)
  if kind == "sentencepiece":
    return SentencePieceVocabulary(path, extra_ids)
  if extra_ids:
    raise UserError(f"the vocabulary {name!r} does not support extra_ids", expected="a SentencePiece model, or byte")
  return _load_subwords(path, kind)


_load_once = functools.cache(_load_file)  # other files may change while a program runs


def name_of(vocabulary: Vocabulary) -> str:
  """Returns the name from which `load_vocabulary` loads this vocabulary, on a machine that has its file."""
  if isinstance(vocabulary, ByteVocabulary):
    return f"{BYTE}{_OPTION}{vocabulary.extra_ids}"
  if isinstance(vocabulary, SpelledWords):
    return SPELLED
  name = next((name for name, path in EMBEDDED.items() if path == vocabulary.path), str(vocabulary.path.absolute()))
  option = f"{_OPTION}{vocabulary.extra_ids}" if isinstance(vocabulary, SentencePieceVocabulary) else ""
  return f"{name}{option}"


def _kind(path: Path) -> str:
  if path.suffix in (".txt", ".json") and _has_words(path):
    return "words"
  if path.suffix == ".txt":
    return "wordpiece"
  if path.suffix == ".json":
    return "tokenizer" if path.name == _TOKENIZER else "bpe"
  return "sentencepiece"


def _has_words(path: Path) -> bool:
  """Whether a file is a JSON list of texts, or names unknown words as fastai or ELMo do in its first lines."""
  with path.open("rb") as file:
    start = file.read(256)
  if path.suffix == ".json":
    return re.match(rb'\s*\[\s*"', start) is not None
  return any(name.encode() in start.split() for name in ("xxunk", "<UNK>"))


def _load_subwords(path: Path, kind: str) -> Vocabulary:
  from t5like.vocabularies import bpe, tokenizer_json, wordpiece, words  # not needed for T5

  if kind == "words":
    return words.load_words(path)
  if kind == "wordpiece":
    return wordpiece.load_wordpiece(path)
  if kind == "tokenizer":
    return tokenizer_json.load_tokenizer_json(path)
  if path.parent == EMBEDDED_FOLDER:
    return bpe.load_bpe(path, EMBEDDED_FOLDER / "gpt2.merges.txt")  # RoBERTa uses GPT-2's merges
  return bpe.load_bpe(path, path.with_name("merges.txt"))


def _unknown(name: str) -> UserError:
  searched = ", ".join(map(str, search_path()))
  if name in NOT_INCLUDED:
    return UserError(
      f"the vocabulary {name!r} is not included in t5like",
      needs=NOT_INCLUDED[name],
      try_=f"put it into a folder {name} in one of: {searched}",
    )
  return UserError(
    f"vocabulary not found: {name!r}",
    expected="a name, a file, or a folder with one of " + ", ".join(FILES),
    nearest=nearest(name, NAMES),
    known=", ".join(NAMES),
    searched=f"{searched}  (${SEARCH_VARIABLE} adds folders)",
  )
