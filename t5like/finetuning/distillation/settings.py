"""The settings of distillation, and whether a teacher fits a student."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import flax.linen as nn

from t5like.errors import UserError
from t5like.models import ELECTRA
from t5like.models.config import TransformerConfig
from t5like.models.heads import WithHead
from t5like.models.recurrent import RecurrentConfig

_WEIGHTS = ("soft", "hard", "cosine", "attention", "hidden", "embedding")
_SOFT_FORMS = ("classification", "choices", "tagging", "regression")


@dataclasses.dataclass(frozen=True)
class Distillation:
  """Losses with which a student imitates a frozen teacher, each with its weight; the defaults are DistilBERT's.

  teacher      a model directory, a checkpoint in it, or a Hugging Face folder, with the vocabulary of the run
  temperature  of the soft targets T; their loss is multiplied by T^2 (Hinton et al. 2015)
  soft         KL divergence from the teacher's predictions: of target tokens, or of the labels of a head
  hard         the student's own loss, as without a teacher
  cosine       1 - cosine of the last hidden states; both models have the same width
  attention    mean squared difference of attention scores before the softmax, summed over the student's layers; both
               models have the same number of heads (TinyBERT, Jiao et al. 2020)
  hidden       mean squared difference of hidden states, summed over the student's layers. Models of other widths learn
               a projection, which is not part of the student
  embedding    the same for the embeddings
  layers       for each layer of the student the number of the teacher's that it imitates, from 0; None: evenly spaced,
               up to the last. `RESTORE.layers` chooses the layers that a student starts from (INIT_FROM)
  """

  teacher: str
  temperature: float = 2.0
  soft: float = 5.0
  hard: float = 2.0
  cosine: float = 1.0
  attention: float = 0.0
  hidden: float = 0.0
  embedding: float = 0.0
  layers: Sequence[int] | None = None

  def __post_init__(self):
    if not isinstance(self.teacher, str) or not self.teacher:
      raise UserError(
        f"invalid Distillation.teacher: {self.teacher!r}",
        expected="a model directory or a Hugging Face folder",
        try_="--gin.TEACHER=FOLDER",
      )
    for field in ("temperature", *_WEIGHTS):
      value = getattr(self, field)
      valid = isinstance(value, int | float) and math.isfinite(value) and value >= 0
      if not valid or (field == "temperature" and not value):
        expected = "a number above 0" if field == "temperature" else "0 or more"
        raise UserError(f"invalid Distillation.{field}: {value!r}", expected=expected)
    if not any(getattr(self, field) for field in _WEIGHTS if field != "hard"):
      raise UserError("Distillation has no loss that uses the teacher", try_="--gin.Distillation.soft=1.0")

  @property
  def reads_layers(self) -> bool:
    """Whether a loss needs more of the models than their outputs."""
    return any((self.cosine, self.attention, self.hidden, self.embedding))

  @property
  def compares_layers(self) -> bool:
    """Whether a loss needs the states or scores of every layer."""
    return bool(self.attention or self.hidden)

  def layer_map(self, student: TransformerConfig, teacher: TransformerConfig, stack: str) -> tuple[int, ...]:
    """Returns the teacher's layer for each layer of a student's stack."""
    mine, theirs = (getattr(config, f"num_{stack}_layers") for config in (student, teacher))
    if self.layers is None:
      return tuple(math.ceil((i + 1) * theirs / mine) - 1 for i in range(mine))
    valid = len(self.layers) == mine and all(isinstance(i, int) and 0 <= i < theirs for i in self.layers)
    if not valid:
      raise UserError(
        f"invalid Distillation.layers: {list(self.layers)!r}",
        expected=f"a layer of the teacher, 0 to {theirs - 1}, for each of the student's {mine} layers",
      )
    return tuple(self.layers)

  def check(self, student: nn.Module, teacher: nn.Module) -> None:
    """Raises UserError for a teacher that does not fit the student, before anything is compiled."""
    mine, theirs = student.config, teacher.config
    if any(isinstance(model, ELECTRA) and model.config.mlm_head for model in (student, teacher)):
      raise UserError("ELECTRA's discriminator predicts no tokens, so it cannot be distilled in pre-training")
    self._check_kinds(student, teacher)
    if self.soft and not isinstance(student, WithHead):
      _same("vocab_size", mine, theirs, "soft")
      if backbone(teacher).batch_layout == "encoder" and not theirs.mlm_head:
        raise UserError("the teacher has no masked-LM head, which the soft targets need", teacher=self.teacher)
    if self.cosine:
      _same("embed_dim", mine, theirs, "cosine")
    if self.attention:
      _same("num_heads", mine, theirs, "attention")
      for config in (mine, theirs):
        if config.kv_heads != config.num_heads:
          raise UserError("the attention loss does not support grouped heads", try_="--gin.Distillation.attention=0.0")
        if config.positions in ("rotary", "relative_bias", "disentangled", "alibi"):
          raise UserError(
            f"the attention loss does not support {config.positions} positions", try_="--gin.Distillation.attention=0.0"
          )
    if self.reads_layers and mine.remat != "none":
      raise UserError(
        f"losses of layers need their states, which REMAT = {mine.remat!r} does not keep", try_="--gin.REMAT=none"
      )
    if self.compares_layers and (mine.layer_groups or theirs.layer_groups):
      raise UserError(
        "losses of layers do not support layers that share parameters (layer_groups)",
        try_="--gin.Distillation.attention=0.0 --gin.Distillation.hidden=0.0",
      )
    self.layer_map(mine, theirs, stack_of(student))

  def _check_kinds(self, student: nn.Module, teacher: nn.Module) -> None:
    kinds = [f"{type(backbone(m)).__name__} with a {type(m.head).__name__}" if isinstance(m, WithHead)
             else type(m).__name__ for m in (student, teacher)]  # fmt: skip
    forms = [
      (backbone(m).batch_layout, isinstance(backbone(m).config, RecurrentConfig), isinstance(m, WithHead))
      for m in (student, teacher)
    ]
    if forms[0] != forms[1]:
      raise UserError(
        f"the teacher is a {kinds[1]}, the student a {kinds[0]}",
        teacher=self.teacher,
        expected="models of one family, both with a head for the same labels or both without",
      )
    if not isinstance(student, WithHead):
      return
    labels = [getattr(model.head, "labels", None) for model in (student, teacher)]
    if student.head.form != teacher.head.form or labels[0] != labels[1]:
      raise UserError(
        "teacher and student have different labels",
        teacher=f"{kinds[1]}: {', '.join(labels[1] or ())}",
        student=f"{kinds[0]}: {', '.join(labels[0] or ())}",
      )
    if self.soft and student.head.form not in _SOFT_FORMS:
      raise UserError(f"no soft targets for a {type(student.head).__name__}", try_="--gin.Distillation.soft=0.0")


def backbone(model: nn.Module) -> nn.Module:
  return model.backbone if isinstance(model, WithHead) else model


def stack_of(model: nn.Module) -> str:
  """Returns the stack whose layers are compared: the decoder of models that have one."""
  return "encoder" if backbone(model).batch_layout == "encoder" else "decoder"


def _same(field: str, student: TransformerConfig, teacher: TransformerConfig, loss: str) -> None:
  mine, theirs = getattr(student, field), getattr(teacher, field)
  if mine != theirs:
    raise UserError(
      f"{field} is {mine} in the student and {theirs} in the teacher; the {loss} loss needs the same",
      try_=f"--gin.TransformerConfig.{field}={theirs}, or --gin.Distillation.{loss}=0.0",
    )
