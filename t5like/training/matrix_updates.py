"""Gradient transformations that look at a variable as a whole: its RMS, its rows and columns, its singular values.

Scanned layers are stacked along a leading axis of every variable under `layers/`. A layer is treated by
itself all the same, so that scanning changes no update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5like.training.optimizer_rules import path_text

STACKED = "layers"


def is_stacked(path: tuple) -> bool:
  """Whether a variable's first axis counts layers."""
  return STACKED in path_text(path).split("/")


def _rms(x: jax.Array, stacked: bool) -> jax.Array:
  """Root mean square of each layer's array, shaped to be multiplied with it."""
  axes = tuple(range(int(stacked), x.ndim))
  return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=axes, keepdims=True))


def _stateless(change: Callable[..., jax.Array]) -> optax.GradientTransformation:
  """From change(update, parameter, stacked)."""

  def update(updates, state, params=None):
    return jax.tree.map_with_path(lambda path, u, p: change(u, p, is_stacked(path)), updates, params), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def clip_by_rms(threshold: float) -> optax.GradientTransformation:
  """Scales an update down to an RMS of at most `threshold` (Adafactor, section 6)."""
  return _stateless(lambda u, p, stacked: u / jnp.maximum(1.0, _rms(u, stacked) / threshold))


def scale_by_parameter_rms(minimum: float = 1e-3) -> optax.GradientTransformation:
  """Makes updates relative to the parameter's own size, max(minimum, RMS) (Adafactor, section 8)."""
  return _stateless(lambda u, p, stacked: u * jnp.maximum(_rms(p, stacked), minimum))


class FactoredMoments(NamedTuple):
  count: jax.Array  # int32 scalar
  row: Any  # mean over the longer axis of a factored variable
  column: Any  # mean over the shorter one
  full: Any  # of variables that are not factored


def scale_by_factored_rms(
  decay_rate: float = 0.8, epsilon: float = 1e-30, min_dim_size_to_factor: int = 128
) -> optax.GradientTransformation:
  """Divides by the root of the second moment, kept as row and column means of matrices (Adafactor, section 4).

  The moments' decay is 1 - n^-decay_rate at the n-th update: the first takes the gradient as it is.
  A variable is factored over its two longest axes where both have `min_dim_size_to_factor`; as in T5X,
  moments are float32 whatever the parameters are.
  """

  def axes_of(path: tuple, shape: tuple[int, ...]) -> tuple[int, int] | None:
    first = int(is_stacked(path))
    own = shape[first:]
    if len(own) < 2:
      return None
    *_, shorter, longer = np.argsort(own, kind="stable")
    return (int(shorter) + first, int(longer) + first) if own[shorter] >= min_dim_size_to_factor else None

  def init(params):
    def zeros(path, p, part):
      axes = axes_of(path, p.shape)
      if (axes is None) != (part == "full"):
        return optax.MaskedNode()
      shape = p.shape if axes is None else np.delete(p.shape, axes[1] if part == "row" else axes[0])
      return jnp.zeros(tuple(int(size) for size in shape), jnp.float32)

    parts = {
      part: jax.tree.map_with_path(lambda path, p, part=part: zeros(path, p, part), params)
      for part in ("row", "column", "full")
    }
    return FactoredMoments(jnp.zeros((), jnp.int32), **parts)

  def update(updates, state, params=None):
    keep = 1.0 - (state.count.astype(jnp.float32) + 1.0) ** -decay_rate

    def scale(path, gradient, row, column, full):
      gradient = gradient.astype(jnp.float32)
      squared = jnp.square(gradient) + epsilon
      axes = axes_of(path, gradient.shape)
      if axes is None:
        full = keep * full + (1.0 - keep) * squared
        return _Scaled(gradient * jax.lax.rsqrt(full), row, column, full)
      shorter, longer = axes
      row = keep * row + (1.0 - keep) * jnp.mean(squared, axis=longer)
      column = keep * column + (1.0 - keep) * jnp.mean(squared, axis=shorter)
      # row * column / mean(row) is the best factored estimate of the second moment.
      mean = jnp.mean(row, axis=shorter - int(longer < shorter), keepdims=True)
      by_row = jnp.expand_dims(jax.lax.rsqrt(row / mean), longer)
      by_column = jnp.expand_dims(jax.lax.rsqrt(column), shorter)
      return _Scaled(gradient * by_row * by_column, row, column, full)

    scaled = jax.tree.map_with_path(scale, updates, state.row, state.column, state.full)
    part = lambda i: jax.tree.map(lambda s: s.parts[i], scaled)  # noqa: E731
    return part(0), FactoredMoments(optax.safe_increment(state.count), part(1), part(2), part(3))

  return optax.GradientTransformation(init, update)


class _Scaled:
  """An update and its moments: a plain object, so that tree.map takes it for a leaf."""

  def __init__(self, *parts: Any):
    self.parts = parts


class Momentum(NamedTuple):
  count: jax.Array  # int32 scalar
  momentum: Any


# Of the odd polynomial a x + b x^3 + c x^5 that pushes singular values towards 1 (Jordan et al. 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: jax.Array, steps: int = 5) -> jax.Array:
  """About U V^T of the matrix U S V^T, [..., rows, columns]: singular values between roughly 0.7 and 1.2."""
  a, b, c = NEWTON_SCHULZ
  tall = matrix.shape[-2] > matrix.shape[-1]
  x = jnp.matrix_transpose(matrix) if tall else matrix
  x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-8)
  for _ in range(steps):
    gram = x @ jnp.matrix_transpose(x)  # the smaller of the two products
    x = a * x + (b * gram + c * gram @ gram) @ x
  return jnp.matrix_transpose(x) if tall else x


def scale_by_muon(
  beta: float = 0.95, steps: int = 5, update_rms: float = 0.2, momentum_dtype: str | None = None
) -> optax.GradientTransformation:
  """Nesterov momentum, made orthogonal (Jordan et al. 2024), for matrices and stacks of them.

  An orthogonal matrix has an RMS of 1 / sqrt(longer side); updates are brought to `update_rms`, about what
  AdamW's have, so that learning rates and decay carry over (Liu et al. 2025, section 2.2).
  """

  def init(params):
    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, momentum_dtype or p.dtype), params)
    return Momentum(jnp.zeros((), jnp.int32), zeros)

  def update(updates, state, params=None):
    count = optax.safe_increment(state.count)
    n = count.astype(jnp.float32)
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32), updates)
    momentum = jax.tree.map(lambda m, g: beta * m.astype(jnp.float32) + (1 - beta) * g, state.momentum, gradients)

    def direct(m, g):
      ahead = beta * m / (1 - beta ** (n + 1)) + (1 - beta) * g / (1 - beta**n)  # as NAdam corrects its bias
      return update_rms * max(g.shape[-2:]) ** 0.5 * orthogonalize(ahead, steps)

    kept = jax.tree.map(lambda m, old: m.astype(old.dtype), momentum, state.momentum)
    return jax.tree.map(direct, momentum, gradients), Momentum(count, kept)

  return optax.GradientTransformation(init, update)
