"""A model's outputs for batches of prompts of any size."""

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
from t5like.inference.prompts import position_limit, prompt_batch
from t5like.inference.room import SizedFunction
from t5like.models.cache import select_hypotheses
from t5like.models.stepping import prepare

Prompts = Mapping[str, np.ndarray]


class Generator:
  """Decodes, sharded as in training. Rows and lengths are filled up to buckets: one compilation serves many shapes.

  On several hosts all call it with the same prompts and get the same outputs.
  """

  def __init__(self, model: nn.Module, mesh: Mesh, eos_id: int | None, pad_id: int = 0):
    self.model = model
    self._mesh = mesh
    self._eos_id, self._pad_id = eos_id, pad_id
    self._ways = mesh.shape["data"] * mesh.shape["fsdp"]
    self._decode = SizedFunction(self._traced, mesh, static_argnames=("settings",))

  def __call__(
    self, params: Any, prompts: Prompts, settings: DecodeSettings, row_ids: np.ndarray | None = None
  ) -> Decoded:
    """Outputs as numpy arrays, [rows, n_best, ...], of prompts as the model's `start_decoding` takes them.

    `row_ids` [rows] tell samples apart: the same id and seed give the same text in any batch. Raises NoRoom where the
    devices have too little memory for so many rows of that length.
    """
    rows = len(next(iter(prompts.values())))
    self._check(prompts, settings)
    ids = np.arange(rows, dtype=np.int32) if row_ids is None else np.asarray(row_ids, np.int32)
    limits = np.full((rows,), settings.max_length, np.int32)
    filled = self._ways * decoding.bucket(-(-rows // self._ways), smallest=1)
    batch = {name: self._filled(array, filled) for name, array in _with_lengths(prompts).items()}
    batch |= {"row_ids": _rows_filled(ids, filled), "limits": _rows_filled(limits, filled)}
    batch = placed(batch, self._mesh)
    fixed = dataclasses.replace(settings, max_length=decoding.bucket(settings.max_length), seed=0)
    decoded = jax.device_get(self._decode(params, batch, np.uint32(settings.seed), settings=fixed))
    decoded = jax.tree.map(lambda x: x[:rows], decoded)
    return dataclasses.replace(decoded, tokens=decoded.tokens[:, :, : settings.max_length])

  def planner(self, batch_size: int, written: int) -> BatchPlanner:
    """Of batches of prompts, each of which goes on for `written` tokens."""
    room = written - 1 if self.model.batch_layout != "encoder_decoder" else 0
    positions = position_limit(self.model.config)
    return BatchPlanner(batch_size, self._ways, None if positions is None else positions - room, written)

  def texts(
    self,
    params: Any,
    texts: Sequence[Sequence[int]],
    settings: DecodeSettings,
    shape: BatchShape | None = None,
    row_ids: np.ndarray | None = None,
  ) -> Decoded:
    """The outputs for texts in tokens, padded to `shape`, or to the smallest that holds them."""
    shape = shape or self.planner(len(texts), settings.max_length).smallest(len(texts), max(map(len, texts)))
    ids = np.arange(len(texts)) if row_ids is None else np.asarray(row_ids)
    prompts = prompt_batch(self.model.batch_layout, texts, shape)
    decoded = self(params, prompts, settings, np.pad(ids, (0, shape.rows - len(texts))))
    return jax.tree.map(lambda x: x[: len(texts)], decoded)

  def compilations(self) -> int:
    """The number of shapes that were compiled so far."""
    return self._decode.compilations()

  def _filled(self, array: np.ndarray, rows: int) -> np.ndarray:
    """Rows and length up to their buckets, with padding that no model looks at."""
    array = _rows_filled(np.asarray(array), rows)
    if array.ndim < 2:
      return array
    length = decoding.bucket(array.shape[1], at_most=self.model.config.max_positions)
    return np.pad(array, ((0, 0), (0, length - array.shape[1])))

  def _check(self, prompts: Prompts, settings: DecodeSettings) -> None:
    config = self.model.config
    for sequence in settings.stop_sequences:
      if max(sequence) >= config.vocab_size:
        raise UserError(
          f"the stop sequence {sequence} has ids that the model does not know", vocabulary=config.vocab_size
        )
    longest = prompts.get("decoder_input_tokens", prompts.get("decoder_prompt_tokens", np.zeros((1, 0)))).shape[1] + 1
    if config.positions != "learned" or longest + settings.max_length - 1 <= config.max_positions:
      return
    lengths = np.asarray(self.model.decoder_prompt(prompts)[1])
    row = int(lengths.argmax())
    if lengths[row] + settings.max_length - 1 > config.max_positions:
      raise UserError(
        f"a prompt of {lengths[row]} tokens and {settings.max_length} more do not fit a model's positions",
        positions=f"TransformerConfig.max_positions = {config.max_positions}",
        row=f"{row} of {len(lengths)} is the longest",
        try_=f"max_length={max(config.max_positions + 1 - lengths[row], 1)}, or shorter prompts",
      )

  def _traced(self, params: Any, batch: dict[str, jax.Array], seed: jax.Array, *, settings: DecodeSettings) -> Decoded:
    batch = dict(batch)
    row_ids, limits = batch.pop("row_ids"), batch.pop("limits")
    model, variables = prepare(self.model, params)

    def step(tokens, cache):
      return model.apply(variables, tokens, cache, method="decode_step")

    tokens, lengths = model.decoder_prompt(batch)
    real = jnp.arange(tokens.shape[1])[None, :] < lengths[:, None]
    return decoding.decode(
      step,
      model.apply(variables, batch, settings.max_length, settings.hypotheses_per_row, method="start_decoding"),
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


def placed(batch: Prompts, mesh: Mesh) -> dict[str, jax.Array]:
  """The rows of a batch that all hosts have whole, over the devices; each host copies those of its own devices."""
  rows = parallel.batch_sharding(mesh)
  return {name: jax.make_array_from_callback(x.shape, rows, lambda at, x=x: x[at]) for name, x in batch.items()}


def _with_lengths(prompts: Prompts) -> Prompts:
  """A decoder's prompts without a word on their lengths are whole rows; what fills them up must not count."""
  told = {"decoder_segment_ids", "decoder_causal_attention"} & set(prompts)
  if "decoder_input_tokens" not in prompts or told:
    return prompts
  return {**prompts, "decoder_segment_ids": np.ones_like(prompts["decoder_input_tokens"])}


def _rows_filled(array: np.ndarray, rows: int) -> np.ndarray:
  return np.pad(array, ((0, rows - len(array)), *((0, 0),) * (array.ndim - 1)))
