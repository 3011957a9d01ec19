"""Optimizers, each with its learning rate schedule.

All of them are chains of the same form:

    clip gradients -> direction of the update -> + decay * parameter -> * -learning rate -> * multiplier by path

(LAMB scales the sum of update and decay before the learning rate)

and share four options:

  clip_norm     clip gradients to this global norm; None: no clipping
  weight_decay  decay per update and unit of learning rate; a number, or rules by path (see rules.py) such as
                [('.*(bias|scale)', 0.0), ('.*', 0.01)]
  learning_rate_multipliers   a number or rules by path, such as [('encoder/.*', 0.1), ('.*', 1.0)]; 0 freezes
  ema_decay     keep an exponential moving average of the parameters in the optimizer state; None: no average
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import optax

from t5like.errors import UserError, is_number
from t5like.training.optimizers import updates as matrix_updates
from t5like.training.optimizers.assembly import Optimizer, Parts, build_transformation, methods_of, restrict
from t5like.training.optimizers.rules import check_pattern, path_rules
from t5like.training.optimizers.schedules import Schedule, constant_rate, record_factory_call

__all__ = [
  "Optimizer", "adafactor", "adamw", "adamw_scaled", "custom_optimizer", "lamb", "lion", "muon", "restrict",
]  # fmt: skip

Rules = float | Sequence[tuple[str, float]]


@record_factory_call
def adafactor(
  learning_rate: Schedule | float,
  decay_rate: float = 0.8,
  clipping_threshold: float = 1.0,
  multiply_by_parameter_scale: bool = True,
  min_parameter_scale: float = 1e-3,
  min_dim_size_to_factor: int = 128,
  epsilon: float = 1e-30,
  clip_norm: float | None = None,
  weight_decay: Rules = 0.0,
  learning_rate_multipliers: Rules = 1.0,
  ema_decay: float | None = None,
) -> Optimizer:
  """Adafactor as in T5 (Shazeer and Stern 2018): factored second moments, relative step sizes, update clipping, no
  momentum. Its state is a thousandth of the parameters' size.

  decay_rate                   decay of the second moment is 1 - n^-decay_rate at update n
  clipping_threshold           maximum RMS of an update before scaling
  multiply_by_parameter_scale  learning rate is relative to each variable's RMS, which is at least min_parameter_scale
  min_dim_size_to_factor       second moments of matrices with a shorter side are not factored
  """
  _check_positive(decay_rate=decay_rate, clipping_threshold=clipping_threshold)
  options = dict(decay_rate=decay_rate, clipping_threshold=clipping_threshold)
  if not multiply_by_parameter_scale:
    options["multiply_by_parameter_scale"] = False
  direction = matrix_updates.Adafactor(
    decay_rate, epsilon, min_dim_size_to_factor, clipping_threshold,
    min_parameter_scale if multiply_by_parameter_scale else None,
  )  # fmt: skip
  return _assemble(
    "adafactor", optax.chain(direction.transformation()), learning_rate, options,
    clip_norm, weight_decay, learning_rate_multipliers, ema_decay,
  )  # fmt: skip


@record_factory_call
def adamw(
  learning_rate: Schedule | float,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  weight_decay: Rules = 0.0,
  clip_norm: float | None = 1.0,
  learning_rate_multipliers: Rules = 1.0,
  ema_decay: float | None = None,
  momentum_dtype: str | None = None,
) -> Optimizer:
  """AdamW (Loshchilov and Hutter 2017). Its state is twice the parameters' size.

  b1, b2          decay of the first and second moment
  eps             added to the root of the second moment
  momentum_dtype  dtype of the first moment: 'bfloat16' halves its memory; None: as the parameters
  """
  _check_decays(b1=b1, b2=b2)
  return _assemble(
    "adamw", optax.scale_by_adam(b1, b2, eps, mu_dtype=momentum_dtype), learning_rate, dict(b1=b1, b2=b2, eps=eps),
    clip_norm, weight_decay, learning_rate_multipliers, ema_decay,
  )  # fmt: skip


@record_factory_call
def adamw_scaled(
  learning_rate: Schedule | float,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-6,
  min_parameter_scale: float = 1e-3,
  weight_decay: Rules = 0.0,
  clip_norm: float | None = 1.0,
  learning_rate_multipliers: Rules = 1.0,
  ema_decay: float | None = None,
  momentum_dtype: str | None = None,
) -> Optimizer:
  """AdamW whose updates are scaled by max(min_parameter_scale, RMS of the parameter), as nanoT5 trains T5.

  T5's embeddings are initialized with a standard deviation of 1 and its kernels with a far smaller one: only a relative
  learning rate suits both. Weight decay is not scaled. The other options are AdamW's.
  """
  _check_decays(b1=b1, b2=b2)
  direction = optax.chain(
    optax.scale_by_adam(b1, b2, eps, mu_dtype=momentum_dtype),
    matrix_updates.scale_by_parameter_rms(min_parameter_scale),
  )
  return _assemble(
    "adamw_scaled", direction, learning_rate, dict(b1=b1, b2=b2, eps=eps, min_parameter_scale=min_parameter_scale),
    clip_norm, weight_decay, learning_rate_multipliers, ema_decay,
  )  # fmt: skip


@record_factory_call
def lamb(
  learning_rate: Schedule | float,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-6,
  unadapted: str | None = r".*(bias|scale)",
  weight_decay: Rules = 0.0,
  clip_norm: float | None = 1.0,
  learning_rate_multipliers: Rules = 1.0,
  ema_decay: float | None = None,
  momentum_dtype: str | None = None,
) -> Optimizer:
  """LAMB (You et al. 2019), for batches of thousands of rows: AdamW whose update of each variable is scaled to the norm
  of the variable, so that the learning rate is a relative change. Its state is twice the parameters' size.

  unadapted  expression for the paths of variables whose updates are not scaled: norms and biases, as in the authors'
             code; None: all are scaled, as in optax
  The other options are AdamW's.
  """
  _check_decays(b1=b1, b2=b2)
  if unadapted is not None:
    check_pattern("lamb.unadapted", unadapted)
  return _assemble(
    "lamb", optax.scale_by_adam(b1, b2, eps, mu_dtype=momentum_dtype), learning_rate, dict(b1=b1, b2=b2, eps=eps),
    clip_norm, weight_decay, learning_rate_multipliers, ema_decay, matrix_updates.scale_by_trust_ratio(unadapted),
  )  # fmt: skip


@record_factory_call
def lion(
  learning_rate: Schedule | float,
  b1: float = 0.9,
  b2: float = 0.99,
  weight_decay: Rules = 0.0,
  clip_norm: float | None = 1.0,
  learning_rate_multipliers: Rules = 1.0,
  ema_decay: float | None = None,
  momentum_dtype: str | None = None,
) -> Optimizer:
  """Lion (Chen et al. 2023): the sign of a momentum. Its state is the parameters' size, half of AdamW's.

  Every entry moves by the full learning rate: the authors recommend a rate 3 to 10 times smaller than AdamW's and a
  weight decay larger by the same factor.

  b1              weight of the momentum against the gradient in the sign
  b2              decay of the momentum
  momentum_dtype  'bfloat16' halves its memory; None: as the parameters
  """
  _check_decays(b1=b1, b2=b2)
  return _assemble(
    "lion", optax.scale_by_lion(b1, b2, mu_dtype=momentum_dtype), learning_rate, dict(b1=b1, b2=b2),
    clip_norm, weight_decay, learning_rate_multipliers, ema_decay,
  )  # fmt: skip


@record_factory_call
def muon(
  learning_rate: Schedule | float,
  beta: float = 0.95,
  newton_schulz_steps: int = 5,
  update_rms: float = 0.2,
  matrices: str = r".*/layers(_\d+)?/.*kernel",
  b1: float = 0.9,
  b2: float = 0.95,
  eps: float = 1e-8,
  weight_decay: Rules = 0.0,
  clip_norm: float | None = 1.0,
  learning_rate_multipliers: Rules = 1.0,
  ema_decay: float | None = None,
  momentum_dtype: str | None = None,
) -> Optimizer:
  """Muon (Jordan et al. 2024) for the kernels of the layers, AdamW for all other variables: embeddings, output
  projections, norms, biases. Its state is little more than the parameters' size.

  beta                 decay of the momentum
  newton_schulz_steps  iterations that orthogonalize an update; each takes three matrix products of the kernel's size
  update_rms           RMS of an update: AdamW's is about 0.2, so that its learning rates and decay carry over
  matrices             expression for the paths of the kernels; those without exactly two axes use AdamW
  b1, b2, eps          AdamW's
  """
  _check_decays(b1=b1, b2=b2, beta=beta)
  _check_positive(newton_schulz_steps=newton_schulz_steps, update_rms=update_rms)
  check_pattern("muon.matrices", matrices)
  methods = {
    "muon": matrix_updates.scale_by_muon(beta, newton_schulz_steps, update_rms, momentum_dtype),
    "adamw": optax.scale_by_adam(b1, b2, eps, mu_dtype=momentum_dtype),
  }
  optimizer = _assemble(
    "muon", optax.partition(methods, lambda params: methods_of(params, matrices)), learning_rate,
    dict(beta=beta, newton_schulz_steps=newton_schulz_steps, update_rms=update_rms, b1=b1, b2=b2, eps=eps),
    clip_norm, weight_decay, learning_rate_multipliers, ema_decay,
  )  # fmt: skip
  return dataclasses.replace(optimizer, matrices=matrices)


def custom_optimizer(description: str) -> Optimizer:
  """Placeholder in a configuration for an optimizer that was built in Python; raises UserError when it is used."""

  def init(params):
    raise UserError(
      f"this run's optimizer was built in Python: {description}",
      try_="t5like.train(experiment) with it, or --gin_file=optimizers/... after the run file",
    )

  zero = path_rules("weight_decay", 0.0)
  return Optimizer(optax.GradientTransformation(init, init), constant_rate(0.0), description, zero, zero)


def _assemble(
  name: str,
  direction: optax.GradientTransformation,
  learning_rate: Schedule | float,
  options: Mapping[str, Any],
  clip_norm: float | None,
  weight_decay: Rules,
  learning_rate_multipliers: Rules,
  ema_decay: float | None,
  rescale: optax.GradientTransformation | None = None,
) -> Optimizer:
  schedule = learning_rate if callable(learning_rate) else constant_rate(learning_rate)
  decay = path_rules(f"{name}.weight_decay", weight_decay)
  multipliers = path_rules(f"{name}.learning_rate_multipliers", learning_rate_multipliers)
  options = {**options, "weight_decay": _shown(weight_decay)}
  if clip_norm is not None:
    _check_positive(clip_norm=clip_norm)
    options["clip_norm"] = clip_norm
  if learning_rate_multipliers != 1.0:
    options["learning_rate_multipliers"] = _shown(learning_rate_multipliers)
  if ema_decay is not None:
    _check_positive(ema_decay=ema_decay)
    _check_decays(ema_decay=ema_decay)
    options["ema_decay"] = ema_decay
  description = f"{name}({', '.join(f'{option}={value}' for option, value in options.items())})"
  transformation = build_transformation(
    direction, schedule, decay.values, multipliers.values, clip_norm, ema_decay, rescale=rescale
  )
  parts = Parts(direction, clip_norm, ema_decay, transformation, rescale)
  return Optimizer(transformation, schedule, description, decay, multipliers, parts=parts)


def _shown(rules: Rules) -> str:
  return str(rules) if isinstance(rules, (int, float)) else "by path"


def _check_positive(**options: float) -> None:
  for name, value in options.items():
    if not is_number(value) or not value > 0:
      raise UserError(f"invalid {name} of the optimizer: {value!r}", expected="a number above 0")


def _check_decays(**options: float) -> None:
  for name, value in options.items():
    if not is_number(value) or not 0 <= value < 1:
      raise UserError(f"invalid {name} of the optimizer: {value!r}", expected="at least 0 and below 1")
