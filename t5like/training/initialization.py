"""A state's first values, made by many small programs instead of one large one.

One program that draws every variable of a deep model takes minutes to compile, and most of it repeats: layer after
layer draws the same shapes from other keys. So the initialization is traced once and cut into pieces, one for each
array. A piece takes its random keys as arguments; pieces that are then alike share a compiled program. The values
are those of the one large program, and are the same on any mesh.
"""

from __future__ import annotations

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
  """What `function()` gives, each array created directly on the devices that `shardings` names."""
  traced, shape = jax.make_jaxpr(function, return_shape=True)()
  # The forward pass, which no variable's value depends on, goes first.
  needed, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
  closed = jax.make_jaxpr(lambda: _evaluate(needed.eqns, _constants(traced), needed.outvars, inline=True))()
  maker = {var: eqn for eqn in closed.jaxpr.eqns for var in eqn.outvars}
  constants = _constants(closed)
  targets = jax.tree.leaves(shardings)
  results: list[Any] = [None] * len(targets)
  programs: dict[Any, Callable] = {}
  for leaves in _pieces(closed.jaxpr.outvars, maker):
    piece = _Piece([closed.jaxpr.outvars[i] for i in leaves], maker, constants)
    wanted = tuple(targets[i] for i in leaves)
    identity = (piece.identity, wanted)
    if identity not in programs:
      programs[identity] = jax.jit(piece.run, out_shardings=wanted)
    for i, value in zip(leaves, programs[identity](piece.keys), strict=True):
      results[i] = value
  return jax.tree.unflatten(jax.tree.structure(shape), results)


class _Piece:
  """The equations behind some outputs, from their random keys on."""

  def __init__(self, outputs: Sequence[Any], maker: dict, constants: dict):
    equations = _behind(outputs, maker)
    self._outputs, self._constants = outputs, constants
    self._equations = [eqn for eqn in equations if not _makes_keys(eqn)]
    made = {var for eqn in self._equations for var in eqn.outvars}
    used = [var for eqn in self._equations for var in eqn.invars] + list(outputs)
    self._cuts = [var for var in dict.fromkeys(v for v in used if isinstance(v, jex.Var)) if var not in made]
    self._cuts = [var for var in self._cuts if var not in constants]
    keys = _evaluate([eqn for eqn in equations if _makes_keys(eqn)], constants, self._cuts)
    self._kinds = [jax.random.key_impl(key) for key in keys]
    # As numbers of no device: on several hosts, they are then the same on all devices.
    self.keys = [np.asarray(jax.random.key_data(key)) for key in keys]
    traced = jax.make_jaxpr(self.run)(self.keys)
    values = [(np.shape(const), np.asarray(const).tobytes()) for const in traced.consts]
    self.identity = (str(traced.jaxpr), hashlib.sha256(repr(values).encode()).digest())

  def run(self, keys: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    wrapped = [jax.random.wrap_key_data(key, impl=kind) for key, kind in zip(keys, self._kinds, strict=True)]
    given = self._constants | dict(zip(self._cuts, wrapped, strict=True))
    return tuple(_evaluate(self._equations, given, self._outputs))


def _pieces(outputs: Sequence[Any], maker: dict) -> list[list[int]]:
  """Outputs by number, together where one equation (a scan over layers) makes several of them at once."""
  piece_of: dict[int, list[int]] = {}  # by equation
  pieces = []
  for i, var in enumerate(outputs):
    shared = [id(eqn) for eqn in _behind([var], maker) if len(eqn.outvars) > 1]
    found = next((piece_of[key] for key in shared if key in piece_of), None)
    if found is None:
      found = []
      pieces.append(found)
    found.append(i)
    piece_of.update((key, piece_of.get(key, found)) for key in shared)
  return pieces


def _behind(outputs: Sequence[Any], maker: dict) -> list[Any]:
  """All equations that the outputs depend on, in an order in which they can be evaluated."""
  ordered: dict[int, Any] = {}
  pending = [(var, False) for var in outputs]
  while pending:
    var, ready = pending.pop()
    eqn = None if isinstance(var, jex.Literal) else maker.get(var)
    if eqn is None or id(eqn) in ordered:
      continue
    if ready:
      ordered[id(eqn)] = eqn
    else:
      pending.append((var, True))
      pending.extend((below, False) for below in eqn.invars)
  return list(ordered.values())


def _makes_keys(eqn: Any) -> bool:
  return all(jnp.issubdtype(var.aval.dtype, jax.dtypes.prng_key) for var in eqn.outvars)


def _constants(closed: Any) -> dict:
  return dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))


def _evaluate(equations: Sequence[Any], given: dict, outputs: Sequence[Any], inline: bool = False) -> list[Any]:
  """Goes through equations one by one. `inline` opens rematerialized blocks, so that what is in them can be cut."""
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
