"""Gives a model that reads words as characters (ELMo) the spelling of its vocabulary's words."""

from __future__ import annotations

import flax.linen as nn
import numpy as np

from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.models.recurrent import CharacterTable, ELMo
from t5like.vocabularies import SpelledWords, Vocabulary
from t5like.vocabularies.characters import spell_words


def with_characters(model: nn.Module, vocabulary: Vocabulary) -> nn.Module:
  """Returns the model with the characters of a vocabulary; as it is if it reads none, or if batches have them.

  Ids are all that a token cache holds, so unknown words are spelled alike: `<UNK>`.
  """
  backbone = getattr(model, "backbone", model)
  if not isinstance(backbone, ELMo) or isinstance(vocabulary, SpelledWords):
    return model
  if not vocabulary.has_whole_words:
    raise UserError(
      "ELMo reads whole words, and the vocabulary has pieces of words",
      expected="a text file with one word per line, among them <S>, </S> and <UNK> in the first three",
    )
  words = [vocabulary.piece(token) for token in range(vocabulary.vocab_size)]
  ids = spell_words(words, backbone.config.chars_per_word).astype(np.uint16)
  # Rows of the embedding beyond the vocabulary do not occur.
  spelled = backbone.clone(characters=CharacterTable(vocabulary.fingerprint, ids))
  return spelled if model is backbone else model.clone(backbone=spelled)


def spelled(experiment: Experiment, vocabulary: Vocabulary) -> Experiment:
  """Returns the experiment with the model of `with_characters`."""
  model = with_characters(experiment.model, vocabulary)
  return experiment if model is experiment.model else experiment.changed(model=model)
