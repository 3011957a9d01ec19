"""A model without a head for embeddings as one with such a head, so that its pooled states can be evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5like.inference.sources import Source
from t5like.interop.layouts import expected_shapes, flatten, unflatten
from t5like.models.heads import EmbeddingHead, WithHead, attach_head

if TYPE_CHECKING:
  from t5like.inference.model import Model


class PooledSource:
  """A source whose parameters are those of a WithHead without parameters in its head."""

  def __init__(self, source: Source, module: WithHead):
    self._source, self.module = source, module

  def __getattr__(self, name: str) -> Any:
    return getattr(self._source, name)

  def read(self, step: int | None, average: bool, fingerprint: Mapping[str, Any] | None) -> Any:
    """Reads the parameters; the fingerprint is that of the source's own model, without this head."""
    params = flatten(self._source.read(step, average, None))
    prefix = "" if any(path.startswith("backbone/") for path in params) else "backbone/"
    wanted = expected_shapes(self.module)
    return unflatten({f"{prefix}{path}": x for path, x in params.items() if f"{prefix}{path}" in wanted})


def pooled_model(model: Model, pooling: str) -> Model:
  """Returns the model with an EmbeddingHead that pools its last states; another head is left out."""
  module = attach_head(model.module, EmbeddingHead(pooling=pooling))
  return dataclasses.replace(model, module=module, source=PooledSource(model.source, module))
