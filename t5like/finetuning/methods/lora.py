"""LoRA: low-rank updates of frozen matrices (Hu et al. 2021), with rsLoRA and DoRA."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5like.errors import UserError
from t5like.finetuning.methods.base import (
  Arrays,
  Matrix,
  Method,
  Sites,
  is_target,
  positive,
  read_matrices,
  select,
  unit,
)
from t5like.finetuning.trainable import check_patterns
from t5like.finetuning.variables import Variable, Variables
from t5like.kernels.dropout import dropout
from t5like.models.layers import parameter

ATTENTION_QV = (r".*attention/(query|value)",)  # of self- and cross-attention: the paper's choice, and peft's
ALL_LINEAR = (r".*attention/(query|key|value|out)", r".*mlp/w.*")


@dataclasses.dataclass(frozen=True)
class LowRank:
  """y = x W + scale * (dropout(x) A) B, with A [in, rank] and B [rank, out]; the extension of a dense layer.

  W has no gradient, and the update is never multiplied out in training. With `magnitude` (DoRA, Liu et al. 2024) every
  column of W + scale A B is divided by its norm, which counts as a constant, and multiplied by a learned magnitude.
  """

  rank: int
  scale: float
  dropout: float
  magnitude: bool
  inputs: int
  outputs: int
  axes: tuple[str | None, str | None]

  def __call__(self, layer: nn.Module, product: Any, x: jax.Array) -> jax.Array:
    y = product(x)  # first, so that the base draws the same initial values
    dtype, param = getattr(layer, "dtype", None) or x.dtype, jnp.float32
    # As in peft and loralib: Kaiming-uniform with a = sqrt(5), which is uniform within 1 / sqrt(in).
    a_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
    a = parameter(layer, "lora_a", _named(a_init, self.axes[0], None), (self.inputs, self.rank), param).astype(dtype)
    b_init = _named(nn.initializers.zeros, None, self.axes[1])
    b = parameter(layer, "lora_b", b_init, (self.rank, self.outputs), param).astype(dtype)
    x = x.astype(dtype)
    if self.dropout and layer.has_rng("dropout") and not layer.is_initializing():
      x = dropout(x, self.dropout, layer.make_rng("dropout"))
    delta = (jnp.asarray(self.scale, dtype) * ((x @ a) @ b)).astype(y.dtype)
    if not self.magnitude:
      return y + delta
    magnitude = parameter(layer, "magnitude", _named(nn.initializers.ones, self.axes[1]), (self.outputs,), param)
    kernel = layer.get_variable("params", "kernel")
    update = self.scale * (a.astype(jnp.float32) @ b.astype(jnp.float32))
    norm = jax.lax.stop_gradient(column_norms(nn.unbox(kernel).astype(jnp.float32) + update))
    factor = (magnitude.astype(jnp.float32) / norm).astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))
    bias = layer.get_variable("params", "bias") if layer.has_variable("params", "bias") else None
    if bias is None:
      return factor * (y + delta)
    bias = nn.unbox(bias).astype(y.dtype).reshape(factor.shape)
    return factor * (y - bias + delta) + bias

  def merged(self, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {kernel, bias} of a dense layer with the same result; arrays may have a leading layer axis."""
    kernel = weights["kernel"]
    update = weights["lora_a"].astype(jnp.float32) @ weights["lora_b"].astype(jnp.float32)
    total = kernel.astype(jnp.float32) + self.scale * update
    if self.magnitude:
      factor = weights["magnitude"].astype(jnp.float32) / column_norms(total)
      total = total * factor[..., None, :]
    rest = {name: x for name, x in weights.items() if name not in ("lora_a", "lora_b", "magnitude")}
    return rest | {"kernel": total.astype(kernel.dtype)}


@dataclasses.dataclass(frozen=True)
class LowRankTable:
  """Rows E[id] + scale * A[id] B of an embedding, with A [vocab, rank] zero at first; also of a tied output."""

  rank: int
  scale: float
  inputs: int
  outputs: int
  axes: tuple[str | None, str | None]

  def factors(self, embedder: nn.Module) -> tuple[jax.Array, jax.Array]:
    """Returns A [vocab, rank] and scale * B [rank, embed]."""
    a_init = _named(nn.initializers.zeros, self.axes[0], None)
    a = parameter(embedder, "lora_a", a_init, (self.inputs, self.rank), jnp.float32)
    b_init = _named(nn.initializers.normal(1.0), None, self.axes[1])
    return a, self.scale * parameter(embedder, "lora_b", b_init, (self.rank, self.outputs), jnp.float32)

  def merged(self, weights: Mapping[str, Any]) -> dict[str, Any]:
    table, a, b = (weights[name] for name in ("embedding", "lora_a", "lora_b"))
    total = table.astype(jnp.float32) + self.scale * (a.astype(jnp.float32) @ b.astype(jnp.float32))
    rest = {name: x for name, x in weights.items() if name not in ("lora_a", "lora_b")}
    return rest | {"embedding": total.astype(table.dtype)}


