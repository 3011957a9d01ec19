"""Finds a model's vocabulary: the requested one, the run's, the one next to the weights, or a published one."""

from __future__ import annotations

from pathlib import Path

from t5like.errors import UserError
from t5like.files import storage
from t5like.models.config import TransformerConfig
from t5like.vocabularies import Vocabulary, copied_vocabulary, load_vocabulary, vocabulary_in

# Vocabularies of published checkpoints, by the number of embedding rows.
PUBLISHED = {
  32128: "t5", 32100: "t5", 250112: "mt5", 384: "byte", 30522: "bert_uncased", 28996: "bert_cased", 50257: "gpt2",
  50265: "roberta", 40478: "gpt1",
}  # fmt: skip
TOKENIZER = "tokenizer.json"
_TRY = "--vocabulary=NAME_OR_FILE, as in the model's training"


def find_vocabulary(
  folder: Path, config: TransformerConfig, given: str | None = None, own: str | None = None
) -> tuple[str, Vocabulary]:
  """Returns the vocabulary's name or file, and the vocabulary.

  `given`, by the user, takes precedence over `own`, from the model's configuration, which is not trusted: nothing is
  downloaded for it.
  """
  name, vocabulary = _load(folder, config, given, own)
  if vocabulary.vocab_size > config.vocab_size:
    raise UserError(
      f"the vocabulary {name} has {vocabulary.vocab_size:,} ids, the model's embedding {config.vocab_size:,} rows",
      try_=_TRY,
    )
  return name, vocabulary


def _load(folder: Path, config: TransformerConfig, given: str | None, own: str | None) -> tuple[str, Vocabulary]:
  if given:
    return given, load_vocabulary(given)
  problems = []
  for name in _candidates(folder, config, own):
    try:
      return name, load_vocabulary(name)
    except UserError as error:  # a file may have moved or be incomplete
      problems.append(error.what)
  if own and storage.is_remote(own):
    problems.append(f"its VOCABULARY is {own}, which is not downloaded automatically")
  raise UserError(
    f"no vocabulary for the model in {folder}",
    because="\n".join(problems) or f"no published model has {config.vocab_size:,} ids",
    looked=f"{folder} for spiece.model, vocab.txt, vocab.json with merges.txt, {TOKENIZER}",
    try_=f"--vocabulary={own}" if own and storage.is_remote(own) else _TRY,
  )


def _candidates(folder: Path, config: TransformerConfig, own: str | None) -> list[str]:
  """Returns names to try, most reliable first."""
  names = []
  if own:
    names += filter(None, [copied_vocabulary(own, folder), None if storage.is_remote(own) else own])
  if nearby := vocabulary_in(folder):
    names += [str(nearby), *([str(folder / TOKENIZER)] if (folder / TOKENIZER).is_file() else [])]
  if not names and not own and config.vocab_size in PUBLISHED:
    names.append(PUBLISHED[config.vocab_size])
  return list(dict.fromkeys(names))
