"""Trains a SentencePiece vocabulary with T5's conventions: pad 0, eos 1, unk 2, no bos."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import lzma
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

import sentencepiece

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.source_files import check_is_file
from t5like.vocabularies.base import Vocabulary, well_formed
from t5like.vocabularies.sentencepiece import SentencePieceVocabulary

MODEL_TYPES = ("unigram", "bpe", "char", "word")
_MAX_CHARACTERS = 2_000  # of a sentence: SentencePiece skips those above 4,192 bytes
_THREADS = 4  # fixed, because the resulting pieces depend on the number of threads


@dataclasses.dataclass(frozen=True)
class VocabularyReport:
  """Statistics of a vocabulary on its training sentences."""

  sentences: int
  coverage: float  # fraction of non-space characters that are not unknown
  tokens_per_word: float
  characters_per_token: float


def train_sentencepiece(
  texts: Iterable[str],
  size: int,
  out: str | Path,
  model_type: str = "unigram",
  byte_fallback: bool = False,
  character_coverage: float = 0.9995,
  max_sentences: int = 1_000_000,
  seed: int = 0,
) -> tuple[SentencePieceVocabulary, VocabularyReport]:
  """Trains a model of `size` pieces and writes it to `out`; equal texts and settings give an identical file.

  At most `max_sentences` sentences are used, a random sample if there are more. `byte_fallback` encodes
  characters outside the vocabulary as bytes, so that nothing is unknown, at the cost of 256 pieces.
  """
  sample = sample_sentences(texts, max_sentences, seed)
  if not sample:
    raise UserError("no text to train a vocabulary on")
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sample), model_writer=model, vocab_size=size, model_type=model_type,
      pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=byte_fallback, character_coverage=character_coverage,
      normalization_rule_name="nmt_nfkc", num_threads=_THREADS, minloglevel=2,
    )  # fmt: skip
  except RuntimeError as error:
    raise _refusal(error, size, len(sample)) from None
  out = storage.as_path(out)
  out.parent.mkdir(parents=True, exist_ok=True)
  out.write_bytes(model.getvalue())
  vocabulary = SentencePieceVocabulary(storage.local_copy(out))
  return vocabulary, measure(vocabulary, sample)


def sample_sentences(texts: Iterable[str], count: int, seed: int = 0) -> list[str]:
  """Returns lines of the texts, long ones split between words; a uniform sample of `count` if there are more."""
  chosen = random.Random(seed)
  kept: list[str] = []
  for number, sentence in enumerate(_sentences(texts)):
    if number < count:
      kept.append(sentence)
    elif (index := chosen.randrange(number + 1)) < count:
      kept[index] = sentence
  return kept


def read_texts(path: str | Path, field: str = "text") -> Iterator[str]:
  """Yields the `field` of every line of JSON Lines (.jsonl, .json), or the lines of a text file; also .gz and .xz."""
  path = storage.as_path(path)
  check_is_file(path)
  opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, _as_text)
  is_json = any(ending in (".jsonl", ".json") for ending in path.suffixes)
  try:
    with path.open("rb") as file, opener(file, "rt", encoding="utf-8", errors="replace") as lines:
      for number, line in enumerate(lines, 1):
        yield _read_field(line, field, f"{path}:{number}") if is_json else line
  except (OSError, EOFError, lzma.LZMAError) as error:
    raise UserError(f"cannot read {path}", because=error) from None


def _as_text(file: BinaryIO, mode: str, encoding: str, errors: str) -> TextIO:
  del mode
  return io.TextIOWrapper(file, encoding, errors)


def _read_field(line: str, field: str, where: str) -> str:
  try:
    text = storage.parse_json(line)[field]
  except (ValueError, KeyError) as error:
    raise UserError(
      f"a line is not a JSON object with {field!r}", file=where, because=f"{type(error).__name__}: {error}"
    ) from None
  if not isinstance(text, str):
    raise UserError(f"the field {field!r} is not a string", file=where, value=repr(text)[:100])
  return text


def _sentences(texts: Iterable[str]) -> Iterator[str]:
  for line in itertools.chain.from_iterable(text.split("\n") for text in texts):
    line = well_formed(line).replace("\0", "").strip()
    while len(line) > _MAX_CHARACTERS:
      cut = line.rfind(" ", 1, _MAX_CHARACTERS)
      cut = cut if cut > 0 else _MAX_CHARACTERS
      yield line[:cut]
      line = line[cut:].lstrip()
    if line:
      yield line


def _refusal(error: RuntimeError, size: int, sentences: int) -> UserError:
  message = str(error).split("\n")[0]
  if "too high" in message or "too small" in message:
    limit = re.findall(r"[0-9]+", message.partition("value")[2])
    return UserError(
      f"cannot train a vocabulary of {size} pieces on {sentences} sentences",
      because=message,
      try_=f"--size={limit[-1]}, or more text" if limit else "another --size, or more text",
    )
  return UserError("SentencePiece training failed", because=message)


def measure(vocabulary: Vocabulary, sample: list[str], most: int = 20_000) -> VocabularyReport:
  """Returns statistics on a sample of sentences, of which at most `most` are encoded."""
  measured = sample[:: max(1, len(sample) // most)]
  tokens = unknown = 0
  for sentence in measured:
    ids, spans = vocabulary.encode_with_offsets(sentence)
    tokens += len(ids)
    unknown += sum(end - start for token, (start, end) in zip(ids, spans, strict=True) if token == vocabulary.unk_id)
  words = [word for sentence in measured for word in sentence.split()]
  characters = sum(map(len, words))
  return VocabularyReport(
    sentences=len(sample),
    coverage=1 - unknown / max(characters, 1),
    tokens_per_word=tokens / max(len(words), 1),
    characters_per_token=sum(map(len, measured)) / max(tokens, 1),
  )
