"""Generates outputs for batches of prompts of any size."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5like import decoding, parallel
from t5like.decoding import Decoded, DecodeSettings
from t5like.errors import UserError
from t5like.inference.batching import BatchPlanner, BatchShape
from t5like.inference.memory import MemoryCheckedFunction
from t5like.inference.prompts import position_limit, prompt_batch
from t5like.models.cache import select_hypotheses
from t5like.models.stepping import prepare
from t5like.models.tuning import learned_tokens

Prompts = Mapping[str, np.ndarray]


class Generator:
  """Decodes, sharded as in training. Pads rows and lengths to buckets: one compilation serves many shapes.

  All hosts call it with the same prompts and get the same outputs.
  """

  def __init__(self, model: nn.Module, mesh: Mesh, eos_id: int | None, pad_id: int = 0, start_id: int | None = None):
    """Takes the end of sequence, and the decoder's start token if the config leaves it to the vocabulary."""
    if not hasattr(model, "start_decoding"):
      raise UserError(
        f"{type(model).__name__} does not generate text here",
        try_="model.embed, or model.classify of a model with a head",
      )
    if start_id is not None and model.batch_layout == "encoder_decoder":
      model = model.clone(config=dataclasses.replace(model.config, start_id=start_id))
    self.model = model
    self._mesh = mesh
    self._eos_id, self._pad_id = eos_id, pad_id
    self._batch_shards = parallel.row_shards(mesh.shape)
    self._decode = MemoryCheckedFunction(self._traced, mesh, static_argnames=("settings",))

  def __call__(
    self, params: Any, prompts: Prompts, settings: DecodeSettings, row_ids: np.ndarray | None = None
  ) -> Decoded:
    """Returns outputs as numpy arrays [rows, n_best, ...].

    Args:
      params: the model's parameters.
      prompts: a batch, as the model's `start_decoding` takes it.
      settings: the decoding settings.
      row_ids: [rows]; the same id and seed sample the same text in any batch.

    Raises NotEnoughMemory if the batch does not fit into device memory.
    """
    rows = len(next(iter(prompts.values())))
    self._check(prompts, settings)
    ids = np.arange(rows, dtype=np.int32) if row_ids is None else np.asarray(row_ids, np.int32)
    limits = np.full((rows,), settings.max_length, np.int32)
    padded_rows = self._batch_shards * decoding.bucket(-(-rows // self._batch_shards), smallest=1)
    batch = {name: self._pad_to_bucket(array, padded_rows) for name, array in _with_lengths(prompts).items()}
    batch |= {"row_ids": _pad_rows(ids, padded_rows), "limits": _pad_rows(limits, padded_rows)}
    batch = shard_batch(batch, self._mesh)
    ends = tuple(token for token in settings.more_ends if token < self.model.config.vocab_size)
    length = decoding.bucket(settings.max_length)
    static = dataclasses.replace(settings, max_length=length, seed=0, more_ends=ends)
    decoded = jax.device_get(self._decode(params, batch, np.uint32(settings.seed), settings=static))
    decoded = jax.tree.map(lambda x: x[:rows], decoded)
    return dataclasses.replace(decoded, tokens=decoded.tokens[:, :, : settings.max_length])

  def planner(self, batch_size: int, decode_length: int) -> BatchPlanner:
    """Returns a planner for batches of prompts, each followed by `decode_length` generated tokens."""
    reserved = decode_length - 1 if self.model.batch_layout != "encoder_decoder" else 0
    positions = position_limit(self.model.config, learned_tokens(self.model))
    return BatchPlanner(
      batch_size, self._batch_shards, None if positions is None else positions - reserved, decode_length
    )

  def texts(
    self,
    params: Any,
    texts: Sequence[Sequence[int]],
    settings: DecodeSettings,
    shape: BatchShape | None = None,
    row_ids: np.ndarray | None = None,
  ) -> Decoded:
    """Returns outputs for tokenized texts, padded to `shape` or to the smallest one that fits."""
    shape = shape or self.planner(len(texts), settings.max_length).smallest(len(texts), max(map(len, texts)))
    ids = np.arange(len(texts)) if row_ids is None else np.asarray(row_ids)
    prompts = prompt_batch(self.model.batch_layout, texts, shape)
    decoded = self(params, prompts, settings, np.pad(ids, (0, shape.rows - len(texts))))
    return jax.tree.map(lambda x: x[: len(texts)], decoded)

  def compilations(self) -> int:
    """Returns the number of shapes compiled so far."""
    return self._decode.compilations()

  def _pad_to_bucket(self, array: np.ndarray, rows: int) -> np.ndarray:
    """Pads rows and length to their buckets; the padding is masked in the model."""
    array = _pad_rows(np.asarray(array), rows)
    if array.ndim < 2:
      return array
    positions = position_limit(self.model.config, learned_tokens(self.model))
    length = decoding.bucket(array.shape[1], at_most=positions)
    return np.pad(array, ((0, 0), (0, length - array.shape[1])))

  def _check(self, prompts: Prompts, settings: DecodeSettings) -> None:
    config, positions = self.model.config, position_limit(self.model.config, learned_tokens(self.model))
    for kind, sequences in (("stop", settings.stop_sequences), ("forbidden", settings.forbidden)):
      for sequence in sequences:
        if max(sequence) >= config.vocab_size:
          raise UserError(
            f"the {kind} sequence {sequence} has ids outside the vocabulary", vocabulary=config.vocab_size
          )
    if settings.forced_first is not None and settings.forced_first >= config.vocab_size:
      raise UserError(f"forced_first={settings.forced_first} is outside the vocabulary", vocabulary=config.vocab_size)
    longest = prompts.get("decoder_input_tokens", prompts.get("decoder_prompt_tokens", np.zeros((1, 0)))).shape[1] + 1
    if positions is None or longest + settings.max_length - 1 <= positions:
      return
    lengths = np.asarray(self.model.decoder_prompt(prompts)[1])
    row = int(lengths.argmax())
    if lengths[row] + settings.max_length - 1 > positions:
      raise UserError(
        f"a prompt of {lengths[row]} tokens plus {settings.max_length} generated ones exceeds the model's positions",
        positions=f"TransformerConfig.max_positions = {config.max_positions}",
        row=f"{row} of {len(lengths)} is the longest",
        try_=f"max_length={max(positions + 1 - lengths[row], 1)}, or shorter prompts",
      )

  def _traced(self, params: Any, batch: dict[str, jax.Array], seed: jax.Array, *, settings: DecodeSettings) -> Decoded:
    batch = dict(batch)
    row_ids, limits = batch.pop("row_ids"), batch.pop("limits")
    model, variables = prepare(self.model, params)

    def step(tokens, cache):
      return model.apply(variables, tokens, cache, method="decode_step")

    cache = model.apply(variables, batch, settings.max_length, settings.hypotheses_per_row, method="start_decoding")
    if settings.method != "beam":  # hypotheses do not replace each other
      cache.pop("origins", None)
    tokens, lengths = model.decoder_prompt(batch)
    real = jnp.arange(tokens.shape[1])[None, :] < lengths[:, None]
    return decoding.decode(
      step,
      cache,
      model.first_tokens(batch),
      settings,
      eos_id=self._eos_id,
      pad_id=self._pad_id,
      limits=limits,
      row_ids=row_ids,
      seed=seed,
      prompt_tokens=jnp.where(real, tokens, -1),
      reorder=select_hypotheses,
    )


def shard_batch(batch: Prompts, mesh: Mesh) -> dict[str, jax.Array]:
  """Shards a batch that every host holds in full over the devices; each host copies only its devices' rows."""
  rows = parallel.batch_sharding(mesh)
  return {name: jax.make_array_from_callback(x.shape, rows, lambda at, x=x: x[at]) for name, x in batch.items()}


def _with_lengths(prompts: Prompts) -> Prompts:
  """Adds segment ids to decoder prompts that have no lengths: their rows are full, and padding must be masked."""
  has_lengths = {"decoder_segment_ids", "decoder_causal_attention"} & set(prompts)
  if "decoder_input_tokens" not in prompts or has_lengths:
    return prompts
  return {**prompts, "decoder_segment_ids": np.ones_like(prompts["decoder_input_tokens"])}


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
  return np.pad(array, ((0, rows - len(array)), *((0, 0),) * (array.ndim - 1)))
