"""Attention behind one function: softmax(scale * q k^T + bias, masked) v.

The caller describes the mask and the relative position bias (`Mask`, `RelativeBias`); a back end materializes the
[query, key] matrices only if it must. `attention(..., backend="auto")` uses the fastest back end that supports the
call; `choose_backend` returns its name and the reason, and rejects a back end that cannot run on this machine.
"""

import dataclasses
from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from t5like.errors import UserError, nearest
from t5like.kernels.attention.disentangled import Disentangled
from t5like.kernels.attention.masks import Mask, mask_matrix
from t5like.kernels.attention.relative_bias import Alibi, RelativeBias, alibi_slopes, bias_matrix, relative_buckets
from t5like.kernels.attention.synthesized import Synthesized
from t5like.kernels.attention.transformer_xl import RelativeTerms
from t5like.kernels.attention.xla import attention_weights, xla_attention
from t5like.kernels.dropout import AttentionDropout
from t5like.kernels.platform import (
  compile_for,
  determinism_required,
  has_pallas_triton,
  platform_override,
  target_platform,
)

__all__ = [
  "Alibi", "AttentionSpec", "Disentangled", "Mask", "RelativeBias", "RelativeTerms", "ShardedAxes", "Synthesized",
  "alibi_slopes", "attention", "attention_weights", "bias_matrix", "check_backend", "choose_backend", "compile_for",
  "mask_matrix", "relative_buckets",
]  # fmt: skip

Axes = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class ShardedAxes:
  """The mesh axes that shard the batch and the heads."""

  batch: Axes = None
  heads: Axes = None


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
  """The properties of an attention call that determine which back ends support it."""

  dtype: str
  head_dim: int
  query_length: int
  key_length: int
  has_bias: bool = False  # T5's or ALiBi's
  has_prefix: bool = False
  packed: bool = False  # several examples per row, separated by segment ids
  dropout: bool = False
  cached: bool = False  # a decoding step: queries start at an offset
  positions: str | None = None  # "disentangled" or "transformer_xl": scores have terms of positions
  synthesized: bool = False  # scores do not come from products alone
  learned_keys: bool = False  # keys and values that are parameters precede the others


UNSHARDED = ShardedAxes()
# Kinds of positions that add terms to the scores: TransformerConfig.positions, and their names in messages.
RELATIVE_TERMS = {"disentangled": "disentangled", "transformer_xl": "Transformer-XL"}
_TERMS = {type(None): None, Disentangled: "disentangled", RelativeTerms: "transformer_xl", Synthesized: None}


def attention(
  query: jax.Array,  # [batch, query, heads, kv]
  key: jax.Array | None,  # [batch, key, kv_heads, kv]; kv_heads divides heads
  value: jax.Array | None,  # [batch, key, kv_heads, kv]
  *,
  mask: Mask,
  bias: RelativeBias | Alibi | None = None,
  scale: float = 1.0,
  query_offset: jax.Array | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  backend: str = "auto",
  axes: ShardedAxes = UNSHARDED,
  prefix: jax.Array | None = None,  # [2, tokens, kv_heads, kv]
  relative: Disentangled | RelativeTerms | Synthesized | None = None,
) -> jax.Array:  # [batch, query, heads, kv]
  """Computes attention; the softmax is in float32 for any input dtype.

  With fewer heads of keys, a group of neighboring queries reads one (Ainslie et al. 2023). Keys are not repeated in
  memory; kernels of ours write their gradients for every head of queries, and sum those of a group.

  prefix: additional keys and values that every query sees, without mask or bias.

  query_offset [batch] is the position of each row's first query among the keys (decoding with a KV cache), 0 if None.
  The output for a query that attends to no key is finite but depends on the back end.

  Without values, `key` [batch, key, 2, kv_heads, kv] holds both; without both, `query` [batch, query, 3, heads, kv]
  holds all three. Only "pallas_gpu" reads them in place.
  """
  spec = AttentionSpec(
    dtype=query.dtype.name, head_dim=query.shape[-1], query_length=query.shape[1],
    key_length=(query if key is None else key).shape[1],
    has_bias=bias is not None, has_prefix=mask.causal and mask.prefix is not None,
    packed=mask.query_segments is not None,
    dropout=dropout_rate > 0.0 and dropout_key is not None, cached=query_offset is not None,
    learned_keys=prefix is not None,
    positions=_TERMS[type(relative)], synthesized=isinstance(relative, Synthesized),
  )  # fmt: skip
  name, _ = choose_backend(backend, spec)
  dropout = None
  if spec.dropout:
    dropout = AttentionDropout.draw(dropout_key, dropout_rate, query.shape[0], query.shape[-2])
  if value is None and name != "pallas_gpu":
    query, joint = ([], query) if key is None else ([query], key)
    query, key, value = *query, *(joint[:, :, part] for part in range(joint.shape[2]))
  if name == "xla":
    return xla_attention(query, key, value, mask, bias, scale, dropout, query_offset, prefix, relative)
  return _run_sharded(_KERNELS[name](), query, key, value, mask, bias, scale, dropout, axes)


