"""Text embeddings and mask filling."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5like import decoding, parallel
from t5like.errors import UserError, nearest
from t5like.inference.batching import BatchPlanner, BatchShape
from t5like.inference.generation import shard_batch
from t5like.inference.memory import MemoryCheckedFunction
from t5like.inference.prompts import position_limit, prompt_batch, with_spelling
from t5like.models.heads import SENTENCE_POOLINGS, Features
from t5like.models.heads.states import pool
from t5like.models.padding import encoder_valid
from t5like.vocabularies import Vocabulary

if TYPE_CHECKING:  # a model's methods run these jobs
  from t5like.inference.model import Model

_QUERIES, _BLOCK = 256, 65_536  # queries and rows compared at a time: 64 MiB of similarities
Texts = Sequence[Sequence[int]]  # token ids, special tokens included


class TextEmbedder:
  """Embeds texts. All hosts call it with the same texts and get the same vectors.

  pooling  of the last hidden states of all tokens, special tokens included: one of SENTENCE_POOLINGS, such as mean or
           cls, the state of the first token; None: the model's own EmbeddingHead, with its dense layer and
           normalization
  vocabulary  spells tokens if it has any words, for a model that reads characters

  An encoder-decoder embeds with its encoder.
  """

  def __init__(self, model: nn.Module, mesh: Mesh, pooling: str | None, vocabulary: Vocabulary | None = None):
    if pooling not in (None, *SENTENCE_POOLINGS):
      known = " or ".join(SENTENCE_POOLINGS)
      raise UserError(f"unknown pooling {pooling!r}", expected=known, nearest=nearest(pooling, SENTENCE_POOLINGS))
    if pooling == "cls" and model.batch_layout != "encoder":
      raise UserError(f"{type(model).__name__} has no [CLS] token to pool", try_="mean")
    self.model, self.pooling, self._vocabulary = model, pooling, vocabulary
    self._mesh = mesh
    self._embed = MemoryCheckedFunction(self._traced, mesh)

  def __call__(self, params: Any, texts: Texts, shape: BatchShape | None = None) -> np.ndarray:
    """Returns embeddings [texts, width] in float32; pads texts to `shape`, or to the smallest one that fits."""
    return jax.device_get(self.start(params, texts, shape))[: len(texts)]

  def start(self, params: Any, texts: Texts, shape: BatchShape | None = None) -> jax.Array:
    """Starts to compute embeddings and returns them, [rows of `shape`, width], without waiting for the devices."""
    batch = with_spelling(_batch(self.model, self._mesh, texts, shape), self.model, self._vocabulary)
    return self._embed(params, shard_batch(batch, self._mesh))

  def _traced(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    if self.pooling is None:
      return self.model.apply({"params": params}, batch)["embeddings"].astype(jnp.float32)
    reads = "encode" if self.model.batch_layout == "encoder_decoder" else "hidden_states"
    hidden = self.model.apply({"params": params}, batch, method=reads).astype(jnp.float32)
    real = batch["decoder_segment_ids"] > 0 if "decoder_input_tokens" in batch else encoder_valid(batch)
    return pool(Features(self.model.config, hidden, real), hidden, self.pooling)


class MaskFiller:
  """Predicts the most likely tokens for each mask of a text."""

  def __init__(self, model: nn.Module, mesh: Mesh, mask_id: int, top: int):
    if model.batch_layout != "encoder" or not model.config.mlm_head:
      raise UserError(
        f"this {type(model).__name__} cannot fill masks: it has no masked-LM head",
        expected="an encoder with TransformerConfig.mlm_head, such as BertForMaskedLM",
      )
    if not isinstance(top, numbers.Integral) or not 1 <= top <= model.config.vocab_size:
      raise UserError(f"invalid number of tokens per mask: {top!r}", expected=f"1 to {model.config.vocab_size}")
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
    # ELECTRA's generator fills masks, and XLNet's second stream, which reads the others' tokens.
    special = (way for way in ("generator_states", "query_states") if hasattr(self.model, way))
    reads = next(special, "hidden_states")
    masks = batch["encoder_input_tokens"] == self._mask_id
    hidden = self.model.apply(variables, batch | {"encoder_loss_weights": masks.astype(jnp.float32)}, method=reads)
    under_masks = jnp.take_along_axis(hidden, batch["places"][:, :, None], axis=1)
    logits = self.model.apply(variables, under_masks, method="project").astype(jnp.float32)
    return jax.lax.top_k(jax.nn.softmax(logits, axis=-1), self._top)


def nearest_rows(vectors: np.ndarray, among: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Finds for each of `vectors` [n, embed] the rows of `among` [m, embed] nearest by cosine.

  Returns similarities and row numbers, both [n, min(count, m)], nearest first; ties keep the order of `among`. Reads
  `among`, which may be a memory-mapped file of any size, in blocks. A row with NaN is farther than all others.
  """
  found = [
    _nearest(unit(vectors[first : first + _QUERIES]), among, count) for first in range(0, len(vectors), _QUERIES)
  ]
  similarities, rows = zip(*found, strict=True)
  return np.concatenate(similarities), np.concatenate(rows)


def _nearest(queries: np.ndarray, among: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  similarities, rows = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
  for first in range(0, len(among), _BLOCK):
    block = np.asarray(among[first : first + _BLOCK], np.float32)
    norms = np.sqrt(np.einsum("rd,rd->r", block, block))
    near = np.nan_to_num(queries @ block.T / np.maximum(norms, np.finfo(np.float32).tiny)[None], nan=-np.inf)
    numbers = np.broadcast_to(np.arange(first, first + len(block))[None], near.shape)
    similarities, rows = np.hstack([similarities, near]), np.hstack([rows, numbers])
    if similarities.shape[1] > count:
      kept = _largest(similarities, count)
      similarities, rows = (np.take_along_axis(x, kept, axis=1) for x in (similarities, rows))
  order = np.argsort(-similarities, axis=1, kind="stable")
  return np.take_along_axis(similarities, order, axis=1), np.take_along_axis(rows, order, axis=1)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
  """Returns the places of the `count` largest values of each row, in order; of equal ones the first."""
  limit = np.partition(values, -count, axis=1)[:, -count]
  places = []
  for row, least in zip(values, limit, strict=True):
    above = np.flatnonzero(row > least)
    places.append(np.sort(np.concatenate([above, np.flatnonzero(row == least)[: count - len(above)]])))
  return np.stack(places)


def unit(vectors: np.ndarray) -> np.ndarray:
  """Scales vectors [..., width] to length 1."""
  return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.finfo(np.float32).tiny)


def planner(model: nn.Module, mesh: Mesh, batch_size: int) -> BatchPlanner:
  """Returns a planner for batches that take one forward pass."""
  return BatchPlanner(batch_size, parallel.row_shards(mesh.shape), position_limit(model.config))


class OnePassJob:
  """The base of inference jobs that take one forward pass over the tokens of each row."""

  unit = "tokens read"
  _model: Model

  def planner(self, batch_size: int) -> BatchPlanner:
    return planner(self._model.module, self._model.mesh, batch_size)


def _batch(model: nn.Module, mesh: Mesh, texts: Texts, shape: BatchShape | None) -> dict[str, np.ndarray]:
  shape = shape or planner(model, mesh, len(texts)).smallest(len(texts), max(map(len, texts)))
  return prompt_batch(model.batch_layout, texts, shape)
