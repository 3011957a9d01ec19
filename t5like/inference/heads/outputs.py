"""The outputs of a model's head for batches of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from t5like import parallel
from t5like.inference.generation import shard_batch
from t5like.inference.memory import MemoryCheckedFunction
from t5like.models.heads import WithHead

_FEATURES = ("encoder_input_tokens", "encoder_token_types", "encoder_segment_ids", "encoder_positions")


class HeadRunner:
  """Computes the outputs of a head. All hosts call it with the same rows and get the same outputs."""

  def __init__(self, model: WithHead, mesh: Mesh):
    self.model, self._mesh = model, mesh
    self._shards = parallel.row_shards(mesh.shape)
    self._run = MemoryCheckedFunction(self._traced, mesh, static_argnames=("output",))

  def __call__(
    self, params: Any, batch: Mapping[str, np.ndarray], rows: int = 0, output: str | None = None
  ) -> np.ndarray:
    """Returns logits in float32 for each row of `batch`, which is filled up to `rows`: the shape that is compiled.

    output  the name of the model's output; None: its logits.
    """
    inputs = {name: batch[name] for name in _FEATURES}
    count = len(inputs["encoder_input_tokens"])
    missing = -(-max(rows, count) // self._shards) * self._shards - count
    if missing:  # copies, so that no softmax is empty
      inputs = {name: np.concatenate([x, np.repeat(x[:1], missing, axis=0)]) for name, x in inputs.items()}
    output = output or ("span_logits" if self.model.head.form == "spans" else "label_logits")
    return jax.device_get(self._run(params, shard_batch(inputs, self._mesh), output=output))[:count]

  def _traced(self, params: Any, batch: dict[str, jax.Array], output: str) -> jax.Array:
    return self.model.apply({"params": params}, batch)[output].astype("float32")


def sigmoid(logits: np.ndarray) -> np.ndarray:
  """Returns probabilities of independent labels, in float64."""
  return np.exp(-np.logaddexp(0.0, -np.asarray(logits, np.float64)))


def softmax(logits: np.ndarray) -> np.ndarray:
  """Returns probabilities over the last axis, in float64."""
  values = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
  return values / np.sum(values, axis=-1, keepdims=True)
