"""Extensions of a model at named sites: the seam of the methods in finetuning/methods, such as LoRA.

A model's `tuning` maps sites to extensions. Extensions are values, not modules: they declare parameters of their own in
the module at which they sit, next to those of the base, whose names and values do not change. Sites:

  path of a dense layer          wraps its product: extension(layer, product, x) -> y
  token_embedder                 adds a low-rank product to the table: extension.factors(embedder) -> A, B
  path of a block + /NAME_adapter     builds a module that adds a sublayer's result to the residual stream (NAME is
                                 attention, cross_attention or mlp): module(x, y, h, norm) -> the sum
  path of attention + /prefix    builds a module that returns keys and values which every query sees
  path of a stack + /prefixes    builds a module that returns what the prefixes of its layers share
  token_embedder/prompt          returns vectors [tokens, embed] that precede the embedded inputs
  token_embedder/shift           has `tokens`, the number of learned positions that a prefix takes

`merge` folds the extensions that can be expressed in the base's parameters into them.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax

_NUMBERED = re.compile(r"\blayers_\d+\b")


@dataclasses.dataclass(frozen=True)
class Tuning:
  """Extensions by site: `encoder/layers/...` for all layers of a stack, or `encoder/layers_3/...` for one.

  Several extensions of a dense layer wrap it in order, the last one outermost.
  """

  sites: tuple[tuple[str, tuple[Any, ...]], ...] = ()

  @functools.cached_property
  def _by_site(self) -> dict[str, tuple[Any, ...]]:
    return dict(self.sites)

  def at(self, site: str) -> tuple[Any, ...]:
    """Returns the extensions of a site; those of stacked layers hold for each of them."""
    found = self._by_site.get(site)
    return self._by_site.get(_NUMBERED.sub("layers", site), ()) if found is None else found


_ACTIVE: contextvars.ContextVar[Tuning | None] = contextvars.ContextVar("tuning", default=None)
_PARENT: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("tuned_parent", default=())


@contextlib.contextmanager
def applied(tuning: Tuning | None) -> Iterator[None]:
  """Declares the extensions of a module that is initialized or applied on its own."""
  token = _ACTIVE.set(tuning)
  try:
    with inside(()):
      yield
  finally:
    _ACTIVE.reset(token)


class Tunable(nn.Module):
  """A model whose modules see its `tuning` while it is initialized or applied; None: the plain model."""

  tuning: Tuning | None = dataclasses.field(default=None, kw_only=True)

  @nn.nowrap
  def init(self, *args: Any, **kwargs: Any) -> Any:
    with applied(self.tuning):
      return super().init(*args, **kwargs)

  @nn.nowrap
  def apply(self, *args: Any, **kwargs: Any) -> Any:
    with applied(self.tuning):
      return super().apply(*args, **kwargs)


@contextlib.contextmanager
def inside(path: tuple[str, ...]) -> Iterator[None]:
  """Declares, while functional modules are traced, the path of their parent."""
  token = _PARENT.set(path)
  try:
    yield
  finally:
    _PARENT.reset(token)


def extensions(module: nn.Module, name: str = "") -> tuple[Any, ...]:
  """Returns the extensions at a module, or at a part of it."""
  tuning = _ACTIVE.get()
  if tuning is None:
    return ()
  return tuning.at("/".join((*_PARENT.get(), *module.path, *filter(None, [name]))))


def tuning_below(module: nn.Module, name: str) -> Tuning | None:
  """Returns the extensions at the parts of a module's child, by site relative to it."""
  tuning = _ACTIVE.get()
  if tuning is None:
    return None
  path = "/".join((*_PARENT.get(), *module.path, name)) + "/"
  found: dict[str, tuple[Any, ...]] = {}
  for start in (_NUMBERED.sub("layers", path), path):  # sites of one layer take precedence
    found |= {site.removeprefix(start): each for site, each in tuning.sites if site.startswith(start)}
  return Tuning(tuple(found.items()))


def extended(layer: nn.Module, product: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
  """Returns `product(x)` of a dense layer, changed by its extensions."""
  for extension in extensions(layer):
    product = functools.partial(extension, layer, product)
  return product(x)


def learned_tokens(model: nn.Module) -> int:
  """Returns the number of positions that a learned prompt or prefix takes before the first token of a text."""
  sites = model.tuning.sites if getattr(model, "tuning", None) else ()
  ends = ("token_embedder/prompt", "token_embedder/shift")
  return sum(extension.tokens for site, found in sites if site.endswith(ends) for extension in found)


def merge(tuning: Tuning | None, params: Mapping[str, Any]) -> tuple[Tuning | None, dict[str, Any]]:
  """Folds extensions into the parameters that they change; returns those that are left, and the new parameters.

  Layers may be stacked or not. An extension that can be merged has a method `merged`, which returns the layer's
  parameters without its own.
  """
  params, left = dict(params), {}
  for site, found in tuning.sites if tuning else ():
    if not all(hasattr(extension, "merged") for extension in found):
      left[site] = found
      continue
    for path in _paths(params, tuple(site.split("/"))):
      weights = _get(params, path)
      for extension in found:
        weights = extension.merged(weights)
      params = _put(params, path, weights)
  return Tuning(tuple(left.items())) if left else None, params


def _paths(tree: Mapping[str, Any], site: tuple[str, ...]) -> list[tuple[str, ...]]:
  """Returns the paths of a site: several where `layers` names layers that were unrolled."""
  if not site:
    return [()]
  names = [site[0]]
  if site[0] == "layers" and "layers" not in tree:
    names = [name for name in tree if _NUMBERED.fullmatch(name)]
  return [(name, *rest) for name in names for rest in _paths(tree[name], site[1:])]


def _get(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
  return functools.reduce(lambda node, name: node[name], path, tree)


def _put(tree: Mapping[str, Any], path: tuple[str, ...], value: Any) -> Any:
  return value if not path else {**tree, path[0]: _put(tree[path[0]], path[1:], value)}
