"""Gradient transformations that depend on a variable's RMS, rows and columns, or singular values.

Scanned layers are stacked along a leading axis of every variable under `layers/`. Each layer is still treated
separately, so that scanning does not change updates.
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
from t5like.training.optimizers.rules import STACKED, path_text

_SMALL = 2**18  # elements of an array that a kernel copies faster than another one starts
_LAYER = re.compile(r"(?<=layers)_\d+(?=/)")


def is_stacked(path: tuple) -> bool:
  """Returns whether a variable's first axis is the layer."""
  return STACKED in path_text(path).split("/")


def scale_by_parameter_rms(minimum: float = 1e-3) -> optax.GradientTransformation:
  """Scales updates by max(minimum, RMS of the parameter) (Adafactor, section 8)."""

  def update(updates, state, params=None):
    def scale(path, u, p):
      stacked = is_stacked(path)
      size = jnp.maximum(jnp.sqrt(_mean_squares([p], stacked)), minimum)
      return u * (_along_layers(size, u) if stacked else size[0])

    return jax.tree.map_with_path(scale, updates, params), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_trust_ratio(unadapted: str | None) -> optax.GradientTransformation:
  """Scales the update of each variable, and of each layer of a stacked one, to the norm of its parameters (LAMB).

  Variables whose path matches `unadapted`, and those or their updates that are 0, keep their update.
  """

  def update(updates, state, params=None):
    def scale(path, u, p):
      if unadapted and re.fullmatch(unadapted, path_text(path)):
        return u
      stacked = is_stacked(path)
      size, length = (jnp.sqrt(square_sums([x], stacked)) for x in (p, u))
      ratio = jnp.where((size > 0) & (length > 0), size / jnp.where(length > 0, length, 1.0), 1.0)
      return u * (_along_layers(ratio, u) if stacked else ratio[0]).astype(u.dtype)

    return jax.tree.map_with_path(scale, updates, params), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class FactoredMoments(NamedTuple):
  count: jax.Array  # int32 scalar
  row: Any  # mean over the longer axis of a factored variable
  column: Any  # mean over the shorter one
  full: Any  # of variables that are not factored


@dataclasses.dataclass(frozen=True)
class Adafactor:
  """The direction of Adafactor's update (Shazeer and Stern 2018), in float32 for any parameter dtype.

  Gradients are divided by the root of their second moment, which is stored as row and column means of matrices (section
  4), with a decay of 1 - n^-decay_rate at the n-th update. A variable is factored over its two longest axes if both
  have at least `min_dim_size_to_factor`, as in T5X. Updates are clipped to an RMS of `clipping_threshold` (section 6)
  and scaled by the parameter's RMS, of at least `min_parameter_scale` (section 8; None: not scaled).

  On a GPU the same variable of all layers is updated together: launching thousands of small kernels would take longer.
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
    for members in _update_groups(paths, [p.shape for _, p, *_ in variables]):
      stacked = is_stacked(paths[members[0]])
      gradient, params_of, *moments = zip(*(variables[i] for i in members), strict=True)
      given = [None if isinstance(parts[0], optax.MaskedNode) else _stack(parts, stacked) for parts in moments]
      direction, *moments = self._direction(_stack(gradient, stacked), _mean_squares(params_of, stacked), keep, *given)
      if len(members) > 1:
        # Otherwise each layer's moments would be computed from those of all layers, which cannot work in place.
        moments = jax.lax.optimization_barrier(moments)
      found = (direction, *moments)
      for n, i in enumerate(members):
        results[i] = tuple(optax.MaskedNode() if x is None else x if stacked else x[n] for x in found)
    directions, row, column, full = (structure.unflatten(part) for part in zip(*results, strict=True))
    return directions, FactoredMoments(optax.safe_increment(state.count), row, column, full)

  def _direction(self, gradient, parameter_squares, keep, row, column, full):
    """Returns update and moments; all have a leading layer axis. `parameter_squares` [layers] are mean squares."""
    gradient = gradient.astype(jnp.float32)
    squared = jnp.square(gradient)
    axes = self._factored_axes(gradient.shape[1:])
    if axes is None:
      full = keep * full + (1.0 - keep) * (squared + self.epsilon)
      update = gradient * jax.lax.rsqrt(full)
    else:
      shorter, longer = (axis + 1 for axis in axes)
      row = keep * row + (1.0 - keep) * (jnp.mean(squared, axis=longer) + self.epsilon)
      column = keep * column + (1.0 - keep) * (jnp.mean(squared, axis=shorter) + self.epsilon)
      # row * column / mean(row) is the best factored estimate of the second moment.
      mean = jnp.mean(row, axis=shorter - int(longer < shorter), keepdims=True)
      by_row = jnp.expand_dims(jax.lax.rsqrt(row / mean), longer)
      update = gradient * by_row * jnp.expand_dims(jax.lax.rsqrt(column), shorter)
    scale = 1.0 / jnp.maximum(1.0, jnp.sqrt(_mean_squares([update], True)) / self.clipping_threshold)
    if self.min_parameter_scale is not None:
      scale = scale * jnp.maximum(jnp.sqrt(parameter_squares), self.min_parameter_scale)
    return update * _along_layers(scale, update), row, column, full

  def _factored_axes(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns the two longest axes, the shorter one first; None if either is too short."""
    if len(shape) < 2:
      return None
    *_, shorter, longer = _by_length(shape)
    return (shorter, longer) if shape[shorter] >= self.min_dim_size_to_factor else None


