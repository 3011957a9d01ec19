"""(IA)3: learned vectors that multiply activations (Liu et al. 2022, T-Few)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.finetuning.methods.base import Method, Sites, is_target, read_matrices, select
from t5like.finetuning.trainable import check_patterns
from t5like.finetuning.variables import Variable, Variables


@dataclasses.dataclass(frozen=True)
class Scaled:
  """Multiplies the result of a dense layer, or (`before`) its input, by a vector of ones at first."""

  before: bool
  width: int
  axis: str | None

  def __call__(self, layer: nn.Module, product: Any, x: jax.Array) -> jax.Array:
    vector = layer.param(
      "ia3", nn.with_logical_partitioning(nn.initializers.ones, (self.axis,)), (self.width,), jnp.float32
    )
    if self.before:
      return product(x * vector.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,)))
    y = product(x)
    return y * vector.astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))

  def merged(self, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the layer's parameters with scaled rows (`before`) or columns and biases."""
    kernel, vector = weights["kernel"], weights["ia3"].astype(jnp.float32)
    total = kernel.astype(jnp.float32) * (vector[..., :, None] if self.before else vector[..., None, :])
    rest = {name: x for name, x in weights.items() if name != "ia3"}
    if "bias" in rest and not self.before:
      rest["bias"] = (rest["bias"].astype(jnp.float32) * vector).astype(rest["bias"].dtype)
    return rest | {"kernel": total.astype(kernel.dtype)}


@dataclasses.dataclass(frozen=True)
class IA3(Method):
  """Multiplies keys, values and the hidden activations of MLPs by learned vectors.

  targets      expressions for dense layers whose results are multiplied
  feedforward  expressions for dense layers whose inputs are multiplied: the second product of an MLP reads its hidden
               activations
  """

  targets: Sequence[str] = (r".*attention/(key|value)",)
  feedforward: Sequence[str] = (r".*mlp/wo",)

  OWN = "ia3"

  def __post_init__(self):
    super().__post_init__()
    for name in ("targets", "feedforward"):
      if getattr(self, name) or not (self.targets or self.feedforward):
        check_patterns(f"IA3.{name}", getattr(self, name))

  def sites(self, model: nn.Module) -> Sites:
    matrices = [matrix for matrix in read_matrices(model) if not matrix.is_table]
    after = select("IA3", self.targets, matrices)
    before = select("IA3", self.feedforward, matrices, "feedforward")
    sites: Sites = {matrix.path: (Scaled(False, matrix.outputs, matrix.axes[1]),) for matrix in after}
    return sites | {matrix.path: (Scaled(True, matrix.inputs, matrix.axes[0]),) for matrix in before}

  def owns(self, variable: Variable) -> bool:
    return super().owns(variable) and is_target((*self.targets, *self.feedforward), variable)

  def title(self, variables: Variables) -> str:
    return f"(IA)3: {sum(map(self.owns, variables.all))} vectors"