@dataclasses.dataclass(frozen=True)
class LoRA(Method):
  """Adds scale * A B to frozen matrices, where scale is alpha / rank (rsLoRA: alpha / sqrt(rank)).

  targets     expressions for paths of matrices; each must match. Scanned layers have numbers, too: '.*/layers_11/.*'
  rank, alpha    of all targets, but for those that match an expression of `ranks` or `alphas`
  dropout     of the input of A
  rslora      Kalajdzievski 2023: keeps the size of the update when the rank grows
  dora        Liu et al. 2024: learns the norm of every column separately
  tied_output    allows token_embedder/embedding as a target where the output is tied to it, and so changes, too
  """

  targets: Sequence[str] = ATTENTION_QV
  rank: int = 8
  alpha: float = 16.0
  ranks: Mapping[str, int] = dataclasses.field(default_factory=dict)
  alphas: Mapping[str, float] = dataclasses.field(default_factory=dict)
  dropout: float = 0.0
  rslora: bool = False
  dora: bool = False
  tied_output: bool = False

  OWN = "lora_a|lora_b|magnitude"

  def __post_init__(self):
    super().__post_init__()
    name = type(self).__name__
    check_patterns(f"{name}.targets", self.targets)
    for pattern in (*self.ranks, *self.alphas):
      check_patterns(f"{name}.ranks or {name}.alphas", [pattern])
    for rank in (self.rank, *self.ranks.values()):
      positive(f"{name}.rank", rank)
    for alpha in (self.alpha, *self.alphas.values()):
      positive(f"{name}.alpha", alpha, whole=False)
    unit(f"{name}.dropout", self.dropout)

  def targeted(self, model: nn.Module) -> dict[Matrix, tuple[int, float]]:
    """Returns rank and scale of every target."""
    name, matrices = type(self).__name__, read_matrices(model)
    chosen = list(select(name, self.targets, matrices))
    for pattern in (*self.ranks, *self.alphas):
      self._check_all_layers(pattern, chosen)
    ranks = {matrix: self.ranks[p] for matrix, p in select(name, list(self.ranks), chosen, "ranks").items()}
    alphas = {matrix: self.alphas[p] for matrix, p in select(name, list(self.alphas), chosen, "alphas").items()}
    found = {}
    for matrix in chosen:
      rank, alpha = ranks.get(matrix, self.rank), alphas.get(matrix, self.alpha)
      if rank > min(matrix.inputs, matrix.outputs):
        raise UserError(
          f"rank {rank} of {name} is above the width of {matrix.path} [{matrix.inputs}, {matrix.outputs}]",
          expected=f"at most {min(matrix.inputs, matrix.outputs)}",
        )
      found[matrix] = rank, alpha / (rank**0.5 if self.rslora else rank)
    return found

  def sites(self, model: nn.Module) -> Sites:
    sites: Sites = {}
    for matrix, (rank, scale) in self.targeted(model).items():
      if matrix.is_table:
        self._check_table(model)
        sites[matrix.path] = (LowRankTable(rank, scale, matrix.inputs, matrix.outputs, matrix.axes),)
      else:
        size = matrix.inputs, matrix.outputs, matrix.axes
        sites[matrix.path] = (LowRank(rank, scale, self.dropout, self.dora, *size),)
    return sites

  def _check_all_layers(self, pattern: str, chosen: Sequence[Matrix]) -> None:
    for matrix in chosen:
      if matrix.layers and len(matches := matrix.matching_layers(pattern)) not in (0, matrix.layers):
        raise UserError(
          f"the pattern {pattern!r} of {type(self).__name__} matches layers {matches} of {matrix.path}",
          because="stacked layers have one rank and alpha",
          try_="--gin.SCAN_LAYERS=False, or a pattern for all layers",
        )

  def _check_table(self, model: nn.Module) -> None:
    if model.config.tie_embeddings and not self.tied_output:
      raise UserError(
        "the output matrix is tied to token_embedder/embedding: LoRA would change both",
        try_="--gin.LoRA.tied_output=True to train both together, or other targets",
      )
    if self.dora:
      raise UserError("DoRA does not support the embedding", try_="--gin.LoRA.dora=False, or other targets")

  def owns(self, variable: Variable) -> bool:
    return super().owns(variable) and is_target(self.targets, variable)

  def title(self, variables: Variables) -> str:
    count = sum(self.owns(v) and v.numbered.endswith("lora_a") for v in variables.all)
    kind = "DoRA" if self.dora else "rsLoRA" if self.rslora else type(self).__name__
    ranks = sorted({self.rank, *self.ranks.values()})
    return f"{kind} of rank {', '.join(map(str, ranks))} on {count} matrices"

  def initial(self, base: Arrays, model: nn.Module, vocabulary: Any) -> dict[str, np.ndarray]:
    if not self.dora:
      return {}
    kernels = {matrix.path: base[f"{matrix.path}/kernel"] for matrix in self.targeted(model)}
    return {f"{path}/magnitude": np.asarray(column_norms(x.astype(np.float32))) for path, x in kernels.items()}


def column_norms(kernel: Any) -> Any:
  """Returns the norm of each column of [..., in, out]."""
  return jnp.sqrt(jnp.sum(kernel * kernel, axis=-2))


def _named(init: Any, *axes: str | None) -> Any:
  return nn.with_logical_partitioning(init, axes)
