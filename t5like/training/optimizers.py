"""Optimizers by name, each with the schedule it follows."""

from __future__ import annotations

import dataclasses

import optax

from t5like.training.schedules import Schedule


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """A gradient transformation, its learning rate (to log) and a line for the run card."""

  transformation: optax.GradientTransformation
  learning_rate: Schedule
  description: str


def adafactor(learning_rate: Schedule, decay_rate: float = 0.8, clipping_threshold: float = 1.0) -> Optimizer:
  """Adafactor as T5 used it: factored second moments, updates scaled by the parameter's own size,
  clipped by their RMS, no momentum. Its state is a thousandth of the parameters' size."""
  return Optimizer(
    optax.adafactor(learning_rate, decay_rate=decay_rate, clipping_threshold=clipping_threshold),
    learning_rate,
    f"adafactor(decay_rate={decay_rate}, clipping_threshold={clipping_threshold})",
  )


def adamw(
  learning_rate: Schedule,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
  clip_norm: float = 1.0,
) -> Optimizer:
  """AdamW behind clipping by global norm. Its state is twice the parameters' size."""
  return Optimizer(
    optax.chain(
      optax.clip_by_global_norm(clip_norm), optax.adamw(learning_rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)
    ),
    learning_rate,
    f"adamw(b1={b1}, b2={b2}, eps={eps}, weight_decay={weight_decay}, clip_norm={clip_norm})",
  )
