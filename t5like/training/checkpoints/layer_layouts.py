"""Reads separate layers for a run with stacked ones, and the other way round: SCAN_LAYERS may change between runs."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

Arrays = Mapping[str, jax.ShapeDtypeStruct]

# The path of a separate layer's parameter, and of all layers' in one array.
LAYER = re.compile(r"(?P<stack>.*)/layers_(?P<index>\d+)/(?P<rest>.*)")
STACKED = re.compile(r"(?P<stack>.*)/layers/(?P<rest>.*)")


@dataclasses.dataclass(frozen=True)
class _Origin:
  """The arrays of a checkpoint that one of the run is made of: one for each layer, or that of all layers."""

  paths: tuple[str, ...]
  shape: tuple[int, ...]  # of each of them
  index: int | None  # the layer of the only path; None: the paths are to be stacked

  def request(self, target: jax.ShapeDtypeStruct) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the arrays to read, placed like the array of the run."""
    spec = target.sharding.spec
    spec = spec[1:] if self.index is None else (None, *spec)
    sharding = NamedSharding(target.sharding.mesh, PartitionSpec(*spec), memory_kind=target.sharding.memory_kind)
    return dict.fromkeys(self.paths, jax.ShapeDtypeStruct(self.shape, target.dtype, sharding=sharding))

  def value(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
    parts = [arrays[path] for path in self.paths]
    return jnp.stack(parts) if self.index is None else parts[0][self.index]


@dataclasses.dataclass(frozen=True)
class LayerLayout:
  """The arrays of a checkpoint as a run with the other layout sees them."""

  stored: Arrays  # by the run's paths where all layers fit, else as they are
  converted: Mapping[str, _Origin]

  @classmethod
  def of(cls, stored: Arrays, wanted: Arrays) -> LayerLayout:
    origins = {path: _origin(path, wanted[path].shape, stored) for path in wanted if path not in stored}
    uses = collections.Counter(origin.paths for origin in origins.values() if origin)
    # A stacked array with more layers than the run belongs to another model.
    converted = {
      path: origin
      for path, origin in origins.items()
      if origin and (origin.index is None or uses[origin.paths] == origin.shape[0])
    }
    used = {path for origin in converted.values() for path in origin.paths}
    seen = {path: array for path, array in stored.items() if path not in used}
    for path, origin in converted.items():
      seen[path] = jax.ShapeDtypeStruct(wanted[path].shape, stored[origin.paths[0]].dtype)
    return cls(seen, converted)

  def read(self, wanted: Arrays, read: Callable[[Arrays], dict[str, jax.Array]]) -> dict[str, jax.Array]:
    """Returns the run's arrays with their shardings; `read` returns those of the checkpoint."""
    origins = {path: self.converted[path] for path in wanted if path in self.converted}
    if not origins:
      return read(wanted)
    request = {path: target for path, target in wanted.items() if path not in origins}
    for path, origin in origins.items():
      request |= origin.request(wanted[path])
    arrays = read(request)

    def convert(parts):
      return {path: origin.value(parts) for path, origin in origins.items()}

    parts = {path: arrays[path] for origin in origins.values() for path in origin.paths}
    made = jax.jit(convert, out_shardings={path: wanted[path].sharding for path in origins})(parts)
    return {path: made[path] if path in made else arrays[path] for path in wanted}


def _origin(path: str, shape: tuple[int, ...], stored: Arrays) -> _Origin | None:
  if found := LAYER.fullmatch(path):
    whole, index = f"{found['stack']}/layers/{found['rest']}", int(found["index"])
    fits = whole in stored and index < stored[whole].shape[0] and stored[whole].shape[1:] == shape
    return _Origin((whole,), stored[whole].shape, index) if fits else None
  if found := STACKED.fullmatch(path):
    layers = tuple(f"{found['stack']}/layers_{index}/{found['rest']}" for index in range(shape[0]))
    fits = all(layer in stored and stored[layer].shape == shape[1:] for layer in layers)
    return _Origin(layers, shape[1:], None) if fits else None
  return None
