"""The residuals that a backward pass needs from its forward pass, counted in the traced model without allocation.

JAX determines which values the derivative of a function needs. Layers in a loop save exactly these, and so do
rematerialized ones. In unrolled layers XLA saves less: it recomputes values that follow from others by cheap operations
inside the fusion that uses them. Saved are the results of matrix products, kernels, sums and expensive functions, and
the operands of products. (XLA never repeats an expensive operation to save memory: see
`HloInstruction::IsExpensive` and its fusion passes.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

# A prime number of rows that divides no other size of a model: it marks arrays that grow with the batch.
ROWS = 1009

_LAYOUT = {
  "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "convert_element_type", "copy", "slice", "rev",
  "sharding_constraint", "stop_gradient", "reduce_precision", "optimization_barrier", "copy_p", "name",
}  # fmt: skip
_CHEAP = _LAYOUT | {
  "add", "sub", "mul", "neg", "max", "min", "abs", "sign", "select_n", "integer_pow", "square", "eq", "ne", "lt", "le",
  "gt", "ge", "and", "or", "not", "iota", "pad", "concatenate", "is_finite", "clamp", "add_any", "div",
}  # fmt: skip
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
_RANDOM_OPERATIONS = _CHEAP | {"shift_right_logical", "bitcast_convert_type", "while"}
_PRODUCTS = {"dot_general", "pallas_call", "shard_map"}
_CALLS = {"pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}


@dataclasses.dataclass(frozen=True)
class Residual:
  """An array that is saved from the forward to the backward pass; its shape is for `ROWS` rows."""

  shape: tuple[int, ...]
  itemsize: int

  @property
  def row_bytes(self) -> float:
    """The bytes per row of the batch; 0 for arrays that do not grow with it (weights, tables, constants)."""
    if not any(size % ROWS == 0 for size in self.shape):
      return 0.0
    return math.prod(self.shape) * self.itemsize / ROWS


def saved_residuals(function: Callable[..., Any], weights: Any, inputs: Any, fused: bool) -> list[Residual]:
  """Returns the residuals of the derivative of `function(weights, inputs)` with respect to the weights.

  fused  count what XLA saves in unrolled layers, where it fuses freely; otherwise all that JAX requests
  """

  def residuals(weights, inputs):
    return jax.tree.leaves(jax.vjp(lambda w: function(w, inputs), weights)[1])

  if not fused:
    return [_residual(leaf) for leaf in jax.eval_shape(residuals, weights, inputs)]
  jaxpr = jax.make_jaxpr(residuals)(weights, inputs).jaxpr
  values = _values_of(jaxpr, [_Value(var.aval) for var in jaxpr.invars])
  return [_residual(value.aval) for value in _in_memory(values)]


def row_bytes(arrays: Iterable[Residual]) -> float:
  return sum(array.row_bytes for array in arrays)


def with_rows(batch: Mapping[str, Any], rows: int = ROWS) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of a batch with another number of rows."""
  return {name: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for name, x in batch.items()}


def _residual(aval: Any) -> Residual:
  is_key = jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
  return Residual(tuple(aval.shape), 4 if is_key else jnp.dtype(aval.dtype).itemsize)


class _Value:
  """A value of the traced function: its primitive and operands, which inputs and constants lack."""

  def __init__(self, aval: Any, primitive: str = "", operands: Sequence[_Value] = ()):
    self.aval, self.primitive, self.operands = aval, primitive, operands
    self.feeds_a_product = False
    residual = _residual(aval)
    self.bytes = math.prod(residual.shape) * residual.itemsize
    self.grows = residual.row_bytes > 0
    self.is_random = primitive.startswith(("random_", "threefry")) or (
      primitive in _RANDOM_OPERATIONS and any(x.is_random for x in operands)
    )

  @property
  def root(self) -> _Value:
    """The value before changes of layout and dtype, unless these reduced its size."""
    value = self
    while value.primitive in _LAYOUT and value.operands:
      before = value.operands[0]
      if not before.primitive or before.bytes > value.bytes or 4 * before.bytes < value.bytes:
        break  # an input, a narrower type, or a broadcast from something small
      value = before
    return value

  @property
  def is_anchor(self) -> bool:
    """Whether the value is materialized if it is needed."""
    if self.primitive in _COMPARISONS:
      return self.is_random
    return bool(self.primitive) and ((self.feeds_a_product and self.grows) or self.primitive not in _CHEAP)

  def sources(self) -> list[_Value]:
    """Returns the anchors from which the value follows by cheap operations."""
    found, seen, pending = [], set(), list(self.operands)
    while pending:
      value = pending.pop().root
      if id(value) in seen:
        continue
      seen.add(id(value))
      if value.is_anchor:
        found.append(value)
      else:
        pending.extend(value.operands)
    return found


def _values_of(jaxpr: Any, arguments: Sequence[_Value]) -> list[_Value]:
  """Returns the results of a traced function, with calls inlined."""
  values = dict(zip(jaxpr.invars, arguments, strict=True))
  values |= {var: _Value(var.aval) for var in jaxpr.constvars}

  def read(var: Any) -> _Value:
    return _Value(var.aval) if isinstance(var, jex.Literal) else values[var]

  for eqn in jaxpr.eqns:
    operands = [read(var) for var in eqn.invars]
    name, inner = eqn.primitive.name, _called(eqn)
    if inner is not None:
      results = _values_of(inner, operands)
    else:
      results = [_Value(var.aval, name, operands) for var in eqn.outvars]
      if name in _PRODUCTS or "attention" in name:
        for operand in operands:
          operand.root.feeds_a_product = True
    values.update(zip(eqn.outvars, results, strict=True))
  return [read(var) for var in jaxpr.outvars]


def _called(eqn: Any) -> Any:
  if eqn.primitive.name not in _CALLS:
    return None
  inner = next(eqn.params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in eqn.params)
  return getattr(inner, "jaxpr", inner)


def _in_memory(residuals: Iterable[_Value]) -> list[_Value]:
  """Returns the values to save so that all residuals are available or cheap to recompute."""
  wanted = {id(value.root): value.root for value in residuals}
  kept = {key: value for key, value in wanted.items() if value.is_anchor}
  for key, value in wanted.items():
    if key in kept or not value.primitive:
      continue
    missing = {id(source): source for source in value.sources() if id(source) not in kept}
    large = [x for x in missing.values() if 8 * x.bytes > value.bytes]  # not the sums of its rows
    # XLA fuses cheap operations into their users. A value that combines several others is saved instead of them.
    kept |= missing if len(large) < 2 or sum(x.bytes for x in large) <= value.bytes else {key: value}
  return list(kept.values())
