"""Prompts: the special tokens around a text, and the batch that a model reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import numpy as np

from t5like.experiments.experiment import Experiment
from t5like.inference.batching import BatchShape
from t5like.models.config import TransformerConfig
from t5like.objectives import SpecialTokens
from t5like.vocabularies import Vocabulary
from t5like.vocabularies.subwords import SubwordVocabulary


@dataclasses.dataclass(frozen=True)
class PromptForm:
  """The special tokens around a prompt, the same as in training."""

  start: int | None  # precedes a decoder's prompt
  end: int | None  # follows the text
  alone: int  # the prompt for a text without tokens, where there is neither start nor end

  def tokens(self, text: list[int]) -> list[int]:
    """Returns a prompt of at least one token."""
    around = ([] if self.start is None else [self.start], [] if self.end is None else [self.end])
    return [*around[0], *text, *around[1]] or [self.alone]


def is_trained_elsewhere(experiment: Experiment | None) -> bool:
  """Whether the model comes from Hugging Face or T5X, converted or not: how it was trained is not known."""
  return experiment is None or not experiment.task


def prompt_form(model: nn.Module, vocabulary: Vocabulary, experiment: Experiment | None) -> PromptForm:
  """Returns the form of a model's prompts.

  BERT reads text between [CLS] and [SEP], T5 text that is closed by end-of-sequence. A T5 from elsewhere with BERT's or
  RoBERTa's kind of vocabulary (CodeT5) has [CLS] before its text, too. A decoder reads what its training put before an
  answer.
  """
  special, elsewhere = SpecialTokens.of(vocabulary), is_trained_elsewhere(experiment)
  eos = special.eos
  if model.batch_layout == "encoder":
    return PromptForm(special.cls, special.sep, eos)
  if model.batch_layout == "encoder_decoder":
    closed = elsewhere or experiment.objective is None or experiment.objective.closed
    opened = elsewhere and isinstance(vocabulary, SubwordVocabulary)
    return PromptForm(special.cls if opened else None, eos if closed else None, eos)
  if elsewhere:
    return PromptForm(None, None, eos)  # as Hugging Face's GPT-2: documents are separated by end-of-text
  objective = experiment.objective
  if objective is None:
    return PromptForm(special.start, eos, eos)
  has_inputs = objective.lengths(512).inputs > 0
  return PromptForm(None if objective.shifted else special.start, eos if has_inputs and objective.closed else None, eos)


def position_limit(config: TransformerConfig) -> int | None:
  """The number of learned positions; None where a model's positions have no limit."""
  return config.max_positions if config.positions == "learned" else None


def prompt_batch(layout: str, texts: Sequence[Sequence[int]], shape: BatchShape) -> dict[str, np.ndarray]:
  """Returns the batch of texts in tokens, one a row: [rows, length].

  Lengths, not ids, mark the padding: any id may be part of a text. Rows that only fill up the batch have one token: no
  softmax is over nothing.
  """
  tokens = np.zeros((shape.rows, shape.length), np.int32)
  lengths = np.ones(shape.rows, np.int32)
  for row, text in enumerate(texts):
    tokens[row, : len(text)], lengths[row] = text, max(len(text), 1)
  if layout in ("encoder", "encoder_decoder"):
    return {"encoder_input_tokens": tokens, "encoder_lengths": lengths}
  real = (np.arange(shape.length)[None, :] < lengths[:, None]).astype(np.int32)
  batch = {"decoder_input_tokens": tokens, "decoder_segment_ids": real}
  return batch | ({"decoder_causal_attention": real} if layout == "prefix_lm" else {})
