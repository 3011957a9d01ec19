"""The tokens around texts that a model expects: its start, opening and padding, and codes of languages (mBART)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.models.config import TransformerConfig
from t5like.objectives import SpecialTokens
from t5like.vocabularies import Vocabulary

Languages = Mapping[str, tuple[str, str]]  # codes of inputs and targets, by task or corpus


def task_languages(experiment: Experiment | None) -> Languages:
  """Returns the codes of a run's tasks; the first are those of TASK, if it has any."""
  given = experiment.languages if experiment is not None else {}
  pairs = {task: (codes, codes) if isinstance(codes, str) else tuple(codes) for task, codes in given.items()}
  return dict(sorted(pairs.items(), key=lambda entry: entry[0] != experiment.task)) if pairs else {}


def languages_of_files(config: TransformerConfig, vocabulary: Vocabulary, decoding: Mapping[str, Any]) -> Languages:
  """Returns the codes of an imported model: around its tokenizer's texts, and what its outputs start with."""
  if not (codes := vocabulary.language_ids):
    return {}
  around = [token for part in vocabulary.template or () for token in part if token in codes]
  starts = [token for token in (decoding.get("forced_first"), config.start_id) if token in codes]
  return {"": (vocabulary.piece(around[0]), vocabulary.piece(starts[0]))} if around and starts else {}


def special_tokens(config: TransformerConfig, vocabulary: Vocabulary, languages: Languages) -> SpecialTokens:
  """Returns the vocabulary's special tokens with those of the model; the codes are those of the first language."""
  ids = {task: tuple(_code(name, vocabulary) for name in codes) for task, codes in languages.items()}
  special = SpecialTokens.of(vocabulary)
  return dataclasses.replace(
    special,
    mask=None if special.mask is not None and special.mask >= config.vocab_size else special.mask,
    start_id=config.start_id,
    padding=config.padding_id,
    opening=config.opening_id,
    codes=next(iter(ids.values()), None),
    codes_by_task=ids,
  )


def check_languages(languages: Sequence[str], vocabulary: Vocabulary) -> tuple[str, str]:
  """Returns the codes of inputs and outputs; raises UserError if the vocabulary does not have them."""
  if isinstance(languages, str) or len(languages) != 2:
    raise UserError(f"invalid languages: {languages!r}", expected="codes of inputs and outputs: ('en_XX', 'ro_RO')")
  for name in languages:
    _code(name, vocabulary)
  return tuple(languages)


def _code(name: str, vocabulary: Vocabulary) -> int:
  ids = vocabulary.encode(name)
  if len(ids) != 1 or ids[0] not in vocabulary.special_ids:
    known = sorted(piece for token in vocabulary.special_ids if "_" in (piece := vocabulary.piece(token)))
    raise UserError(
      f"the vocabulary has no language code {name!r}", known=" ".join(known[:60]), expected="a special token: en_XX"
    )
  return ids[0]
