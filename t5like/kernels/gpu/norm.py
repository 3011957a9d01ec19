"""RMS and layer norm for NVIDIA GPUs (Pallas, Triton): each pass reads and writes every activation once.

XLA takes three passes backward, and writes a float32 product of an activation's size for the gradient of the scale.
Here a program goes through blocks of rows, keeps the sums for scale and bias in registers, and adds the gradient that
comes along the residual connection before it writes.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

# Entries of a block, the warps that share it, and programs, four for each multiprocessor: each writes sums of its own.
# The fastest of 18 on an H200 for 32 x 1024 rows of 1024 (layer norm, forward and backward).
_ENTRIES, _WARPS, _PROGRAMS = 2048, 4, 528


@dataclasses.dataclass(frozen=True)
class NormWork:
  """What a kernel is compiled for."""

  rows: int
  width: int
  epsilon: float
  centered: bool
  interpret: bool

  @property
  def piece(self) -> int:
    """Rows are taken in pieces of so many columns, a power of 2: thirds of 768, or, as a last resort, all of it with
    what is beyond the end masked."""
    dividing = self.width & -self.width
    return dividing if self.width <= 8 * dividing else pl.next_power_of_2(self.width)

  @property
  def pieces(self) -> int:
    return pl.cdiv(self.width, self.piece)

  @property
  def block(self) -> int:
    """Rows of a block, a power of 2."""
    return max(1, _ENTRIES // pl.next_power_of_2(self.width))

  @property
  def warps(self) -> int:
    return max(_WARPS, _WARPS * self.piece * self.pieces // _ENTRIES)

  @property
  def blocks(self) -> int:
    return pl.cdiv(self.rows, self.block)

  def call(self, kernel, programs: int, name: str, arguments, out_shape):
    whole = lambda x: pl.BlockSpec(x.shape, lambda i: (0,) * len(x.shape))  # noqa: E731
    return pl.pallas_call(
      functools.partial(kernel, work=self),
      grid=(programs,),
      in_specs=jax.tree.map(whole, list(arguments)),
      out_specs=jax.tree.map(whole, out_shape),
      out_shape=out_shape,
      compiler_params=triton.CompilerParams(num_warps=self.warps, num_stages=2),
      interpret=self.interpret,
      name=f"t5like_norm_{name}",
    )(*arguments)


def obstacle(x: jax.Array) -> str | None:
  """Why rows cannot be taken; None where they can."""
  if x.size < 2**20:
    return "XLA joins small norms, as in a step of decoding, with what is around them"
  if x.shape[-1] > 8192:
    return f"rows of {x.shape[-1]} do not fit"
  return "too many entries for 32-bit indices" if x.size >= 2**31 else None


@functools.partial(jax.jit, static_argnames=("dtype", "work"))  # so that all layers share one traced kernel
def forward(x: jax.Array, scale: jax.Array, bias: jax.Array | None, dtype: jnp.dtype, work: NormWork) -> jax.Array:
  """x [rows, width]; scale, bias [width] float32."""
  given = [x, scale] if bias is None else [x, scale, bias]
  return work.call(_forward_block, work.blocks, "forward", given, jax.ShapeDtypeStruct(x.shape, dtype))


def _forward_block(x_ref, scale_ref, *refs, work: NormWork):
  *bias_refs, y_ref = refs
  tiles = _tiles(pl.program_id(0), work)
  centered, rate = _statistics(_load(x_ref, tiles), tiles, work)
  scale, biases = _load_row(scale_ref, work), [_load_row(ref, work) for ref in bias_refs]
  for n, (index, inside) in enumerate(tiles):
    y = centered[n] * rate * scale[n]
    for bias in biases:
      y = y + bias[n]
    triton.store(y_ref.at[*index], y.astype(y_ref.dtype), mask=inside)


@functools.partial(jax.jit, static_argnames=("with_bias", "work"))
def backward(x, scale, gradient, residual, with_bias: bool, work: NormWork):
  """The gradients of x (with `residual` added, if any), scale and bias; [width] float32 for the last two."""
  programs = min(work.blocks, _PROGRAMS)
  sums = jax.ShapeDtypeStruct((programs, work.width), jnp.float32)
  out_shape = [jax.ShapeDtypeStruct(x.shape, x.dtype), *[sums] * (2 if with_bias else 1)]
  given = [x, scale, gradient] if residual is None else [x, scale, gradient, residual]
  kernel = functools.partial(_backward_block, programs=programs, has_residual=residual is not None)
  d_x, *sums = work.call(kernel, programs, "backward", given, out_shape)
  return d_x, *(jnp.sum(x, axis=0) for x in sums), *(() if with_bias else (None,))


def _backward_block(x_ref, scale_ref, gradient_ref, *refs, programs: int, has_residual: bool, work: NormWork):
  residual_refs, (d_x_ref, *sums_refs) = refs[: int(has_residual)], refs[int(has_residual) :]
  program, scale = pl.program_id(0), _load_row(scale_ref, work)

  def visit(t, sums):
    tiles = _tiles(program + t * programs, work)
    gradient = _load(gradient_ref, tiles)
    centered, rate = _statistics(_load(x_ref, tiles), tiles, work)
    normalized = [x * rate for x in centered]
    scaled = [g * s for g, s in zip(gradient, scale, strict=True)]
    along = _mean([s * x for s, x in zip(scaled, normalized, strict=True)], work)
    middle = _mean(scaled, work) if work.centered else 0.0
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

  nothing = (jnp.zeros((work.block, work.piece), jnp.float32),) * work.pieces
  count = pl.cdiv(work.blocks - program, programs)
  sums = jax.lax.fori_loop(0, count, visit, (nothing,) * len(sums_refs))
  for ref, totals in zip(sums_refs, sums, strict=True):
    for column, total in zip(_columns(work), totals, strict=True):
      triton.store(ref.at[program, column], jnp.sum(total, axis=0), mask=column < work.width)


def _columns(work: NormWork) -> list[jax.Array]:
  return [n * work.piece + jnp.arange(work.piece) for n in range(work.pieces)]


def _tiles(block: jax.Array, work: NormWork) -> list[tuple]:
  """For each piece of a block of rows, its indices and which of them exist."""
  row = block * work.block + jnp.arange(work.block)
  return [
    ((row[:, None], column[None, :]), (row < work.rows)[:, None] & (column < work.width)[None, :])
    for column in _columns(work)
  ]


def _load(ref, tiles) -> list[jax.Array]:
  return [triton.load(ref.at[*index], mask=inside, other=0.0).astype(jnp.float32) for index, inside in tiles]


def _load_row(ref, work: NormWork) -> list[jax.Array]:
  return [triton.load(ref.at[column], mask=column < work.width, other=0.0)[None, :] for column in _columns(work)]


def _mean(pieces: list[jax.Array], work: NormWork) -> jax.Array:
  return jnp.sum(sum(pieces), axis=1, keepdims=True) / work.width


def _statistics(pieces: list[jax.Array], tiles: list[tuple], work: NormWork) -> tuple[list[jax.Array], jax.Array]:
  """Rows around their mean, where that is asked for, and 1 / their root mean square."""
  if work.centered:
    mean = _mean(pieces, work)
    pieces = [jnp.where(inside, x - mean, 0.0) for x, (_, inside) in zip(pieces, tiles, strict=True)]
  return pieces, jax.lax.rsqrt(_mean([x * x for x in pieces], work) + work.epsilon)