def _run_sharded(
  kernel: Callable[..., jax.Array], query: jax.Array, key: jax.Array | None, value: jax.Array | None, mask: Mask,
  bias: RelativeBias | Alibi | None, scale: float, dropout: AttentionDropout | None, axes: ShardedAxes,
) -> jax.Array:  # fmt: skip
  """Runs a kernel on each device's shard of rows and heads, because the partitioner cannot split a kernel.

  Rows or heads that the mesh axes do not divide (a batch of two at initialization) are not sharded.
  """
  mesh = jax.sharding.get_abstract_mesh()
  batch, heads = query.shape[0], (query if key is None else key).shape[-2]
  # A group of queries and its keys are on one device.
  rows, columns = dividing_axes(mesh, axes.batch, batch), dividing_axes(mesh, axes.heads, heads)
  if rows is None and columns is None:
    return kernel(query, key, value, mask, bias, scale, dropout)
  tokens = PartitionSpec(rows, None, columns, None)
  joint = PartitionSpec(rows, None, None, columns, None)
  queries, keys = joint if key is None else tokens, joint if value is None else tokens
  masks = jax.tree.map(lambda _: PartitionSpec(rows, None), mask)
  tables = jax.tree.map(lambda _: PartitionSpec(None, columns), bias)
  bits = jax.tree.map(lambda _: PartitionSpec(rows, columns), dropout)
  return jax.shard_map(
    lambda q, k, v, m, b, d: kernel(q, k, v, m, b, scale, d),
    in_specs=(queries, keys, tokens, masks, tables, bits),
    out_specs=tokens,
    check_vma=False,  # a kernel's results carry no record of the axes they vary over
  )(query, key, value, mask, bias, dropout)


def dividing_axes(mesh: jax.sharding.AbstractMesh, axes: Axes, size: int) -> tuple[str, ...] | None:
  """Returns those of `axes` that shard `size`; None if they are all of size 1 or do not divide it."""
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


# Imported on first use: each needs parts of JAX that are slow to import.
_KERNELS = {"pallas_gpu": _pallas_gpu, "cudnn": _cudnn, "splash_tpu": _splash_tpu, "pallas_tpu": _pallas_tpu}
BACKENDS = {
  "xla": "unfused attention: runs everywhere, memory grows with length^2",
  "pallas_gpu": "our fused attention for GPUs since Hopper: computes T5's bias, skips other examples in packed rows",
  "cudnn": "cuDNN's fused attention: NVIDIA GPUs, the score matrix is never materialized",
  "splash_tpu": "JAX's splash attention for TPUs: no bias, masked blocks are never visited",
  "pallas_tpu": "our fused attention for TPUs: computes T5's bias, the score matrix is never materialized",
}
# In order of preference. Our GPU kernel is as fast as cuDNN's and deterministic.
_PLATFORMS = {"pallas_gpu": "gpu", "cudnn": "gpu", "splash_tpu": "tpu", "pallas_tpu": "tpu"}
# With fewer scores per head, a fused kernel is not faster.
_MIN_FUSED_SCORES = 128 * 128


def check_backend(name: str) -> None:
  """Raises UserError if no platform has a back end of this name."""
  if name != "auto" and name not in BACKENDS:
    raise UserError(
      f"unknown attention back end {name!r}",
      field="TransformerConfig.attention_backend",
      choices=", ".join(["auto", *BACKENDS]),
      nearest=nearest(name, ["auto", *BACKENDS]),
    )


