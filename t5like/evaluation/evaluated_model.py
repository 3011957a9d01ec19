"""The model under evaluation, in the training loop or loaded from a checkpoint."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import flax.linen as nn
from jax.sharding import Mesh

from t5like.errors import UserError
from t5like.experiments.compatibility import row_lengths
from t5like.experiments.experiment import Experiment
from t5like.inference import Model
from t5like.inference.prompts import PromptForm, has_training_config, position_limit, prompt_form
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

  @classmethod
  def of(cls, module: nn.Module, mesh: Mesh, vocabulary: Vocabulary, experiment: Experiment | None) -> EvaluatedModel:
    """Returns the model with the settings of its training, or with defaults if its training is unknown."""
    form = prompt_form(module, vocabulary, experiment)
    inputs, targets = default_lengths(experiment, position_limit(module.config))
    if not has_training_config(experiment):
      if isinstance(module, WithHead):
        inputs = min(position_limit(module.config) or _LENGTH, _LENGTH)
      return cls(module, mesh, vocabulary, form, inputs, targets, _BATCH)
    if experiment.mix:  # labeled examples were read as in fine-tuning
      special = SpecialTokens.of(vocabulary)
      lengths = row_lengths(experiment, experiment.lengths, special)
      inputs, targets = lengths.inputs, lengths.targets
      start = None if module.batch_layout == "encoder_decoder" else special.start
      form = PromptForm(start, special.eos, special.eos)
    return cls(module, mesh, vocabulary, form, inputs, targets, experiment.batch_size)

  @classmethod
  def of_loaded(cls, model: Model) -> EvaluatedModel:
    return cls.of(model.module, model.mesh, model.vocabulary, model.experiment)

  @cached_property
  def special(self) -> SpecialTokens:
    return SpecialTokens.of(self.vocabulary)

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
