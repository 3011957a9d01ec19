"""Gradient transformations that look at a variable as a whole: its RMS, its rows and columns, its singular values.

Scanned layers are stacked along a leading axis of every variable under `layers/`. A layer is treated by
itself all the same, so that scanning changes no update.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5like.kernels.platform import target_platform
from t5like.training.optimizers.rules import path_text

STACKED = "layers"
_LAYER = re.compile(r"(?<=layers)_\d+(?=/)")


def is_stacked(path: tuple) -> bool:
  """Whether a variable's first axis counts layers."""
  return STACKED in path_text(path).split("/")


def scale_by_parameter_rms(minimum: float = 1e-3) -> optax.GradientTransformation:
  """Makes updates relative to the parameter's own size, max(minimum, RMS) (Adafactor, section 8)."""

  def update(updates, state, params=None):
    def scale(path, u, p):
      stacked = is_stacked(path)
      size = jnp.maximum(jnp.sqrt(_mean_squares([p], stacked)), minimum)
      return u * (_along_layers(size, u) if stacked else size[0])

    return jax.tree.map_with_path(scale, updates, params), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class FactoredMoments(NamedTuple):
  count: jax.Array  # int32 scalar
  row: Any  # mean over the longer axis of a factored variable
  column: Any  # mean over the shorter one
  full: Any  # of variables that are not factored