def choose_backend(name: str, spec: AttentionSpec, platform: str | None = None) -> tuple[str, str]:
  """Returns the name of the back end to run and the reason.

  Raises UserError if a back end requested by name cannot run on the platform at all; where it only lacks a feature of
  this call (cuDNN and splash: dropout; all: a decoding step), falls back to unfused attention.
  """
  check_backend(name)
  platform = platform or target_platform()
  if name == "xla":
    return "xla", "requested by name"
  if name == "auto":
    available = [backend for backend, needs in _PLATFORMS.items() if needs == platform]
    if not available:
      return "xla", f"unfused: no fused attention for {platform}"
    supported = [backend for backend in available if not _unsupported_reason(backend, spec)]
    if not supported:
      return "xla", f"unfused: {_unsupported_reason(available[-1], spec)}"
    if platform == "tpu" and spec.query_length * spec.key_length < _MIN_FUSED_SCORES:
      return "xla", f"unfused: fast enough for {spec.query_length} x {spec.key_length} scores"
    return supported[0], BACKENDS[supported[0]]
  if platform != _PLATFORMS[name]:
    raise UserError(
      f"attention back end {name!r} does not run on this machine",
      field="TransformerConfig.attention_backend",
      needs=_PLATFORMS[name],
      found=platform,
      try_="--gin.ATTENTION_BACKEND=auto",
    )
  if name == "cudnn" and determinism_required():
    raise UserError(
      "attention back end 'cudnn' is not deterministic: its backward pass uses atomic additions",
      field="TransformerConfig.attention_backend",
      try_="--gin.DETERMINISTIC=False, or --gin.ATTENTION_BACKEND=auto",
    )
  reason = _unsupported_reason(name, spec)
  return ("xla", f"unfused instead of the requested {name}: {reason}") if reason else (name, "requested by name")


def _unsupported_reason(name: str, spec: AttentionSpec) -> str | None:
  """Returns why a back end does not support a call, or None if it does."""
  if spec.cached:
    return "a decoding step reads a KV cache"
  if spec.positions in RELATIVE_TERMS:
    return f"fused attention has no {RELATIVE_TERMS[spec.positions]} positions"
  if spec.synthesized:
    return "fused attention has no synthesized scores"
  if spec.learned_keys:
    return "fused attention has no learned prefix"
  if spec.dropout and name == "cudnn":
    return "cuDNN takes the seed of its dropout when it is compiled: every step would have the same mask"
  if spec.dropout and name == "splash_tpu":
    return "splash attention has no dropout"
  if (name == "pallas_gpu" or (name == "cudnn" and spec.has_bias)) and not has_pallas_triton():
    return "this version of JAX has no Pallas for Triton"  # with cuDNN, our kernel computes the bias gradient
  if name == "pallas_gpu":
    if spec.dtype not in ("bfloat16", "float16"):
      return f"our GPU attention does not support {spec.dtype}"
    if spec.head_dim not in (32, 64, 128):
      return f"our GPU attention does not support HEAD_DIM {spec.head_dim}"
    return _gpu_unsupported_reason("our GPU attention", 9.0)
  if name == "cudnn":
    if determinism_required():
      return "the run is deterministic, and cuDNN's backward pass uses atomic additions"
    if spec.dtype not in ("bfloat16", "float16"):
      return f"cuDNN does not support {spec.dtype}"
    if spec.head_dim % 8 or spec.head_dim > 128:
      return f"cuDNN does not support HEAD_DIM {spec.head_dim}"
    return _gpu_unsupported_reason("cuDNN's attention", 8.0)
  if name == "splash_tpu" and spec.has_bias:
    return "splash attention has no bias"
  if name == "splash_tpu" and spec.has_prefix:
    return "splash attention has no prefix mask"
  return None


def _gpu_unsupported_reason(kernel: str, min_capability: float) -> str | None:
  if platform_override() == "gpu":
    return None
  device = jax.local_devices()[0]
  capability = getattr(device, "compute_capability", "")
  if "cuda" not in device.client.platform_version or float(capability or 0) < min_capability:
    found = f"{device.device_kind} ({capability})"
    return f"{kernel} needs an NVIDIA GPU of capability {min_capability} or higher, found {found}"
  return None
