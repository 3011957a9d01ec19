"""Prompts: special tokens around a text, and batches of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import numpy as np

from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.experiments.languages import Languages, special_tokens
from t5like.inference.batching import BatchShape
from t5like.models.config import TransformerConfig
from t5like.models.heads import WithHead
from t5like.objectives import SpecialTokens
from t5like.objectives.segments import PairForm
from t5like.vocabularies import SpelledWords, Vocabulary
from t5like.vocabularies.subwords import SubwordVocabulary
from t5like.vocabularies.tokenizer_json import load_tokenizer_json

_TOKENIZER = "tokenizer.json"
_OF_ROWS = ("classification", "multi_label", "regression", "choices", "spans")  # forms of heads that read rows of texts


@dataclasses.dataclass(frozen=True)
class PromptForm:
  """The special tokens around a prompt, as in training."""

  start: int | None  # precedes a decoder's prompt
  end: int | None  # follows the text
  empty: int  # the prompt for an empty text without start and end
  code: int | None = None  # after the end: of the language (mBART), or <cls> (XLNet)

  def tokens(self, text: list[int]) -> list[int]:
    """Adds the special tokens to a text; returns at least one token."""
    before, *after = ([] if token is None else [token] for token in (self.start, self.end, self.code))
    return [*before, *text, *after[0], *after[1]] or [self.empty]


def has_training_config(experiment: Experiment | None) -> bool:
  """Whether the model was trained here. The training of models from Hugging Face and T5X is unknown."""
  return experiment is not None and bool(experiment.task)


def text_form(special: SpecialTokens) -> PromptForm:
  """Returns the tokens around the inputs of an encoder-decoder, as in training."""
  before, after = special.before_inputs, special.after_inputs
  return PromptForm(before[0] if before else None, special.eos, special.eos, after[0] if after else None)


def prompt_form(
  model: nn.Module, vocabulary: Vocabulary, experiment: Experiment | None, languages: Languages | None = None
) -> PromptForm:
  """Returns the special tokens around a model's prompts.

  BERT reads [CLS] text [SEP]; T5 reads text and EOS, after [CLS] if it is an imported model with a BERT or RoBERTa
  style vocabulary (CodeT5), BART <s> text </s>. mBART's has a language code, that of its tokenizer files if `languages`
  has none. A decoder's prompts are as in its training.
  """
  special = special_tokens(model.config, vocabulary, languages or {})
  trained = experiment if has_training_config(experiment) else None
  if isinstance(model, WithHead):
    return _head_form(model, vocabulary, special, trained)
  if model.batch_layout == "encoder":
    return _row_form(PairForm(special.cls, special.sep, cls_last=special.cls_last), special.eos)
  if model.batch_layout == "encoder_decoder":
    return _encoder_decoder_form(vocabulary, special, trained)
  return _decoder_form(model, vocabulary, special, trained)


def _head_form(
  model: WithHead, vocabulary: Vocabulary, special: SpecialTokens, trained: Experiment | None
) -> PromptForm:
  """Returns the tokens around a single text of a head's rows, which are as in training: data/labeled_rows.py."""
  if around := getattr(model.head, "around", None):
    return PromptForm(*around, special.eos)
  if not trained and model.backbone.batch_layout in ("decoder", "prefix_lm") and model.head.form in _OF_ROWS:
    _, after = _template(vocabulary)  # as in Hugging Face: its tokenizer's texts
    special = dataclasses.replace(special, closes_rows=special.eos in after)
  return _row_form(PairForm.of(special), special.eos)


def _row_form(pair: PairForm, eos: int) -> PromptForm:
  """Returns the tokens around a single text in an encoder's row."""
  if pair.cls_last:
    return PromptForm(None, pair.sep, eos, pair.cls)
  return PromptForm(pair.cls, pair.sep if pair.closed else None, eos)


def _encoder_decoder_form(vocabulary: Vocabulary, special: SpecialTokens, trained: Experiment | None) -> PromptForm:
  if special.codes or special.opening is not None:
    return text_form(special)
  eos = special.eos
  if trained:
    return PromptForm(None, eos if trained.objective is None or trained.objective.closed else None, eos)
  if not isinstance(vocabulary, SubwordVocabulary):
    return PromptForm(None, eos, eos)
  before, after = _template(vocabulary)
  if len(before) <= 1 and after[:1] == (eos,) and len(after) <= 2:
    return PromptForm(before[0] if before else None, eos, eos, after[1] if len(after) > 1 else None)
  return PromptForm(special.cls, eos, eos)


def _decoder_form(
  model: nn.Module, vocabulary: Vocabulary, special: SpecialTokens, trained: Experiment | None
) -> PromptForm:
  eos = special.eos
  if trained:
    objective = trained.objective
    if objective is None:
      return PromptForm(special.start, eos, eos)
    closed = objective.lengths(512).inputs > 0 and objective.closed
    return PromptForm(None if objective.shifted else special.start, eos if closed else None, eos)
  if getattr(model, "bidirectional", False):  # ELMo
    return PromptForm(special.bos, eos, eos)
  # As in Hugging Face: GPT-2's tokenizer adds nothing, Llama's the beginning of a text, that of an exported run what
  # its prompts had.
  before, after = _template(vocabulary)
  if after == (eos,) and len(before) <= 1:
    return PromptForm(before[0] if before else None, eos, eos)
  return PromptForm(special.start if special.opens_texts else None, None, eos)


def _template(vocabulary: Vocabulary) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """Returns the ids that a folder's tokenizer.json puts before and after a text, or without it, its settings."""
  if vocabulary.path is not None and vocabulary.path.name != _TOKENIZER:  # such as spiece.model, which does not say
    with contextlib.suppress(UserError):
      vocabulary = load_tokenizer_json(vocabulary.path.with_name(_TOKENIZER))
  return getattr(vocabulary, "template", None) or ((), ())


def with_rows_of(special: SpecialTokens, model: nn.Module, form: PromptForm) -> SpecialTokens:
  """Returns special tokens for the rows of a model's head, which end as `form` does."""
  return dataclasses.replace(special, closes_rows=form.end is not None) if isinstance(model, WithHead) else special


def position_limit(config: TransformerConfig, taken: int = 0) -> int | None:
  """Returns the number of tokens that fit the model's positions; None: no limit."""
  return None if config.position_limit is None else config.position_limit - taken


def prompt_batch(layout: str, texts: Sequence[Sequence[int]], shape: BatchShape) -> dict[str, np.ndarray]:
  """Returns a batch of tokenized texts, one per row: [rows, length].

  Padding is marked by lengths, as any id may be part of a text. Filler rows have one token, so that no softmax is
  empty.
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


def with_spelling(
  batch: dict[str, np.ndarray], model: nn.Module, vocabulary: Vocabulary | None
) -> dict[str, np.ndarray]:
  """Adds the characters of words, [rows, length, characters], to a batch if the vocabulary has any words (ELMo)."""
  if not isinstance(vocabulary, SpelledWords):
    return batch
  return batch | {"decoder_characters": vocabulary.spell(batch["decoder_input_tokens"], model.config.chars_per_word)}