@dataclasses.dataclass(frozen=True)
class Adafactor:
  """The direction of Adafactor's update (Shazeer and Stern 2018), in float32 whatever the parameters are.

  Gradients are divided by the root of their second moment, which is kept as row and column means of matrices (section
  4), with a decay of 1 - n^-decay_rate at the n-th update: the first takes the gradient as it is. A variable is
  factored over its two longest axes where both have `min_dim_size_to_factor`, as in T5X. Updates are scaled down to an
  RMS of `clipping_threshold` (section 6) and are relative to the parameter's own RMS, of at least
  `min_parameter_scale` (section 8; None: they are not).

  A GPU takes the same variable of all layers together: thousands of small kernels would take longer than the work.
  """

  decay_rate: float
  epsilon: float
  min_dim_size_to_factor: int
  clipping_threshold: float
  min_parameter_scale: float | None

  def transformation(self) -> optax.GradientTransformation:
    return optax.GradientTransformation(self.init, self.update)

  def init(self, params: Any) -> FactoredMoments:
    def zeros(path, p, part):
      first = int(is_stacked(path))
      axes = self._factored_axes(p.shape[first:])
      if (axes is None) != (part == "full"):
        return optax.MaskedNode()
      gone = () if axes is None else first + (axes[1] if part == "row" else axes[0])
      return jnp.zeros(tuple(int(size) for size in np.delete(p.shape, gone)), jnp.float32)

    parts = {
      part: jax.tree.map_with_path(lambda path, p, part=part: zeros(path, p, part), params)
      for part in ("row", "column", "full")
    }
    return FactoredMoments(jnp.zeros((), jnp.int32), **parts)

  def update(self, updates: Any, state: FactoredMoments, params: Any = None) -> tuple[Any, FactoredMoments]:
    keep = 1.0 - (state.count.astype(jnp.float32) + 1.0) ** -self.decay_rate
    with_paths, structure = jax.tree.flatten_with_path(updates)
    paths = [path for path, _ in with_paths]
    trees = [updates, params, state.row, state.column, state.full]
    variables = list(zip(*(structure.flatten_up_to(tree) for tree in trees), strict=True))
    results: list[tuple] = [()] * len(paths)
    for members in _alike(paths, [p.shape for _, p, *_ in variables]):
      stacked = is_stacked(paths[members[0]])
      gradient, params_of, *moments = zip(*(variables[i] for i in members), strict=True)
      given = [None if isinstance(parts[0], optax.MaskedNode) else _together(parts, stacked) for parts in moments]
      found = self._direction(_together(gradient, stacked), _mean_squares(params_of, stacked), keep, *given)
      for n, i in enumerate(members):
        results[i] = tuple(optax.MaskedNode() if x is None else x if stacked else x[n] for x in found)
    directions, row, column, full = (structure.unflatten(part) for part in zip(*results, strict=True))
    return directions, FactoredMoments(optax.safe_increment(state.count), row, column, full)

  def _direction(self, gradient, parameter_squares, keep, row, column, full):
    """All have a leading axis of layers. `parameter_squares` [layers] is the mean square of each parameter."""
    gradient = gradient.astype(jnp.float32)
    squared = jnp.square(gradient) + self.epsilon
    axes = self._factored_axes(gradient.shape[1:])
    if axes is None:
      full = keep * full + (1.0 - keep) * squared
      update = gradient * jax.lax.rsqrt(full)
    else:
      shorter, longer = (axis + 1 for axis in axes)
      row = keep * row + (1.0 - keep) * jnp.mean(squared, axis=longer)
      column = keep * column + (1.0 - keep) * jnp.mean(squared, axis=shorter)
      # row * column / mean(row) is the best factored estimate of the second moment.
      mean = jnp.mean(row, axis=shorter - int(longer < shorter), keepdims=True)
      by_row = jnp.expand_dims(jax.lax.rsqrt(row / mean), longer)
      update = gradient * by_row * jnp.expand_dims(jax.lax.rsqrt(column), shorter)
    scale = 1.0 / jnp.maximum(1.0, jnp.sqrt(_mean_squares([update], True)) / self.clipping_threshold)
    if self.min_parameter_scale is not None:
      scale = scale * jnp.maximum(jnp.sqrt(parameter_squares), self.min_parameter_scale)
    return update * _along_layers(scale, update), row, column, full

  def _factored_axes(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The two longest axes, the shorter one first; None where one is too short."""
    if len(shape) < 2:
      return None
    *_, shorter, longer = np.argsort(shape, kind="stable")
    return (int(shorter), int(longer)) if shape[shorter] >= self.min_dim_size_to_factor else None


def _alike(paths: Sequence[tuple], shapes: Sequence[tuple[int, ...]]) -> list[list[int]]:
  """Which variables are updated together: on GPUs the same one of all layers, elsewhere each by itself."""
  groups: dict[tuple, list[int]] = {}
  for i, (path, shape) in enumerate(zip(paths, shapes, strict=True)):
    name = path_text(path)
    groups.setdefault((_LAYER.sub("", name) if target_platform() == "gpu" else name, shape), []).append(i)
  return list(groups.values())


def _together(arrays: Sequence[jax.Array], stacked: bool) -> jax.Array:
  """[layers, ...]: arrays of several layers, or one that is stacked already."""
  return arrays[0] if stacked else jnp.stack(arrays)


def _along_layers(numbers: jax.Array, like: jax.Array) -> jax.Array:
  """[layers], shaped to be multiplied with [layers, ...]."""
  return numbers.reshape(-1, *[1] * (like.ndim - 1))


def _mean_squares(arrays: Sequence[jax.Array], stacked: bool) -> jax.Array:
  """The mean square of each layer's array, [layers]."""
  layers = arrays[0].shape[0] if stacked else len(arrays)
  return square_sums(arrays, stacked) * (layers / sum(x.size for x in arrays))


def square_sums(arrays: Sequence[jax.Array], stacked: bool) -> jax.Array:
  """The sum of squares of each layer's array, [layers], in float32."""
  squares = [jnp.square(x.astype(jnp.float32)) for x in arrays]
  if stacked:
    return jnp.sum(squares[0], axis=tuple(range(1, squares[0].ndim)))
  if target_platform() != "gpu":
    return jnp.stack([jnp.sum(x) for x in squares])
  # Along rows first, then all that is left of all layers together: a kernel for each array instead of two. The barrier
  # keeps the compiler from taking the two sums for one.
  rows = jax.lax.optimization_barrier(jnp.stack([jnp.sum(x, axis=-1) if x.ndim > 1 else x for x in squares]))
  return jnp.sum(rows.reshape(len(arrays), -1), axis=1)


def global_norm(tree: Any) -> jax.Array:
  """The root of the sum of all squares, in float32."""
  paths, leaves = zip(*jax.tree.leaves_with_path(tree), strict=True)
  groups = _alike(paths, [x.shape for x in leaves])
  sums = [square_sums([leaves[i] for i in members], is_stacked(paths[members[0]])) for members in groups]
  return jnp.sqrt(sum(jnp.sum(x) for x in sums))


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
