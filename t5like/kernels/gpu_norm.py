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

# Of one block: as many as leave registers for two blocks of sums beside three of numbers.
_ENTRIES = 4096
_WARPS = 8
# Four for each multiprocessor of a Hopper GPU. Each writes sums of its own.
_PROGRAMS = 528


@dataclasses.dataclass(frozen=True)
class NormWork:
  """What a kernel is compiled for."""

  rows: int
  width: int
  epsilon: float
  centred: bool
  interpret: bool

  @property
  def columns(self) -> int:
    """The width as a power of 2: what is beyond the end is masked."""
    return max(16, 1 << (self.width - 1).bit_length())

  @property
  def block(self) -> int:
    """Rows of a block."""
    return max(1, _ENTRIES // self.columns)

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
      compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=2),
      interpret=self.interpret,
      name=f"t5like_norm_{name}",
    )(*arguments)


def obstacle(x: jax.Array) -> str | None:
  """Why rows cannot be taken; None where they can."""
  if x.shape[-1] > _ENTRIES * 2:
    return f"rows of {x.shape[-1]} do not fit"
  return "too many entries for 32-bit indices" if x.size >= 2**31 else None


def forward(x: jax.Array, scale: jax.Array, bias: jax.Array | None, dtype: jnp.dtype, work: NormWork) -> jax.Array:
  """x [rows, width]; scale, bias [width] float32."""
  given = [x, scale] if bias is None else [x, scale, bias]
  return work.call(_forward_block, work.blocks, "forward", given, jax.ShapeDtypeStruct(x.shape, dtype))


def _forward_block(x_ref, scale_ref, *refs, work: NormWork):
  *bias_refs, y_ref = refs
  index, inside = _tile(pl.program_id(0), work)
  centred, rate = _statistics(_load(x_ref, index, inside), inside, work)
  y = centred * rate * _load_row(scale_ref, work)
  for bias_ref in bias_refs:
    y = y + _load_row(bias_ref, work)
  triton.store(y_ref.at[*index], y.astype(y_ref.dtype), mask=inside)


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
    index, inside = _tile(program + t * programs, work)
    gradient = _load(gradient_ref, index, inside)
    centred, rate = _statistics(_load(x_ref, index, inside), inside, work)
    normalised, scaled = centred * rate, gradient * scale
    d_x = scaled - normalised * _mean(scaled * normalised, work)
    if work.centred:
      d_x = d_x - _mean(scaled, work)
    d_x = rate * d_x
    for residual_ref in residual_refs:
      d_x = d_x + _load(residual_ref, index, inside)
    triton.store(d_x_ref.at[*index], d_x.astype(d_x_ref.dtype), mask=inside)
    return tuple(total + new for total, new in zip(sums, (gradient * normalised, gradient), strict=False))

  nothing = jnp.zeros((work.block, work.columns), jnp.float32)
  count = pl.cdiv(work.blocks - program, programs)
  sums = jax.lax.fori_loop(0, count, visit, (nothing,) * len(sums_refs))
  column = jnp.arange(work.columns)
  for ref, total in zip(sums_refs, sums, strict=True):
    triton.store(ref.at[program, column], jnp.sum(total, axis=0), mask=column < work.width)


def _tile(block: jax.Array, work: NormWork):
  """Indices of a block of rows, and which of them exist."""
  row = block * work.block + jnp.arange(work.block)
  column = jnp.arange(work.columns)
  inside = (row < work.rows)[:, None] & (column < work.width)[None, :]
  return (row[:, None], column[None, :]), inside


def _load(ref, index, inside) -> jax.Array:
  return triton.load(ref.at[*index], mask=inside, other=0.0).astype(jnp.float32)


def _load_row(ref, work: NormWork) -> jax.Array:
  column = jnp.arange(work.columns)
  return triton.load(ref.at[column], mask=column < work.width, other=0.0)[None, :]


def _mean(x: jax.Array, work: NormWork) -> jax.Array:
  return jnp.sum(x, axis=1, keepdims=True) / work.width


def _statistics(x: jax.Array, inside: jax.Array, work: NormWork) -> tuple[jax.Array, jax.Array]:
  """Rows around their mean, where that is asked for, and 1 / their root mean square."""
  if work.centred:
    x = jnp.where(inside, x - _mean(x, work), 0.0)
  return x, jax.lax.rsqrt(_mean(x * x, work) + work.epsilon)
