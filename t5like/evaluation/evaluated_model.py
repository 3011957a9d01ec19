"""The model under evaluation, in the training loop or loaded from a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import flax.linen as nn
from jax.sharding import Mesh

from t5like.errors import UserError
from t5like.experiments.compatibility import row_lengths
from t5like.experiments.experiment import Experiment
from t5like.experiments.languages import Languages, special_tokens, task_languages
from t5like.inference import Model
from t5like.inference.prompts import (
  PromptForm,
  has_training_config,
  position_limit,
  prompt_form,
  text_form,
  with_rows_of,
)
from t5like.inference.task_caches import default_lengths
from t5like.models.heads import WithHead
from t5like.models.tuning import learned_tokens
from t5like.objectives import SpecialTokens
from t5like.vocabularies import Vocabulary

_BATCH, _LENGTH = 32, 512


@dataclasses.dataclass(frozen=True)
class EvaluatedModel:
  """A model with its prompt format, lengths and batch size for evaluation."""

  module: nn.Module
  mesh: Mesh
  vocabulary: Vocabulary
  form: PromptForm
  inputs: int  # maximum input tokens, with EOS, without a start token
  targets: int  # maximum answer tokens
  batch_size: int
  decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the model's own settings
  languages: Languages = dataclasses.field(default_factory=dict)

  @classmethod
  def of(cls, module: nn.Module, mesh: Mesh, vocabulary: Vocabulary, experiment: Experiment | None) -> EvaluatedModel:
    """Returns the model with the settings of its training, or with defaults if its training is unknown."""
    languages = task_languages(experiment)
    form = prompt_form(module, vocabulary, experiment, languages)
    inputs, targets = default_lengths(experiment, position_limit(module.config))
    if not has_training_config(experiment):
      if isinstance(module, WithHead):
        inputs = min(position_limit(module.config) or _LENGTH, _LENGTH)
      return cls(module, mesh, vocabulary, form, inputs, targets, _BATCH)
    if experiment.mix:  # labeled examples were read as in fine-tuning
      special = special_tokens(module.config, vocabulary, languages)
      lengths = row_lengths(experiment, experiment.lengths, special)
      inputs, targets = lengths.inputs, lengths.targets
      if module.batch_layout == "encoder_decoder":
        form = text_form(special)
      else:
        form = PromptForm(special.start, special.eos, special.eos)
    batch_size, own = experiment.batch_size, experiment.decoding
    return cls(module, mesh, vocabulary, form, inputs, targets, batch_size, own, languages)

  @classmethod
  def of_loaded(cls, model: Model) -> EvaluatedModel:
    found = cls.of(model.module, model.mesh, model.vocabulary, model.experiment)
    if model.given_languages:
      found = dataclasses.replace(found, form=model.prompt_form, languages=model.languages)
    return dataclasses.replace(found, decoding=model.decoding)

  @cached_property
  def special(self) -> SpecialTokens:
    return with_rows_of(special_tokens(self.module.config, self.vocabulary, self.languages), self.module, self.form)

  @property
  def layout(self) -> str:
    return self.module.batch_layout

  @property
  def positions(self) -> int | None:
    return position_limit(self.module.config, learned_tokens(self.module))

  def check_has_decoder(self) -> None:
    """Raises UserError for an encoder, which cannot generate answers."""
    if self.layout == "encoder":
      raise UserError(
        f"{type(self.module).__name__} is an encoder without a head and cannot answer",
        expected="a model with a decoder (T5, GPT), or with a head for the task",
        try_="--loss, which evaluates masked-token prediction; or fine-tune it on the task: t5like train "
        "--gin_file=runs/finetune.gin --gin.TASK=..._classification --gin.INIT_FROM=MODEL",
      )
