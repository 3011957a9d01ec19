"""Initializes a state with many small programs instead of one large one.

A single program that draws every variable of a deep model takes minutes to compile, and most of it repeats: layer
after layer draws the same shapes from different keys. So the initialization is traced once and split into pieces, one
per array. A piece takes its random keys as arguments, and identical pieces share a compiled program. The values equal
those of the single program and do not depend on the mesh.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

_REMAT = {"remat", "remat2", "checkpoint"}


def initialize(function: Callable[[], Any], shardings: Any) -> Any:
  """Returns `function()`, with each array created directly on the devices of its sharding."""
  traced, shape = jax.make_jaxpr(function, return_shape=True)()
  # Removes the forward pass, which no variable depends on.
  needed, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
  closed = jax.make_jaxpr(lambda: _evaluate(needed.eqns, _constants(traced), needed.outvars, inline=True))()
  producers = {var: eqn for eqn in closed.jaxpr.eqns for var in eqn.outvars}
  constants = _constants(closed)
  targets = jax.tree.leaves(shardings)
  results: list[Any] = [None] * len(targets)
  for leaves in _pieces(closed.jaxpr.outvars, producers):
    piece = _Piece([closed.jaxpr.outvars[i] for i in leaves], producers, constants)
    program = _program(piece, tuple(targets[i] for i in leaves))
    for i, value in zip(leaves, program(*piece.keys), strict=True):
      results[i] = value
  return jax.tree.unflatten(jax.tree.structure(shape), results)


@functools.lru_cache(maxsize=256)  # the next run of a sweep or a suite initializes the same shapes
def _program(piece: _Piece, out_shardings: tuple) -> Callable:
  def initialize_piece(*keys: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(piece.run(*keys))

  return jax.jit(initialize_piece, out_shardings=out_shardings)


class _Piece:
  """The equations that compute some outputs from their random keys."""

  def __init__(self, outputs: Sequence[Any], producers: dict, constants: dict):
    equations = _dependencies(outputs, producers)
    drawing = [eqn for eqn in equations if not _makes_keys(eqn)]
    computed = {var for eqn in drawing for var in eqn.outvars}
    used = [var for eqn in drawing for var in eqn.invars] + list(outputs)
    given = [var for var in dict.fromkeys(v for v in used if isinstance(v, jex.Var)) if var not in computed]
    cuts = [var for var in given if var not in constants]
    keys = _evaluate([eqn for eqn in equations if _makes_keys(eqn)], constants, cuts)
    constants = {var: constants[var] for var in given if var in constants}
    impls = [jax.random.key_impl(key) for key in keys]
    # Host arrays: with several hosts they are then the same on all devices.
    self.keys = [np.asarray(jax.random.key_data(key)) for key in keys]

    def run(*keys: jax.Array) -> list[jax.Array]:
      wrapped = [jax.random.wrap_key_data(key, impl=impl) for key, impl in zip(keys, impls, strict=True)]
      return _evaluate(drawing, constants | dict(zip(cuts, wrapped, strict=True)), outputs)

    self.run = run
    self._identity = _form(drawing, cuts, constants, outputs)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Piece) and self._identity == other._identity

  def __hash__(self) -> int:
    return hash(self._identity)


def _pieces(outputs: Sequence[Any], producers: dict) -> list[list[int]]:
  """Groups the indices of outputs that share an equation with several results (a scan over layers)."""
  piece_of: dict[int, list[int]] = {}  # by equation
  pieces = []
  for i, var in enumerate(outputs):
    shared = [id(eqn) for eqn in _dependencies([var], producers) if len(eqn.outvars) > 1]
    found = next((piece_of[key] for key in shared if key in piece_of), None)
    if found is None:
      found = []
      pieces.append(found)
    found.append(i)
    piece_of.update((key, piece_of.get(key, found)) for key in shared)
  return pieces


def _dependencies(outputs: Sequence[Any], producers: dict) -> list[Any]:
  """Returns all equations that the outputs depend on, in topological order."""
  ordered: dict[int, Any] = {}
  pending = [(var, False) for var in outputs]
  while pending:
    var, ready = pending.pop()
    eqn = None if isinstance(var, jex.Literal) else producers.get(var)
    if eqn is None or id(eqn) in ordered:
      continue
    if ready:
      ordered[id(eqn)] = eqn
    else:
      pending.append((var, True))
      pending.extend((below, False) for below in eqn.invars)
  return list(ordered.values())


def _form(equations: Sequence[Any], arguments: Sequence[Any], constants: dict, outputs: Sequence[Any]) -> tuple:
  """Returns a value that is equal for equations which compute the same: variables are numbered as they appear."""
  numbers: dict[Any, int] = {}

  def name(var: Any) -> Any:
    if isinstance(var, jex.Var) and var not in constants:
      return numbers.setdefault(var, len(numbers))
    value = np.asarray(var.val if isinstance(var, jex.Literal) else constants[var])
    return value.shape, value.dtype, hashlib.sha256(value.tobytes()).digest()

  def described(eqn: Any) -> tuple:
    settings = tuple((key, value if _is_hashable(value) else repr(value)) for key, value in eqn.params.items())
    return eqn.primitive, settings, *map(name, (*eqn.invars, *eqn.outvars))

  shapes = tuple(str(var.aval) for var in arguments)
  return shapes, tuple(map(name, arguments)), tuple(map(described, equations)), tuple(map(name, outputs))


def _is_hashable(value: Any) -> bool:
  try:
    hash(value)
  except TypeError:
    return False
  return True


def _makes_keys(eqn: Any) -> bool:
  return all(jnp.issubdtype(var.aval.dtype, jax.dtypes.prng_key) for var in eqn.outvars)


def _constants(closed: Any) -> dict:
  return dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))


def _evaluate(equations: Sequence[Any], given: dict, outputs: Sequence[Any], inline: bool = False) -> list[Any]:
  """Evaluates equations one by one. `inline` expands rematerialized blocks, so that they can be split, too."""
  values = dict(given)

  def read(var: Any) -> Any:
    return var.val if isinstance(var, jex.Literal) else values[var]

  for eqn in equations:
    arguments = [read(var) for var in eqn.invars]
    if inline and eqn.primitive.name in _REMAT:
      inner = eqn.params["jaxpr"]
      results = _evaluate(inner.eqns, dict(zip(inner.invars, arguments, strict=True)), inner.outvars, inline)
    else:
      results = eqn.primitive.bind(*arguments, **eqn.primitive.get_bind_params(eqn.params))
      results = results if eqn.primitive.multiple_results else [results]
    values.update(zip(eqn.outvars, results, strict=True))
  return [read(var) for var in outputs]
