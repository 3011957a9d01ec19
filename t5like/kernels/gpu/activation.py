"""Gradients of activations and biases for NVIDIA GPUs (Pallas, Triton): one pass over the hidden layer of an MLP.

XLA takes a tenth longer for the gradient of a gelu with the sums of its columns, and in a step of BERT half as long
again for those sums alone. Of a gate whose two factors are parts of one array, it writes the tanh to memory. A program
processes a block of columns and every n-th block of rows, and keeps the sums in registers.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from t5like.kernels.activation_functions import ACTIVATIONS, Activation
from t5like.kernels.dropout import DrawnDropout, kept
from t5like.kernels.gpu.programs import run_programs
from t5like.kernels.gpu.ptx import inline_ptx, literal

# Rows and columns of a tile, warps per program, and programs. Of 24 on an H200, the fastest for a gelu of 32,768 rows
# of 4,096, and within 2% of it for a gate of 65,536 rows of 2,048.
_ROWS, _COLUMNS, _WARPS, _PROGRAMS = 8, 512, 8, 2112


@jax.custom_jvp
def _erf(x: jax.Array) -> jax.Array:
  """Computes erf of float32 with an error of at most 1.5e-7 (Abramowitz and Stegun 7.1.26): Pallas on GPUs has none."""
  t = 1.0 / (1.0 + 0.3275911 * jnp.abs(x))
  series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
  return jnp.sign(x) * (1.0 - series * jnp.exp(-x * x))


_erf.defjvps(lambda tangent, _, x: tangent * (4.0 / math.pi) ** 0.5 * jnp.exp(-x * x))


def _gelu_erf(x: jax.Array) -> jax.Array:
  return 0.5 * x * (1.0 + _erf(x * 0.5**0.5))


# Activations x * sigmoid(a x + b x^3), by their a and b: 1 + tanh(u) = 2 sigmoid(2 u).
_GELU = (8.0 / math.pi) ** 0.5
_SIGMOID_GATES = {ACTIVATIONS["gelu"]: (_GELU, 0.044715 * _GELU), ACTIVATIONS["silu"]: (1.0, 0.0)}


@dataclasses.dataclass(frozen=True)
class ActivationSpec:
  """Compile-time parameters of a kernel."""

  rows: int
  columns: int
  summed: bool
  act: Activation | None = None
  gated: bool = False
  dropout_rate: float = 0.0
  interpret: bool = False

  @property
  def grid(self) -> tuple[int, int]:
    """Blocks of columns, and programs that share the rows of each."""
    blocks = pl.cdiv(self.columns, _COLUMNS)
    return blocks, max(1, min(_PROGRAMS // blocks, pl.cdiv(self.rows, _ROWS)))

  @property
  def sums(self) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((self.grid[1], self.columns), jnp.float32)] if self.summed else []

  def call(self, kernel: Callable, name: str, arguments: list[jax.Array], out_shape: list[jax.ShapeDtypeStruct]):
    kernel = functools.partial(kernel, spec=self)
    return run_programs(kernel, self.grid, _WARPS, arguments, out_shape, name, self.interpret)


@functools.partial(jax.jit, static_argnames=("interpret",))
def column_sums(x: jax.Array, interpret: bool = False) -> jax.Array:
  """Returns the sums [columns] float32 of x [rows, columns]."""
  spec = ActivationSpec(*x.shape, summed=True, interpret=interpret)
  return jnp.sum(spec.call(_sum_block, "column_sums", [x], spec.sums)[0], axis=0)


@functools.partial(jax.jit, static_argnames=("act", "gated", "summed", "interpret"))  # layers share a traced kernel
def activation_gradient(
  act: Activation, x: jax.Array, gradient: jax.Array, gated: bool, summed: bool,
  dropout: DrawnDropout | None, interpret: bool = False,
) -> tuple[jax.Array, jax.Array | None]:  # fmt: skip
  """Returns the gradient of x and, if `summed`, the sums of its columns, given that of dropout(act(x)) [rows, columns].

  gated  of dropout(act(x[:, :columns]) * x[:, columns:])
  """
  rate = 0.0 if dropout is None else dropout.rate
  spec = ActivationSpec(*gradient.shape, summed, act, gated, rate, interpret)
  bits = [] if dropout is None else [dropout.row_bits.reshape(-1), dropout.column_bits]
  out_shape = [jax.ShapeDtypeStruct(x.shape, x.dtype), *spec.sums]
  d_x, *sums = spec.call(_gradient_block, "activation_gradient", [x, gradient, *bits], out_shape)
  return d_x, jnp.sum(sums[0], axis=0) if summed else None


def _sum_block(x_ref, sums_ref, *, spec: ActivationSpec):
  _over_rows(lambda tile: tile.load(x_ref), [sums_ref], spec)


def _gradient_block(x_ref, gradient_ref, *refs, spec: ActivationSpec):
  bits_refs, (d_x_ref, *sums_refs) = refs[: 2 * bool(spec.dropout_rate)], refs[2 * bool(spec.dropout_rate) :]

  def visit(tile: "_Tile") -> jax.Array:
    gradient = tile.load(gradient_ref)
    if bits_refs:
      row_bits, column_bits = tile.load_bits(*bits_refs)
      scaled = gradient * (1.0 / (1.0 - spec.dropout_rate))
      gradient = jnp.where(kept(row_bits, column_bits, spec.dropout_rate), scaled, 0.0)
    activated, pull_back = _activate(spec.act, tile.load(x_ref), spec.interpret)
    if spec.gated:
      tile.store(d_x_ref, gradient * activated, spec.columns)
      gradient = gradient * tile.load(x_ref, spec.columns)
    (d_x,) = pull_back(gradient)
    tile.store(d_x_ref, d_x)
    return d_x

  _over_rows(visit, sums_refs, spec)


def _activate(act: Activation, x: jax.Array, interpret: bool) -> tuple[jax.Array, Callable]:
  """Returns act(x) and the function that pulls a gradient back through it, inside of a kernel."""
  if act in _SIGMOID_GATES:
    activated, slope = _sigmoid_gate(x, *_SIGMOID_GATES[act], interpret)
    return activated, lambda gradient: (gradient * slope,)
  return jax.vjp(_gelu_erf if act is ACTIVATIONS["gelu_erf"] else act, x)


def _sigmoid_gate(x: jax.Array, a: float, b: float, interpret: bool) -> tuple[jax.Array, jax.Array]:
  """Returns x * sigmoid(a x + b x^3) and its derivative.

  XLA's Triton divides with four instructions and never fuses a product with a sum: in 36 instead of 12 instructions
  per entry, arithmetic would take longer than memory.
  """
  if interpret:
    s, inner = jax.nn.sigmoid(a * x + b * x**3), x * (a + 3.0 * b * x * x)
    return x * s, s + s * (1.0 - s) * inner
  log2_e = math.log2(math.e)
  s = inline_ptx(
    f"{{ .reg .f32 s; mul.f32 s, $1, $1; fma.rn.f32 s, s, {literal(-b * log2_e)}, {literal(-a * log2_e)};"
    f" mul.f32 s, s, $1; ex2.approx.ftz.f32 s, s; add.f32 s, s, {literal(1.0)}; rcp.approx.ftz.f32 $0, s; }}",
    "=f,f", [x],
  )  # fmt: skip
  slope = inline_ptx(
    f"{{ .reg .f32 n, inner; mul.f32 inner, $1, $1; fma.rn.f32 inner, inner, {literal(3.0 * b)}, {literal(a)};"
    " mul.f32 inner, inner, $1; neg.f32 n, $2; fma.rn.f32 inner, n, inner, inner; fma.rn.f32 $0, $2, inner, $2; }",
    "=f,f,f", [x, s],
  )  # fmt: skip
  return x * s, slope


@dataclasses.dataclass(frozen=True)
class _Tile:
  """Rows and columns of a tile, and which of them exist."""

  row: jax.Array
  column: jax.Array
  inside: jax.Array

  def _at(self, offset: int) -> tuple[jax.Array, jax.Array]:
    return self.row[:, None], offset + self.column[None, :]

  def load(self, ref, offset: int = 0) -> jax.Array:
    return triton.load(ref.at[*self._at(offset)], mask=self.inside, other=0.0).astype(jnp.float32)

  def load_bits(self, row_ref, column_ref) -> tuple[jax.Array, jax.Array]:
    rows = triton.load(row_ref.at[self.row], mask=self.row < row_ref.shape[0], other=0)
    columns = triton.load(column_ref.at[self.column], mask=self.column < column_ref.shape[0], other=0)
    return rows[:, None], columns[None, :]

  def store(self, ref, tile: jax.Array, offset: int = 0) -> None:
    triton.store(ref.at[*self._at(offset)], tile.astype(ref.dtype), mask=self.inside)


def _over_rows(visit: Callable[[_Tile], jax.Array], sums_refs, spec: ActivationSpec) -> None:
  """Calls `visit` with the program's tiles, and stores the sums of the columns of its results."""
  block, program = pl.program_id(0), pl.program_id(1)
  column, programs = block * _COLUMNS + jnp.arange(_COLUMNS), spec.grid[1]

  def step(t, sums):
    row = (program + t * programs) * _ROWS + jnp.arange(_ROWS)
    inside = (row < spec.rows)[:, None] & (column < spec.columns)[None, :]
    result = visit(_Tile(row, column, inside))
    return sums + result if spec.summed else sums

  count = pl.cdiv(pl.cdiv(spec.rows, _ROWS) - program, programs)
  sums = jax.lax.fori_loop(0, count, step, jnp.zeros((_ROWS, _COLUMNS) if spec.summed else (), jnp.float32))
  for ref in sums_refs:
    triton.store(ref.at[program, column], jnp.sum(sums, axis=0), mask=column < spec.columns)
