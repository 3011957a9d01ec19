"""Attention behind one function: softmax(scale * q k^T + bias, masked) v.

The caller describes the mask and the relative position bias (`Mask`, `RelativeBias`); a back end draws the full
[query, key] matrices only if it has to. `attention(..., backend="auto")` takes the fastest back end that can do
what is asked; `choose_backend` says which one and why, and refuses by name what a machine cannot run.
"""

import dataclasses
from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from t5like.errors import UserError, nearest
from t5like.kernels.attention.masks import Mask, mask_matrix
from t5like.kernels.attention.relative_bias import RelativeBias, bias_matrix, relative_buckets
from t5like.kernels.attention.xla import xla_attention
from t5like.kernels.platform import (
  can_write_gpu_kernels,
  compile_for,
  described_platform,
  must_be_deterministic,
  target_platform,
)

__all__ = [
  "Case", "Mask", "RelativeBias", "Split", "attention", "bias_matrix", "check_backend", "choose_backend",
  "compile_for", "mask_matrix", "relative_buckets",
]  # fmt: skip

Axes = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Split:
  """The mesh axes over which the batch and the heads are split."""

  batch: Axes = None
  heads: Axes = None


@dataclasses.dataclass(frozen=True)
class Case:
  """What a back end is asked to do, as far as the choice depends on it."""

  dtype: str
  head_dim: int
  query_length: int
  key_length: int
  has_bias: bool = False
  has_prefix: bool = False
  packed: bool = False  # rows of several examples, kept apart by segment ids
  dropout: bool = False
  cached: bool = False  # one step of decoding: queries stand at an offset


# Nothing is split.
WHOLE = Split()


def attention(
  query: jax.Array,  # [batch, query, heads, kv]
  key: jax.Array,  # [batch, key, heads, kv]
  value: jax.Array,  # [batch, key, heads, kv]
  *,
  mask: Mask,
  bias: RelativeBias | None = None,
  scale: float = 1.0,
  query_offset: jax.Array | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  backend: str = "auto",
  split: Split = WHOLE,
) -> jax.Array:  # [batch, query, heads, kv]
  """Attends; the softmax is in float32 whatever the inputs are.

  query_offset [batch] is the index of each row's first query among the keys (decoding with a cache); without it
  query i stands at key i. A query that may look at no key at all gets something finite that differs by back end.
  """
  case = Case(
    dtype=query.dtype.name, head_dim=query.shape[3], query_length=query.shape[1], key_length=key.shape[1],
    has_bias=bias is not None, has_prefix=mask.causal and mask.prefix is not None,
    packed=mask.query_segments is not None,
    dropout=dropout_rate > 0.0 and dropout_key is not None, cached=query_offset is not None,
  )  # fmt: skip
  name, _ = choose_backend(backend, case)
  if name == "xla":
    return xla_attention(query, key, value, mask, bias, scale, query_offset, dropout_rate, dropout_key)
  return _on_each_device(_KERNELS[name](), query, key, value, mask, bias, scale, split)


def _on_each_device(
  kernel: Callable[..., jax.Array], query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask,
  bias: RelativeBias | None, scale: float, split: Split,
) -> jax.Array:  # fmt: skip
  """Runs a kernel on every device's own rows and heads: the partitioner cannot look inside one.

  Axes that do not divide the rows or heads (a batch of two while parameters are initialized) are left whole.
  """
  mesh = jax.sharding.get_abstract_mesh()
  batch, _, heads, _ = query.shape
  rows, columns = dividing_axes(mesh, split.batch, batch), dividing_axes(mesh, split.heads, heads)
  if rows is None and columns is None:
    return kernel(query, key, value, mask, bias, scale)
  tokens = PartitionSpec(rows, None, columns, None)
  masks = jax.tree.map(lambda _: PartitionSpec(rows, None), mask)
  tables = jax.tree.map(lambda _: PartitionSpec(None, columns), bias)
  return jax.shard_map(
    lambda q, k, v, m, b: kernel(q, k, v, m, b, scale),
    in_specs=(tokens, tokens, tokens, masks, tables),
    out_specs=tokens,
    check_vma=False,  # a kernel's results carry no record of the axes they vary over
  )(query, key, value, mask, bias)


def dividing_axes(mesh: jax.sharding.AbstractMesh, axes: Axes, size: int) -> tuple[str, ...] | None:
  """Those of some mesh axes over which `size` is really split; None where it is not, or does not divide."""
  axes = (axes,) if isinstance(axes, str) else axes or ()
  axes = tuple(axis for axis in axes if mesh.shape.get(axis, 1) > 1)
  parts = 1
  for axis in axes:
    parts *= mesh.shape[axis]
  return axes if axes and size % parts == 0 else None


def _pallas_gpu():
  from t5like.kernels.gpu.attention import gpu_attention

  return gpu_attention


def _cudnn():
  from t5like.kernels.attention.cudnn import cudnn_attention

  return cudnn_attention


def _splash_tpu():
  from t5like.kernels.attention.splash import splash_attention

  return splash_attention


def _pallas_tpu():
  from t5like.kernels.tpu.attention import tpu_attention

  return tpu_attention