def _update_groups(paths: Sequence[tuple], shapes: Sequence[tuple[int, ...]]) -> list[list[int]]:
  """Groups variables to update together: on GPUs the same one of all layers, elsewhere each separately."""
  groups: dict[tuple, list[int]] = {}
  for i, (path, shape) in enumerate(zip(paths, shapes, strict=True)):
    name = path_text(path)
    groups.setdefault((_LAYER.sub("", name) if target_platform() == "gpu" else name, shape), []).append(i)
  return list(groups.values())


def _stack(arrays: Sequence[jax.Array], stacked: bool) -> jax.Array:
  """Returns [layers, ...] from arrays of several layers, or from one that is already stacked."""
  return arrays[0] if stacked else jnp.stack(arrays)


def _along_layers(numbers: jax.Array, like: jax.Array) -> jax.Array:
  """Reshapes [layers] to broadcast against [layers, ...]."""
  return numbers.reshape(-1, *[1] * (like.ndim - 1))


def _mean_squares(arrays: Sequence[jax.Array], stacked: bool) -> jax.Array:
  """Returns the mean square of each layer's array, [layers]."""
  layers = arrays[0].shape[0] if stacked else len(arrays)
  return square_sums(arrays, stacked) * (layers / sum(x.size for x in arrays))


def square_sums(arrays: Sequence[jax.Array], stacked: bool, together: bool = False) -> jax.Array:
  """Returns the sum of squares of each layer's array, [layers], in float32.

  On a GPU, large arrays are read one by one, by kernels that also convert them (parameters, to bfloat16); `together`:
  in one kernel, along the axis whose sums Adafactor needs too (gradients).
  """
  squares = lambda x: jnp.square(x.astype(jnp.float32))  # noqa: E731
  on_gpu, first = target_platform() == "gpu", arrays[0]
  if not on_gpu and not stacked:
    return jnp.stack([jnp.sum(squares(x)) for x in arrays])
  if not on_gpu or first.size <= _SMALL or first.ndim - stacked < 2 or (stacked and not together):
    return jnp.sum(squares(_stack(arrays, stacked)), axis=tuple(range(1, first.ndim + 1 - stacked)))
  if together:
    layers = _stack(arrays, stacked)
    rows = jnp.sum(squares(layers), axis=1 + _by_length(layers.shape[1:])[-1])
  else:
    rows = jnp.stack([jnp.sum(squares(x), axis=-1) for x in arrays])
  # The barrier keeps the compiler from merging the two sums.
  rows = jax.lax.optimization_barrier(rows)
  return jnp.sum(rows.reshape(len(rows), -1), axis=1)


