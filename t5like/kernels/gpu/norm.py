"""RMS norm and layer norm for NVIDIA GPUs (Pallas, Triton): each pass reads and writes every activation once.

XLA's backward pass reads activations three times and materializes a float32 product of their size for the gradient of
the scale. Here a program loops over blocks of rows, keeps the sums for scale and bias in registers, and adds the
gradient of the residual connection before writing.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.gpu.programs import run_programs

_PIECE = 256  # columns of a row that a warp reads at once


@dataclasses.dataclass(frozen=True)
class Tuning:
  """Sizes of a kernel: the fastest of 9 (forward) or 27 on an H200; RMS norms of 768, layer norms of 1,024."""

  entries: int  # per block
  warps: int
  programs: int | None = None  # each writes its own sums of the backward pass

  @classmethod
  def of_backward(cls, centered: bool, has_residual: bool) -> "Tuning":
    if centered and not has_residual:
      return cls(1024, 2, 1056)
    return cls(4096, 4, 264 if centered else 1056)


_FORWARD = Tuning(2048, 4)


@dataclasses.dataclass(frozen=True)
class NormSpec:
  """Compile-time parameters of a norm kernel."""

  rows: int
  width: int
  epsilon: float
  centered: bool
  interpret: bool
  tuning: Tuning = _FORWARD

  @property
  def piece(self) -> int:
    """Columns per piece of a row, a power of 2: a third of 768; as a last resort the full row, masked at the end."""
    dividing, rounded = self.width & -self.width, pl.next_power_of_2(self.width)
    return min(dividing, max(_PIECE, rounded // 8)) if self.width <= 8 * dividing else rounded

  @property
  def pieces(self) -> int:
    return pl.cdiv(self.width, self.piece)

  @property
  def block(self) -> int:
    """Rows per block, a power of 2."""
    return max(1, self.tuning.entries // pl.next_power_of_2(self.width))

  @property
  def warps(self) -> int:
    return max(self.tuning.warps, self.tuning.warps * self.piece * self.pieces // self.tuning.entries)

  @property
  def blocks(self) -> int:
    return pl.cdiv(self.rows, self.block)

  def call(self, kernel, programs: int, name: str, arguments, out_shape):
    kernel = functools.partial(kernel, spec=self)
    return run_programs(kernel, (programs,), self.warps, arguments, out_shape, f"norm_{name}", self.interpret)


def unsupported_reason(x: jax.Array) -> str | None:
  """Returns why the kernels do not support x, or None if they do."""
  if x.size < 2**20:
    return "XLA fuses small norms, as in a decoding step, with the operations around them"
  if x.shape[-1] > 8192:
    return f"rows of {x.shape[-1]} entries are too long"
  return "too many entries for 32-bit indices" if x.size >= 2**31 else None


@functools.partial(jax.jit, static_argnames=("dtype", "copied", "spec"))  # so that all layers share one traced kernel
def forward(
  x: jax.Array, scale: jax.Array, bias: jax.Array | None, dtype: jnp.dtype, copied: bool, spec: NormSpec
) -> list[jax.Array]:
  """Normalizes x [rows, width]; scale, bias [width] float32. Returns the result and, if `copied`, a copy of x."""
  given = [x, scale] if bias is None else [x, scale, bias]
  out_shape = [jax.ShapeDtypeStruct(x.shape, each) for each in (dtype, x.dtype)[: 1 + copied]]
  kernel = functools.partial(_forward_block, copied=copied)
  return spec.call(kernel, spec.blocks, "forward", given, out_shape)


def _forward_block(x_ref, scale_ref, *refs, copied: bool, spec: NormSpec):
  *bias_refs, y_ref = refs[: len(refs) - copied]
  tiles = _tiles(pl.program_id(0), spec)
  x = _load(x_ref, tiles)
  for ref in refs[len(refs) - copied :]:
    for piece, (index, inside) in zip(x, tiles, strict=True):
      triton.store(ref.at[*index], piece.astype(ref.dtype), mask=inside)
  centered, rate = _statistics(x, tiles, spec)
  scale, biases = _load_row(scale_ref, spec), [_load_row(ref, spec) for ref in bias_refs]
  for n, (index, inside) in enumerate(tiles):
    y = centered[n] * rate * scale[n]
    for bias in biases:
      y = y + bias[n]
    triton.store(y_ref.at[*index], y.astype(y_ref.dtype), mask=inside)


@functools.partial(jax.jit, static_argnames=("with_bias", "spec"))
def backward(x, scale, gradient, residual, with_bias: bool, spec: NormSpec):
  """Returns the gradients of x (plus `residual`, if any), scale and bias; the last two [width] float32."""
  spec = dataclasses.replace(spec, tuning=Tuning.of_backward(spec.centered, residual is not None))
  programs = min(spec.blocks, spec.tuning.programs)
  sums = jax.ShapeDtypeStruct((programs, spec.width), jnp.float32)
  out_shape = [jax.ShapeDtypeStruct(x.shape, x.dtype), *[sums] * (2 if with_bias else 1)]
  given = [x, scale, gradient] if residual is None else [x, scale, gradient, residual]
  kernel = functools.partial(_backward_block, programs=programs, has_residual=residual is not None)
  d_x, *sums = spec.call(kernel, programs, "backward", given, out_shape)
  return d_x, *(jnp.sum(x, axis=0) for x in sums), *(() if with_bias else (None,))


def _backward_block(x_ref, scale_ref, gradient_ref, *refs, programs: int, has_residual: bool, spec: NormSpec):
  residual_refs, (d_x_ref, *sums_refs) = refs[: int(has_residual)], refs[int(has_residual) :]
  program, scale = pl.program_id(0), _load_row(scale_ref, spec)

  def visit(t, sums):
    tiles = _tiles(program + t * programs, spec)
    gradient = _load(gradient_ref, tiles)
    centered, rate = _statistics(_load(x_ref, tiles), tiles, spec)
    normalized = [x * rate for x in centered]
    scaled = [g * s for g, s in zip(gradient, scale, strict=True)]
    along = _mean([s * x for s, x in zip(scaled, normalized, strict=True)], spec)
    middle = _mean(scaled, spec) if spec.centered else 0.0
    residuals = [_load(ref, tiles) for ref in residual_refs]
    for n, (index, inside) in enumerate(tiles):
      d_x = rate * (scaled[n] - normalized[n] * along - middle)
      for residual in residuals:
        d_x = d_x + residual[n]
      triton.store(d_x_ref.at[*index], d_x.astype(d_x_ref.dtype), mask=inside)
    new = [g * x for g, x in zip(gradient, normalized, strict=True)], gradient
    return tuple(
      tuple(total + more for total, more in zip(each, added, strict=True))
      for each, added in zip(sums, new, strict=False)
    )

  nothing = (jnp.zeros((spec.block, spec.piece), jnp.float32),) * spec.pieces
  count = pl.cdiv(spec.blocks - program, programs)
  sums = jax.lax.fori_loop(0, count, visit, (nothing,) * len(sums_refs))
  for ref, totals in zip(sums_refs, sums, strict=True):
    for column, total in zip(_columns(spec), totals, strict=True):
      triton.store(ref.at[program, column], jnp.sum(total, axis=0), mask=column < spec.width)


def _columns(spec: NormSpec) -> list[jax.Array]:
  return [n * spec.piece + jnp.arange(spec.piece) for n in range(spec.pieces)]


def _tiles(block: jax.Array, spec: NormSpec) -> list[tuple]:
  """Returns (indices, mask of valid indices) for each piece of a block of rows."""
  row = block * spec.block + jnp.arange(spec.block)
  return [
    ((row[:, None], column[None, :]), (row < spec.rows)[:, None] & (column < spec.width)[None, :])
    for column in _columns(spec)
  ]


def _load(ref, tiles) -> list[jax.Array]:
  return [triton.load(ref.at[*index], mask=inside, other=0.0).astype(jnp.float32) for index, inside in tiles]


def _load_row(ref, spec: NormSpec) -> list[jax.Array]:
  return [triton.load(ref.at[column], mask=column < spec.width, other=0.0)[None, :] for column in _columns(spec)]


def _mean(pieces: list[jax.Array], spec: NormSpec) -> jax.Array:
  return jnp.sum(sum(pieces), axis=1, keepdims=True) / spec.width


def _statistics(pieces: list[jax.Array], tiles: list[tuple], spec: NormSpec) -> tuple[list[jax.Array], jax.Array]:
  """Returns the rows, centered if `spec.centered`, and the reciprocal of their root mean square."""
  if spec.centered:
    mean = _mean(pieces, spec)
    pieces = [jnp.where(inside, x - mean, 0.0) for x, (_, inside) in zip(pieces, tiles, strict=True)]
  return pieces, jax.lax.rsqrt(_mean([x * x for x in pieces], spec) + spec.epsilon)
