"""A student and its teacher as the model of a train step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

import t5like.finetuning.distillation.losses as losses
from t5like.finetuning.distillation.settings import Distillation, backbone, stack_of
from t5like.models.auxiliary import Auxiliary
from t5like.models.blocks import Block
from t5like.models.config import TransformerConfig
from t5like.models.embedder import Embedder
from t5like.models.heads import WithHead
from t5like.models.padding import encoder_valid
from t5like.models.stack import Stack
from t5like.training.losses import add_auxiliary, divisors, loss_and_metrics

TEACHER = "teacher"  # the parameters of the teacher: frozen, not in checkpoints
LEARNED = "distillation"  # parameters that only the losses use, in checkpoints
_NO_DROPOUT = dict(dropout_rate=0.0, attention_dropout_rate=0.0, mlp_dropout_rate=0.0)
Batch = Mapping[str, jax.Array]


class TeacherDivisors(NamedTuple):
  """Divisors of summed losses, of the global batch."""

  own: Any  # of the student's loss
  auxiliary: Mapping[str, jax.Array]  # of the others, by name


@dataclasses.dataclass(frozen=True)
class WithTeacher:
  """A model for `training/step.py`, whose parameters are the student's, and the teacher's under `teacher/`.

  In training both read a batch, the teacher without dropout and gradients. In evaluation only the student does.
  """

  student: nn.Module
  teacher: nn.Module
  settings: Distillation

  @property
  def config(self) -> TransformerConfig:
    return self.student.config

  @property
  def batch_layout(self) -> str:
    return self.student.batch_layout

  def init(self, key: jax.Array, batch: Batch) -> dict[str, Any]:
    """Returns random parameters of both models, with logical axes; a run takes the teacher's from elsewhere."""
    params = dict(self.student.init(key, batch)["params"])
    params[TEACHER] = self.teacher.init(key, batch)["params"]
    mine, theirs = self.config.embed_dim, self.teacher.config.embed_dim
    if (self.settings.hidden or self.settings.embedding) and mine != theirs:
      projection = nn.initializers.lecun_normal()(jax.random.fold_in(key, 1), (mine, theirs), jnp.float32)
      params[LEARNED] = {"projection": nn.LogicallyPartitioned(projection, ("embed", None))}
    return {"params": params}

  def apply(self, variables: Mapping[str, Any], batch: Batch, deterministic: bool = True, rngs: Any = None) -> dict:
    """Returns the outputs of the student; in training also the losses of distillation, as "auxiliary"."""
    params = dict(variables["params"])
    theirs, learned = params.pop(TEACHER), params.pop(LEARNED, {})
    if deterministic:
      return self.student.apply({"params": params}, batch, deterministic=True)
    outputs, states = self._read(self.student, params, batch, False, rngs)
    # Without dropout, but as in training: a BERT predicts only target tokens.
    quiet = _quiet(self.teacher, getattr(self.student, "predicted_share", None))
    wanted, known = self._read(quiet, jax.lax.stop_gradient(theirs), batch, isinstance(self.teacher, WithHead), None)
    outputs["auxiliary"] = self._losses(batch, outputs, states, wanted, known, learned)
    return outputs

  def _read(
    self, model: nn.Module, params: Any, batch: Batch, deterministic: bool, rngs: Any
  ) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Returns a model's outputs, and what the losses need of its layers."""
    read = lambda **more: model.apply({"params": params}, batch, deterministic=deterministic, rngs=rngs, **more)  # noqa: E731
    if not self.settings.reads_layers:
      return dict(read()), {}
    outputs, found = read(capture_intermediates=_is_read, mutable=["intermediates"])
    return dict(outputs), _states(model, found["intermediates"], self.settings)

  def _losses(
    self, batch: Batch, outputs: Mapping[str, Any], states: Mapping[str, Any], wanted: Mapping[str, Any],
    known: Mapping[str, Any], learned: Mapping[str, jax.Array],
  ) -> dict[str, Auxiliary]:  # fmt: skip
    """Returns the losses by name."""
    settings, terms = self.settings, {}
    real = self._real(batch)
    weights = real.astype(jnp.float32)
    if settings.soft:
      terms["soft_loss"] = Auxiliary(*self._soft(batch, outputs, wanted), settings.soft)
    if settings.cosine:
      distance = losses.cosine_distance(states["last"], known["last"])
      terms["cosine_loss"] = Auxiliary(distance, weights, settings.cosine)
    pairs = list(enumerate(settings.layer_map(self.config, self.teacher.config, stack_of(self.student))))
    project = lambda x: x @ learned["projection"].astype(x.dtype) if learned else x  # noqa: E731
    if settings.embedding:
      difference = losses.squared_difference(project(states["embedded"]), known["embedded"])
      terms["embedding_loss"] = Auxiliary(difference, weights, settings.embedding)
    if settings.hidden:
      each = [losses.squared_difference(project(states["layers"][i]), known["layers"][j]) for i, j in pairs]
      terms["hidden_loss"] = Auxiliary(sum(each), weights, settings.hidden)
    if settings.attention:
      seen = real[:, None, :] & real[:, :, None]
      if stack_of(self.student) == "decoder":
        seen &= jnp.tril(jnp.ones(seen.shape[-2:], bool))[None]
      configs = (self.config, self.teacher.config)
      each = [
        losses.score_difference(
          *(losses.scores(*(x[k][i] for k in ("query", "key")), config)
            for x, i, config in zip((states, known), pair, configs, strict=True)),
          seen,
        )
        for pair in pairs
      ]  # fmt: skip
      terms["attention_loss"] = Auxiliary(sum(each), weights, settings.attention)
    return terms

  def _soft(self, batch: Batch, outputs: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
    """Returns the loss of soft targets and its weights."""
    temperature = self.settings.temperature
    if not isinstance(self.student, WithHead):
      weights = batch[f"{stack_of(self.student)}_loss_weights"]
      if "predicted" in outputs:
        weights = jnp.take_along_axis(weights, outputs["predicted"], axis=1)
      return losses.soft_targets(outputs["logits"], wanted["logits"], temperature), weights
    mine, theirs = outputs["label_logits"], wanted["label_logits"]
    rows = jnp.any(self._real(batch), axis=1).astype(jnp.float32)
    if self.student.head.form == "tagging":
      weights = batch["encoder_loss_weights"] * rows[:, None]
      return losses.soft_targets(mine, theirs, temperature), weights
    if self.student.head.form == "regression":
      return jnp.square(mine - theirs), rows[:, None]
    rows = rows.reshape(mine.shape[0], -1)[:, :1]  # of several choices, each is a row of the backbone
    return losses.soft_targets(mine, theirs, temperature)[:, None], rows

  def _real(self, batch: Batch) -> jax.Array:
    """Returns [rows, length], True on the tokens whose states are compared: no padding, no given prompts."""
    if not isinstance(self.student, WithHead) and stack_of(self.student) == "decoder":
      return batch["decoder_loss_weights"] > 0
    batch = {name: x.reshape(-1, x.shape[-1]) if x.ndim == 3 else x for name, x in batch.items()}
    return encoder_valid(batch)

  # The loss: see training/step.py, which looks for these methods.

  def divisors(self, batch: Batch, settings: Any) -> TeacherDivisors:
    """Returns the divisors of the losses of `batch` and of any part of it."""
    real = jnp.sum(self._real(batch), dtype=jnp.float32)
    counts = dict.fromkeys(("cosine_loss", "embedding_loss", "hidden_loss", "attention_loss"), real)
    if not isinstance(self.student, WithHead):
      counts["soft_loss"] = jnp.sum(batch[f"{stack_of(self.student)}_loss_weights"])
    elif self.student.head.form == "tagging":
      counts["soft_loss"] = jnp.sum(batch["encoder_loss_weights"])
    else:
      rows = jnp.any(self._real(batch), axis=1)
      counts["soft_loss"] = jnp.sum(rows, dtype=jnp.float32) / self.student.texts_per_row
    return TeacherDivisors(getattr(self.student, "divisors", divisors)(batch, settings), counts)

  def loss(
    self, outputs: Mapping[str, Any], batch: Batch, settings: Any, divide_by: TeacherDivisors | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the weighted sum of the student's loss and those of distillation, and all of them as metrics."""
    divide_by = divide_by or self.divisors(batch, settings)
    own = {name: x for name, x in outputs.items() if name != "auxiliary"}
    value, metrics = getattr(self.student, "loss", loss_and_metrics)(own, batch, settings, divide_by.own)
    return add_auxiliary(self.settings.hard * value, metrics, outputs.get("auxiliary", {}), divide_by.auxiliary)


def _quiet(model: nn.Module, predicted_share: float | None) -> nn.Module:
  """Returns a model without dropout; an encoder without a head computes logits where the student does."""
  config = dataclasses.replace(model.config, **_NO_DROPOUT)
  if isinstance(model, WithHead) or predicted_share is None:
    return model.clone(config=config)
  return model.clone(config=config, predicted_share=predicted_share)


def _is_read(module: nn.Module, method: str) -> bool:
  """Whether a module's result is kept: embeddings, layers, stacks, queries and keys."""
  return method == "__call__" and (isinstance(module, Embedder | Block | Stack) or module.name in ("query", "key"))


def _states(model: nn.Module, found: Mapping[str, Any], settings: Distillation) -> dict[str, Any]:
  """Returns the states of a model's stack: embedded, the last, and as needed those, queries and keys of each layer."""
  stack = stack_of(model)
  inside = found["backbone"] if isinstance(model, WithHead) else found
  part, count = inside[stack], getattr(backbone(model).config, f"num_{stack}_layers")
  result = {"embedded": inside["token_embedder"]["__call__"][-1], "last": part["__call__"][-1][0]}
  if not settings.compares_layers:
    return result
  if "layers" in part:
    take = lambda get: [get(part["layers"])[i] for i in range(count)]  # noqa: E731
  else:
    take = lambda get: [get(part[f"layers_{i}"]) for i in range(count)]  # noqa: E731
  result["layers"] = take(lambda layer: layer["__call__"][-1][0])
  if settings.attention:
    for name in ("query", "key"):
      result[name] = take(lambda layer, name=name: layer["attention"][name]["__call__"][-1])
  return result