def global_norm(tree: Any, together: bool = False) -> jax.Array:
  """Returns the global L2 norm, in float32; `together` is that of `square_sums`."""
  paths, leaves = zip(*jax.tree.leaves_with_path(tree), strict=True)
  groups = _update_groups(paths, [x.shape for x in leaves])
  sums = [square_sums([leaves[i] for i in members], is_stacked(paths[members[0]]), together) for members in groups]
  return jnp.sqrt(jnp.sum(jax.lax.optimization_barrier(jnp.concatenate(sums))))  # else a kernel for each sum


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
  """Scales gradients to a global norm of at most `limit`, as optax does.

  On a GPU with the norm that is also a metric of the step: optax's has two kernels for each variable.
  """
  clip = optax.clip_by_global_norm(limit)

  def update(updates, state, params=None):
    if target_platform() != "gpu":
      return clip.update(updates, state, params)
    norm = global_norm(updates, together=True)
    return jax.tree.map(lambda u: jnp.where(norm < limit, u, (u / norm.astype(u.dtype)) * limit), updates), state

  return optax.GradientTransformation(clip.init, update)


def _by_length(shape: tuple[int, ...]) -> list[int]:
  """Returns the axes, the longest last."""
  return [int(axis) for axis in np.argsort(shape, kind="stable")]


def choose_in_few_kernels(condition: jax.Array, yes: Any, no: Any) -> Any:
  """Returns `yes` or `no`, trees of arrays, by a scalar condition.

  A GPU's compiler joins kernels that read an array completely: small arrays of one shape share the condition as an
  array. For each moment of each layer it would otherwise start a kernel, and copy what it then overwrites.
  """
  conditions: dict[tuple[int, ...], jax.Array] = {}

  def choose(new, old):
    if not 1 < new.size <= _SMALL:
      return jnp.where(condition, new, old)
    if new.shape not in conditions:
      conditions[new.shape] = jax.lax.optimization_barrier(jnp.broadcast_to(condition, new.shape))
    return jnp.where(conditions[new.shape], new, old)

  return jax.tree.map(choose, yes, no)


class Momentum(NamedTuple):
  count: jax.Array  # int32 scalar
  momentum: Any


# Coefficients of a x + b x^3 + c x^5, which moves singular values towards 1 (Jordan et al. 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: jax.Array, steps: int = 5) -> jax.Array:
  """Approximates U V^T of a matrix U S V^T, [..., rows, columns]: singular values between about 0.7 and 1.2."""
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
  """Orthogonalizes Nesterov momentum (Jordan et al. 2024), for matrices and stacks of them.

  An orthogonal matrix has an RMS of 1 / sqrt(longer side); updates are scaled to `update_rms`, about that of AdamW's,
  so that learning rates and weight decay carry over (Liu et al. 2025, section 2.2).
  """

  def init(params):
    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, momentum_dtype or p.dtype), params)
    return Momentum(jnp.zeros((), jnp.int32), zeros)

  def update(updates, state, params=None):
    count = optax.safe_increment(state.count)
    n = count.astype(jnp.float32)
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32), updates)
    momentum = jax.tree.map(lambda m, g: beta * m.astype(jnp.float32) + (1 - beta) * g, state.momentum, gradients)

    def direction(m, g):
      ahead = beta * m / (1 - beta ** (n + 1)) + (1 - beta) * g / (1 - beta**n)  # bias correction as in NAdam
      return update_rms * max(g.shape[-2:]) ** 0.5 * orthogonalize(ahead, steps)

    kept = jax.tree.map(lambda m, old: m.astype(old.dtype), momentum, state.momentum)
    return jax.tree.map(direction, momentum, gradients), Momentum(count, kept)

  return optax.GradientTransformation(init, update)
