"""Trains WordPiece with BERT's conventions and byte-level BPE with GPT-2's, as folders that Hugging Face reads, too."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from t5like.errors import UserError
from t5like.files import storage
from t5like.vocabularies.base import Vocabulary
from t5like.vocabularies.catalogue import load_vocabulary
from t5like.vocabularies.tokenizer_config import SETTINGS
from t5like.vocabularies.training import VocabularyReport, measure, sample_sentences

_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_END_OF_TEXT = "<|endoftext|>"
_CHARACTERS = 1000  # of WordPiece; others are unknown
_MIN_FREQUENCY = 2


def train_wordpiece(
  texts: Iterable[str],
  size: int,
  out: str | Path,
  lower_case: bool = True,
  max_sentences: int = 1_000_000,
  seed: int = 0,
) -> tuple[Vocabulary, VocabularyReport]:
  """Writes vocab.txt with `size` pieces to the folder `out`; equal texts and settings give an identical file.

  [PAD] is 0, followed by [UNK], [CLS], [SEP] and [MASK]. `lower_case` also strips accents.
  """
  sample = _sample(texts, max_sentences, seed)
  tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  characters = _characters(tokenizer.normalizer, sample)
  # As the first pieces, or the trainer would number those with ## in an order that differs from run to run.
  first = [*_BERT, *characters, *(f"##{character}" for character in characters)]
  trainer = trainers.WordPieceTrainer(
    vocab_size=size, special_tokens=first, min_frequency=_MIN_FREQUENCY, initial_alphabet=characters,
    limit_alphabet=len(characters), show_progress=False,
  )  # fmt: skip
  pieces = _train(tokenizer, trainer, sample, size)
  settings = {"do_lower_case": lower_case, "tokenize_chinese_chars": True, "strip_accents": None}
  return _written(out, {"vocab.txt": "".join(f"{p}\n" for p in pieces), SETTINGS: json.dumps(settings)}, sample)


def train_byte_bpe(
  texts: Iterable[str], size: int, out: str | Path, max_sentences: int = 1_000_000, seed: int = 0
) -> tuple[Vocabulary, VocabularyReport]:
  """Writes vocab.json and merges.txt with `size` pieces to the folder `out`; nothing is unknown.

  The last piece is <|endoftext|>, which ends a document. There is no padding token, as in GPT-2.
  """
  sample = _sample(texts, max_sentences, seed)
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=size - 1, min_frequency=_MIN_FREQUENCY, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )  # fmt: skip
  pieces = [*_train(tokenizer, trainer, sample, size - 1), _END_OF_TEXT]
  merges = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
  files = {
    "vocab.json": json.dumps({piece: number for number, piece in enumerate(pieces)}, ensure_ascii=False),
    "merges.txt": "#version: 0.2\n" + "".join(f"{first} {second}\n" for first, second in merges),
  }
  return _written(out, files, sample)


def _sample(texts: Iterable[str], count: int, seed: int) -> list[str]:
  sample = sample_sentences(texts, count, seed)
  if not sample:
    raise UserError("no text to train a vocabulary on")
  return sample


def _characters(normalizer: normalizers.Normalizer, sample: list[str]) -> list[str]:
  counts = collections.Counter()
  for sentence in sample:
    counts.update(normalizer.normalize_str(sentence))
  kept = sorted(counts, key=lambda character: (-counts[character], character))
  return [character for character in kept if not character.isspace()][:_CHARACTERS]


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer, sample: list[str], size: int) -> list[str]:
  """Returns the pieces by id; raises UserError if the text has fewer or needs more."""
  tokenizer.train_from_iterator(sample, trainer)
  pieces = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
  if len(pieces) != size:
    what = "too few words that repeat" if len(pieces) < size else "more characters"
    raise UserError(
      f"cannot train a vocabulary of {size} pieces on {len(sample)} sentences",
      because=f"they have {what}",
      try_=f"--size={len(pieces)}, or {'more' if len(pieces) < size else 'other'} text",
    )
  return pieces


def _written(out: str | Path, files: dict[str, str], sample: list[str]) -> tuple[Vocabulary, VocabularyReport]:
  folder = storage.as_path(out)
  folder.mkdir(parents=True, exist_ok=True)
  for name, text in files.items():
    storage.write_atomic(folder / name, text)
  vocabulary = load_vocabulary(str(folder))
  return vocabulary, measure(vocabulary, sample)
