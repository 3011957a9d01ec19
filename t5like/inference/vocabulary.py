"""Finds a model's vocabulary: the requested one, the run's, the one next to the weights, or a published one."""

from __future__ import annotations

from pathlib import Path

from t5like.errors import UserError
from t5like.experiments.compatibility import fits_embedding
from t5like.files import storage
from t5like.models.config import TransformerConfig
from t5like.vocabularies import Vocabulary, copied_vocabulary, load_vocabulary, split_name, vocabulary_in

# Vocabularies of published checkpoints, by the number of embedding rows.
PUBLISHED = {
  32128: "t5", 32100: "t5", 250112: "mt5", 384: "byte", 30522: "bert_uncased", 28996: "bert_cased", 50257: "gpt2",
  50265: "roberta", 40478: "gpt1",
}  # fmt: skip
TOKENIZER = "tokenizer.json"
_ONLY_IN_TOKENIZER_JSON = ("spm.model", "sentencepiece.bpe.model")  # DeBERTa's; XLM-R's and mBART's
_SPM_HINT = f"write {TOKENIZER} with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
_TRY = "--vocabulary=NAME_OR_FILE, as in the model's training"


def find_vocabulary(
  folder: Path, config: TransformerConfig, given: str | None = None, own: str | None = None
) -> tuple[str, Vocabulary]:
  """Returns the vocabulary's name or file, and the vocabulary.

  `given`, by the user, takes precedence over `own`, from the model's configuration, which is not trusted: nothing is
  downloaded for it.
  """
  name, vocabulary = _load(folder, config, given, own)
  if not fits_embedding(config, vocabulary):
    added = vocabulary.extra_ids if vocabulary.vocab_size - vocabulary.extra_ids <= config.vocab_size else 0
    raise UserError(
      f"the vocabulary {name} has {vocabulary.vocab_size:,} ids, the model's embedding {config.vocab_size:,} rows",
      because=f"{added} sentinels were added, as for T5" if added else "",
      try_=f"--vocabulary={split_name(name)[0]}:extra_ids=0" if added else _TRY,
    )
  return name, vocabulary


def published_vocabulary(config: TransformerConfig) -> str | None:
  """Returns the vocabulary of the published models of this size, if there is one."""
  if config.positions in ("disentangled", "transformer_xl"):  # DeBERTa has as many ids as RoBERTa, and others
    return None
  return PUBLISHED.get(config.vocab_size)


def _load(folder: Path, config: TransformerConfig, given: str | None, own: str | None) -> tuple[str, Vocabulary]:
  if given:
    return given, load_vocabulary(given)
  problems = []
  names = _candidates(folder, config, own)
  for name in names:
    try:
      vocabulary = load_vocabulary(name)
    except UserError as error:  # a file may have moved or be incomplete
      problems.append(error.what)
      continue
    # ALBERT's spiece.model, to which sentinels would be added: tokenizer.json has its ids.
    if fits_embedding(config, vocabulary) or name == names[-1]:
      return name, vocabulary
  if own and storage.is_remote(own):
    problems.append(f"its VOCABULARY is {own}, which is not downloaded automatically")
  raise UserError(
    f"no vocabulary for the model in {folder}",
    because="\n".join(problems) or f"no published model has {config.vocab_size:,} ids",
    looked=f"{folder} for spiece.model, vocab.txt, vocab.json with merges.txt, {TOKENIZER}, tokenizer.model, itos.json",
    hint=_SPM_HINT if any((folder / name).is_file() for name in _ONLY_IN_TOKENIZER_JSON) else "",
    try_=f"--vocabulary={own}" if own and storage.is_remote(own) else _TRY,
  )


def _candidates(folder: Path, config: TransformerConfig, own: str | None) -> list[str]:
  """Returns names to try, most reliable first."""
  names = []
  if own:
    names += filter(None, [copied_vocabulary(own, folder), None if storage.is_remote(own) else own])
  if nearby := vocabulary_in(folder):
    names += [str(nearby), *([str(folder / TOKENIZER)] if (folder / TOKENIZER).is_file() else [])]
  if not names and not own and (published := published_vocabulary(config)):
    names.append(published)
  return list(dict.fromkeys(names))
