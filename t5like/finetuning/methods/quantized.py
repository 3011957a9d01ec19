"""QLoRA: LoRA on a base in 4 bits (Dettmers et al. 2023).

qwix quantizes Flax models to NF4, too, but has no double quantization and intercepts `dot_general`, which the fused
decoding products and merging here do not pass through; so this is a dense layer's extension like the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5like.errors import UserError
from t5like.finetuning.methods.base import Arrays, Matrix, Sites, read_matrices, select
from t5like.finetuning.methods.lora import ALL_LINEAR, LoRA
from t5like.finetuning.trainable import Episode, check_patterns
from t5like.finetuning.variables import Variables
from t5like.kernels.activations import add_bias

# The quantiles of a normal distribution, scaled to [-1, 1], with an exact zero (appendix E).
LEVELS = np.array([
  -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
  -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
  0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
BLOCK, GROUP = 64, 256  # weights with one scale, and scales with one float32
_BOUNDS = (LEVELS[1:] + LEVELS[:-1]) / 2
_LEAVES = ("codes", "scales", "groups", "mean")


def quantize(kernel: np.ndarray) -> dict[str, np.ndarray]:
  """Returns a kernel [..., in, out] in 4 bits per weight.

  codes   uint8 [..., in / 2, out]: two levels, of an even and the following odd row
  scales  int8 [..., in / 64, out]: the largest absolute value of 64 weights of a column, less `mean`, in units of ...
  groups  float32 [..., in / 64, out / 256]: ... a 127th of this, one for 256 scales
  mean    float32 [...]: of all scales

  Widths that 64 or 256 do not divide have smaller blocks.
  """
  *leading, inputs, outputs = kernel.shape
  block, group = math.gcd(inputs, BLOCK), math.gcd(outputs, GROUP)
  blocks = kernel.astype(np.float32).reshape(*leading, inputs // block, block, outputs)
  largest = np.abs(blocks).max(axis=-2)  # [..., in / block, out]
  mean = largest.mean(axis=(-2, -1))
  rest = (largest - mean[..., None, None]).reshape(*leading, inputs // block, outputs // group, group)
  groups = np.abs(rest).max(axis=-1)
  scales = np.rint(127 * rest / np.maximum(groups, 1e-30)[..., None]).astype(np.int8)
  weights = {"scales": scales.reshape(largest.shape), "groups": groups, "mean": mean.astype(np.float32)}
  used = np.asarray(_read_scales(weights)).astype(np.float32)  # as they will be read
  levels = blocks / np.where(used == 0, 1, used)[..., None, :]
  codes = np.searchsorted(_BOUNDS, levels).astype(np.uint8).reshape(*leading, inputs // 2, 2, outputs)
  return weights | {"codes": codes[..., 0, :] | codes[..., 1, :] << 4}


def dequantize(weights: Mapping[str, Any], dtype: Any = jnp.float32) -> jax.Array:
  """Returns the kernel [..., in, out] of a quantized one."""
  codes, scales = jnp.asarray(weights["codes"]), _read_scales(weights)
  *leading, half, outputs = codes.shape
  both = jnp.stack([codes & 15, codes >> 4], axis=-2).reshape(*leading, 2 * half, outputs)
  levels = jnp.take(jnp.asarray(LEVELS), both.astype(jnp.int32), mode="clip")
  blocks = levels.reshape(*leading, scales.shape[-2], -1, outputs) * scales[..., None, :]
  return blocks.reshape(*leading, 2 * half, outputs).astype(dtype)


def _read_scales(weights: Mapping[str, Any]) -> Any:
  scales, groups = jnp.asarray(weights["scales"]), jnp.asarray(weights["groups"])
  split = scales.reshape(*groups.shape, -1).astype(jnp.float32) * (groups[..., None] / 127)
  return split.reshape(scales.shape) + jnp.asarray(weights["mean"])[..., None, None]


@jax.checkpoint  # otherwise the converted kernel would be saved for the backward pass, in 16 bits
def _product(x: jax.Array, weights: Mapping[str, Any]) -> jax.Array:
  # A product of its own: fused with the conversion, each matrix would be a kernel that XLA tunes for minutes.
  return x @ jax.lax.optimization_barrier(dequantize(weights, x.dtype))


@dataclasses.dataclass(frozen=True)
class NF4:
  """A dense layer whose kernel is stored in 4 bits; it is converted in both passes and never kept."""

  inputs: int
  outputs: int
  axes: tuple[str | None, str | None]

  def __call__(self, layer: nn.Module, product: Any, x: jax.Array) -> jax.Array:
    blocks = self.inputs // math.gcd(self.inputs, BLOCK)
    rows, columns = self.axes
    shapes = {
      "codes": ((self.inputs // 2, self.outputs), jnp.uint8, (rows, columns)),
      "scales": ((blocks, self.outputs), jnp.int8, (None, columns)),
      "groups": ((blocks, self.outputs // math.gcd(self.outputs, GROUP)), jnp.float32, (None, None)),
      "mean": ((), jnp.float32, ()),
    }
    named = nn.with_logical_partitioning
    # A random base, as other dense layers have; runs replace it by theirs.
    inits = {"codes": jax.random.bits, "mean": nn.initializers.constant(self.inputs**-0.5)}
    weights = {
      name: layer.param(name, named(inits.get(name, nn.initializers.zeros), axes), shape, dtype)
      for name, (shape, dtype, axes) in shapes.items()
    }
    dtype = layer.dtype or x.dtype
    y = _product(x.astype(dtype), weights)
    if layer.use_bias:
      bias = layer.param("bias", named(nn.initializers.zeros, (columns,)), (self.outputs,), jnp.float32)
      y = add_bias(y, bias)
    return y

  def merged(self, weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in weights.items() if name not in _LEAVES} | {"kernel": dequantize(weights)}


@dataclasses.dataclass(frozen=True)
class QLoRA(LoRA):
  """LoRA on a base whose matrices are stored in NF4, with double quantization: 4.127 bits per weight.

  quantized  expressions for the matrices in 4 bits; embeddings, norms and heads are never quantized
  """

  targets: Sequence[str] = ALL_LINEAR
  rank: int = 64
  quantized: Sequence[str] = ALL_LINEAR

  def __post_init__(self):
    super().__post_init__()
    check_patterns("QLoRA.quantized", self.quantized)
    if self.dora:
      raise UserError("QLoRA does not support DoRA, which needs the norms of the base's columns", try_="dora=False")

  def sites(self, model: nn.Module) -> Sites:
    sites = super().sites(model)
    for matrix in self._quantized(model):
      extension = NF4(matrix.inputs, matrix.outputs, matrix.axes)
      sites[matrix.path] = (extension, *sites.get(matrix.path, ()))
    return sites

  def _quantized(self, model: nn.Module) -> list[Matrix]:
    found = list(select("QLoRA", self.quantized, read_matrices(model), "quantized"))
    for matrix in found:
      if matrix.is_table or matrix.path.endswith("logits_dense"):
        raise UserError(f"{matrix.path} is not quantized: only matrices of layers are", try_="other QLoRA.quantized")
      if matrix.inputs % 2:
        raise UserError(f"{matrix.path} has {matrix.inputs} rows: two share a byte", expected="an even number")
    return found

  def converted(self, base: Arrays) -> Arrays:
    stored = {}
    for path, array in base.items():
      module, _, name = path.rpartition("/")
      if name == "kernel" and self._is_quantized(module, array):
        stored |= {f"{module}/{leaf}": x for leaf, x in quantize(array).items()}
      else:
        stored[path] = array
    return stored

  def _is_quantized(self, module: str, array: np.ndarray) -> bool:
    layers = array.shape[0] if array.ndim == 3 else 0
    return Matrix(module, "kernel", *array.shape[-2:], (None, None), layers).matches(self.quantized)

  def episodes(self, variables: Variables, steps: int) -> list[Episode]:
    found = super().episodes(variables, steps)
    for path in found[0].selection.layers:
      if path.rpartition("/")[2] in _LEAVES:
        raise UserError(f"{path.rpartition('/')[0]} is quantized and cannot be trained", try_="other QLoRA.also")
    return found