# Imported when they are first used: each needs parts of JAX that take long to load.
_KERNELS = {"pallas_gpu": _pallas_gpu, "cudnn": _cudnn, "splash_tpu": _splash_tpu, "pallas_tpu": _pallas_tpu}
BACKENDS = {
  "xla": "plain matrix products: runs everywhere, memory grows with length^2",
  "pallas_gpu": "our fused attention for GPUs since Hopper: T5's bias is made inside, packed rows skip other examples",
  "cudnn": "cuDNN's fused attention: NVIDIA GPUs, the score matrix is never written",
  "splash_tpu": "JAX's splash attention for TPUs: no bias, and hidden blocks are not even visited",
  "pallas_tpu": "our fused attention for TPUs: the score matrix is never written, T5's bias is made inside",
}
# In the order in which they are tried. Ours for GPUs is as fast as cuDNN's, and gives the same bits every time.
_PLATFORMS = {"pallas_gpu": "gpu", "cudnn": "gpu", "splash_tpu": "tpu", "pallas_tpu": "tpu"}
# Below this many scores a head, plain products are as fast as a kernel that never writes them.
_FEW_SCORES = 128 * 128


def check_backend(name: str) -> None:
  """Refuses a name that is no back end, on any machine."""
  if name != "auto" and name not in BACKENDS:
    raise UserError(
      f"no attention back end is called {name!r}",
      field="TransformerConfig.attention_backend",
      choices=", ".join(["auto", *BACKENDS]),
      nearest=nearest(name, ["auto", *BACKENDS]),
    )


def choose_backend(name: str, case: Case, platform: str | None = None) -> tuple[str, str]:
  """The back end that runs, and why. A back end asked for by name is refused where it cannot run at all, and
  makes way for plain products where only this case is beyond it (dropout, a step of decoding)."""
  check_backend(name)
  platform = platform or target_platform()
  if name == "xla":
    return "xla", "asked for by name"
  if name == "auto":
    fitting = [backend for backend, needs in _PLATFORMS.items() if needs == platform]
    if not fitting:
      return "xla", f"plain products: {platform} has no fused attention"
    able = [backend for backend in fitting if not _obstacle(backend, case)]
    if not able:
      return "xla", f"plain products: {_obstacle(fitting[-1], case)}"
    if platform == "tpu" and case.query_length * case.key_length < _FEW_SCORES:
      return "xla", f"plain products: {case.query_length} x {case.key_length} scores are few"
    return able[0], BACKENDS[able[0]]
  if platform != _PLATFORMS[name]:
    raise UserError(
      f"attention back end {name!r} does not run on this machine",
      field="TransformerConfig.attention_backend",
      needs=_PLATFORMS[name],
      found=platform,
      try_="--gin.ATTENTION_BACKEND=auto",
    )
  if name == "cudnn" and must_be_deterministic():
    raise UserError(
      "the attention back end 'cudnn' is not deterministic: its backward pass adds in another order every time",
      field="TransformerConfig.attention_backend",
      try_="--gin.DETERMINISTIC=False, or --gin.ATTENTION_BACKEND=auto",
    )
  obstacle = _obstacle(name, case)
  return (
    ("xla", f"plain products, although {name} is asked for: {obstacle}") if obstacle else (name, "asked for by name")
  )


def _obstacle(name: str, case: Case) -> str | None:
  """Why a back end cannot do this; None where it can."""
  if case.cached:
    return "a step of decoding looks at a cache"
  if case.dropout:
    return "dropout on attention weights"
  if (name == "pallas_gpu" or (name == "cudnn" and case.has_bias)) and not can_write_gpu_kernels():
    return "this JAX has no Pallas for Triton any more"  # cuDNN leaves the bias's gradient to a kernel of ours
  if name == "pallas_gpu":
    if case.dtype not in ("bfloat16", "float16"):
      return f"our GPU attention has no {case.dtype}"
    if case.head_dim not in (32, 64, 128):
      return f"our GPU attention has no heads of {case.head_dim}"
    return _gpu_obstacle("our GPU attention", 9.0)
  if name == "cudnn":
    if must_be_deterministic():
      return "cuDNN's backward pass adds in another order every time, and the run is deterministic"
    if case.dtype not in ("bfloat16", "float16"):
      return f"cuDNN has no {case.dtype}"
    if case.head_dim % 8 or case.head_dim > 128:
      return f"cuDNN has no heads of {case.head_dim}"
    return _gpu_obstacle("cuDNN's attention", 8.0)
  if name == "splash_tpu" and case.has_bias:
    return "splash attention adds no bias"
  if name == "splash_tpu" and case.has_prefix:
    return "splash attention knows no prefix"
  return None


def _gpu_obstacle(kernel: str, least: float) -> str | None:
  if described_platform() == "gpu":
    return None
  device = jax.local_devices()[0]
  capability = getattr(device, "compute_capability", "")
  if "cuda" not in device.client.platform_version or float(capability or 0) < least:
    return f"{kernel} needs an NVIDIA GPU of capability {least}, this is {device.device_kind} ({capability})"
  return None
