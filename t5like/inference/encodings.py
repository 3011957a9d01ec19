"""Text embeddings and mask filling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5like import decoding
from t5like.errors import UserError, nearest
from t5like.inference.batching import BatchPlanner, BatchShape
from t5like.inference.generation import shard_batch
from t5like.inference.memory import MemoryCheckedFunction
from t5like.inference.prompts import position_limit, prompt_batch
from t5like.models.padding import encoder_valid

POOLINGS = ("cls", "mean")
Texts = Sequence[Sequence[int]]  # token ids, special tokens included


class TextEmbedder:
  """Embeds texts. All hosts call it with the same texts and get the same vectors.

  cls   the last hidden state of the first token, [CLS]
  mean  the mean of the last hidden states of all tokens, special tokens included

  An encoder-decoder embeds with its encoder.
  """

  def __init__(self, model: nn.Module, mesh: Mesh, pooling: str):
    if pooling not in POOLINGS:
      raise UserError(
        f"unknown pooling {pooling!r}", expected=" or ".join(POOLINGS), nearest=nearest(pooling, POOLINGS)
      )
    if pooling == "cls" and model.batch_layout != "encoder":
      raise UserError(f"{type(model).__name__} has no [CLS] token to pool", try_="mean")
    self.model, self.pooling = model, pooling
    self._mesh = mesh
    self._embed = MemoryCheckedFunction(self._traced, mesh)

  def __call__(self, params: Any, texts: Texts, shape: BatchShape | None = None) -> np.ndarray:
    """Returns embeddings [texts, embed] in float32; pads texts to `shape`, or to the smallest one that fits."""
    batch = shard_batch(_batch(self.model, self._mesh, texts, shape), self._mesh)
    return jax.device_get(self._embed(params, batch))[: len(texts)]

  def _traced(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    reads = "encode" if self.model.batch_layout == "encoder_decoder" else "hidden_states"
    hidden = self.model.apply({"params": params}, batch, method=reads).astype(jnp.float32)
    if self.pooling == "cls":
      return hidden[:, 0]
    real = batch["decoder_segment_ids"] > 0 if "decoder_input_tokens" in batch else encoder_valid(batch)
    real = real.astype(jnp.float32)[:, :, None]
    return jnp.sum(hidden * real, axis=1) / jnp.maximum(jnp.sum(real, axis=1), 1.0)


class MaskFiller:
  """Predicts the most likely tokens for each mask of a text."""

  def __init__(self, model: nn.Module, mesh: Mesh, mask_id: int, top: int):
    if model.batch_layout != "encoder" or not model.config.mlm_head:
      raise UserError(
        f"this {type(model).__name__} cannot fill masks: it has no masked-LM head",
        expected="an encoder with TransformerConfig.mlm_head, such as BertForMaskedLM",
      )
    if not 1 <= top <= model.config.vocab_size:
      raise UserError(f"invalid number of tokens per mask: {top}", expected=f"1 to {model.config.vocab_size}")
    self.model = model
    self._mesh, self._mask_id, self._top = mesh, mask_id, top
    self._fill = MemoryCheckedFunction(self._traced, mesh)

  def __call__(self, params: Any, texts: Texts, shape: BatchShape | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (probabilities, token ids) for each text, both [masks, top], most likely first."""
    batch = _batch(self.model, self._mesh, texts, shape)
    masks = batch["encoder_input_tokens"] == self._mask_id
    counts = masks.sum(axis=1)
    slots = decoding.bucket(int(counts.max()), smallest=1)
    # The positions of a row's masks come first, in order; the rest is padding, dropped below.
    places = np.argsort(~masks, axis=1, kind="stable")[:, :slots].astype(np.int32)
    places = np.pad(places, ((0, 0), (0, slots - places.shape[1])))
    found = jax.device_get(self._fill(params, shard_batch(batch | {"places": places}, self._mesh)))
    return [(found[0][row, : counts[row]], found[1][row, : counts[row]]) for row in range(len(texts))]

  def _traced(self, params: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    variables = {"params": params}
    hidden = self.model.apply(variables, batch, method="hidden_states")
    under_masks = jnp.take_along_axis(hidden, batch["places"][:, :, None], axis=1)
    logits = self.model.apply(variables, under_masks, method="project").astype(jnp.float32)
    return jax.lax.top_k(jax.nn.softmax(logits, axis=-1), self._top)


def nearest_rows(vectors: np.ndarray, among: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Finds for each of `vectors` [n, embed] the rows of `among` [m, embed] nearest by cosine.

  Returns similarities and row numbers, both [n, min(count, m)], nearest first; ties keep the order of `among`.
  """
  similarities = _unit(vectors) @ _unit(among).T
  order = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
  return np.take_along_axis(similarities, order, axis=1), order


def _unit(vectors: np.ndarray) -> np.ndarray:
  return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def planner(model: nn.Module, mesh: Mesh, batch_size: int) -> BatchPlanner:
  """Returns a planner for batches that take one forward pass."""
  return BatchPlanner(batch_size, mesh.shape["data"] * mesh.shape["fsdp"], position_limit(model.config))


def _batch(model: nn.Module, mesh: Mesh, texts: Texts, shape: BatchShape | None) -> dict[str, np.ndarray]:
  shape = shape or planner(model, mesh, len(texts)).smallest(len(texts), max(map(len, texts)))
  return prompt_batch(model.batch_layout, texts, shape)
