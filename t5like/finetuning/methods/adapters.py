"""Adapters: small networks between the layers of a frozen base, of four published kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.finetuning.methods.base import Method, Sites, layer_sites, positive
from t5like.finetuning.methods.few import NORMS
from t5like.finetuning.variables import Variables
from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.models.config import TransformerConfig
from t5like.models.layers import Norm

_SITES = {"houlsby": ("attention", "cross_attention", "mlp")}


class Bottleneck(nn.Module):
  """scale * (act(x down) up), an adapter of one block; its result joins the residual stream as its kind says.

  houlsby    of the sublayer's result y (after dropout): x + y + f(y)
  pfeiffer   of the sum s = x + y: s + f(s), where the base's norm follows, s + f(norm(s))
  parallel   of the sublayer's input h: x + y + f(h)
  sublayer   of the sum with a norm of its own: s + f(own_norm(s))
  """

  config: TransformerConfig
  settings: Extension

  @nn.compact
  def __call__(self, x: jax.Array, y: jax.Array, h: jax.Array, norm: Callable[[jax.Array], jax.Array]) -> jax.Array:
    kind = self.settings.kind
    if kind == "houlsby":
      return x + (y + self._bottleneck(y))
    if kind == "parallel":
      return x + (y + self._bottleneck(h))
    total = x + y
    return total + self._bottleneck(Norm(self.config, name="norm")(total) if kind == "sublayer" else norm(total))

  def _bottleneck(self, x: jax.Array) -> jax.Array:
    settings = self.settings
    stddev = settings.stddev
    down = nn.initializers.truncated_normal(stddev) if stddev else nn.initializers.he_uniform()
    up = nn.initializers.truncated_normal(stddev) if stddev and not settings.zero_up else nn.initializers.zeros
    hidden = ACTIVATIONS[settings.activation](self._dense("down", settings.size, down, ("embed", None))(x))
    return settings.scale * self._dense("up", self.config.embed_dim, up, (None, "embed"))(hidden)

  def _dense(self, name: str, width: int, init: Any, axes: tuple[str | None, str | None]) -> nn.Dense:
    return nn.Dense(
      width,
      use_bias=self.settings.use_bias,
      dtype=self.config.dtype,
      param_dtype=jnp.float32,
      kernel_init=nn.with_logical_partitioning(init, axes),
      bias_init=nn.with_logical_partitioning(nn.initializers.zeros, axes[1:]),
      name=name,
    )


@dataclasses.dataclass(frozen=True)
class Extension:
  """The settings of a block's adapter, which builds it."""

  kind: str
  size: int
  activation: str
  scale: float
  use_bias: bool
  stddev: float
  zero_up: bool

  def __call__(self, config: TransformerConfig) -> nn.Module:
    return Bottleneck(config, self)


@dataclasses.dataclass(frozen=True)
class Adapter(Method):
  """Bottlenecks of `size` hidden units in every block; see `Bottleneck` for the kinds.

  size        hidden units; or `reduction`, the model's width divided by it
  zero_up     starts with zeros in the second product, so that step 0 equals the base; False: as published
  norms       trains the norms of the base, too
  """

  kind: ClassVar[str]
  size: int | None = None
  reduction: float | None = None
  activation: str = "relu"
  scale: float = 1.0
  stddev: float = 0.0  # of a truncated normal; 0: He's uniform
  use_bias: bool = True
  zero_up: bool = True
  norms: bool = False

  def __post_init__(self):
    super().__post_init__()
    name = type(self).__name__
    if (self.size is None) == (self.reduction is None):
      raise UserError(f"{name} needs a size or a reduction", try_=f"--gin.{name}.size=64")
    positive(f"{name}.size", self.size if self.reduction is None else 1)
    positive(f"{name}.reduction", self.reduction or 1, whole=False)
    if self.activation not in ACTIVATIONS:
      raise UserError(f"invalid {name}.activation: {self.activation!r}", expected=", ".join(ACTIVATIONS))

  @property
  def OWN(self) -> str:
    own = r"(attention|cross_attention|mlp)_adapter/.*"
    return f"{own}|{NORMS}" if self.norms else own

  def sites(self, model: nn.Module) -> Sites:
    size = self.size or max(1, round(model.config.embed_dim / self.reduction))
    extension = Extension(self.kind, size, self.activation, self.scale, self.use_bias, self.stddev, self.zero_up)
    parts = _SITES.get(self.kind, ("mlp",))
    return {f"{site}_adapter": (extension,) for part in parts for site in layer_sites(model, part)}

  def title(self, variables: Variables) -> str:
    count = sum(v.numbered.endswith("_adapter/down/kernel") for v in variables.all)
    return f"{count} adapters ({type(self).__name__})" + (" and the norms" if self.norms else "")


@dataclasses.dataclass(frozen=True)
class HoulsbyAdapter(Adapter):
  """Houlsby et al. 2019: after attention and MLP, before the residual sum; all norms train, too."""

  kind: ClassVar[str] = "houlsby"
  size: int | None = 64
  activation: str = "gelu"
  stddev: float = 1e-2
  norms: bool = True


@dataclasses.dataclass(frozen=True)
class PfeifferAdapter(Adapter):
  """Pfeiffer et al. 2020: once in a block, after the MLP."""

  kind: ClassVar[str] = "pfeiffer"
  reduction: float | None = 16


@dataclasses.dataclass(frozen=True)
class ParallelAdapter(Adapter):
  """He et al. 2021: next to the MLP, scaled by 4."""

  kind: ClassVar[str] = "parallel"
  reduction: float | None = 2
  scale: float = 4.0


@dataclasses.dataclass(frozen=True)
class T5Adapter(Adapter):
  """Raffel et al. 2019, section 3.5.1: dense-relu-dense after each MLP, with a norm of its own and without biases.

  As in the paper's text the base's norms train, too; T5's released task_adapter.gin trains only the new norm, and
  starts with random values in the second product.
  """

  kind: ClassVar[str] = "sublayer"
  size: int | None = 128
  use_bias: bool = False
  norms: bool = True
