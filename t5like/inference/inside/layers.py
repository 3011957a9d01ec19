"""Reads what the layers of a model compute for texts: states and attention weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5like import decoding
from t5like.decoding import DecodeSettings
from t5like.errors import UserError
from t5like.inference.batching import BatchShape
from t5like.inference.encodings import OnePassJob
from t5like.inference.generation import Generator, shard_batch
from t5like.inference.jobs import Answer, Limits, Prepared
from t5like.inference.memory import MemoryCheckedFunction
from t5like.inference.prompts import prompt_batch, with_spelling
from t5like.inference.rows import RejectedRow, Row, reject
from t5like.models.stack import INSIDE

if TYPE_CHECKING:  # a model's methods run these jobs
  from t5like.inference.model import Model

STATES, WEIGHTS = ("states",), ("self", "cross")
TARGETS = "targets"  # the field of a row with the text that the decoder of an encoder-decoder reads


@dataclasses.dataclass(frozen=True)
class PreparedPair(Prepared):
  """A tokenized row and the decoder's input, of an encoder-decoder; None: generated, or not read."""

  decoder_tokens: list[int] | None = None


class LayerReader:
  """Runs a model on a batch and returns `names` of what its stacks show: see models.stack.INSIDE."""

  def __init__(self, model: nn.Module, mesh: Mesh, names: tuple[str, ...]):
    self.model, self._mesh, self._names = model, mesh, names
    self._read = MemoryCheckedFunction(self._traced, mesh)

  def __call__(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Returns float32 arrays by stack and name: {"encoder": {"self": [layers, batch, heads, queries, keys]}, ...}."""
    return jax.device_get(self._read(params, shard_batch(batch, self._mesh)))

  def _traced(self, params: Any, batch: dict[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
    only_encoder = self.model.batch_layout == "encoder_decoder" and "decoder_input_tokens" not in batch
    method = "encode" if only_encoder else "hidden_states"
    _, found = self.model.apply({"params": params}, batch, method=method, mutable=[INSIDE])
    stacks = found.get(INSIDE, {})
    stacks = stacks.get("backbone", stacks)
    if "states" in stacks:  # of a model without stacks: ELMo
      stacks = {"decoder": stacks}
    if shared := stacks.get("shared"):  # the encoder's call is the first, the decoder's the last
      encoder = {kind: calls[:1] for kind, calls in shared.items() if kind != "cross"}
      stacks = {"encoder": encoder, "decoder": shared if len(shared["states"]) > 1 else {}}
    return {
      name: {kind: stacks[name][kind][-1].astype(jnp.float32) for kind in self._names if kind in stacks[name]}
      for name in ("encoder", "decoder")
      if stacks.get(name)
    }


class LookInside(OnePassJob):
  """Returns what the layers compute for each row: arrays without padding, and the tokens.

  names         of LayerReader
  target_field  of rows, with the text that the decoder of an encoder-decoder reads
  decoding      generates it for rows without; None: only the encoder runs on them
  """

  def __init__(
    self,
    model: Model,
    limits: Limits,
    names: tuple[str, ...],
    target_field: str = TARGETS,
    decoding: DecodeSettings | None = None,
  ):
    self._model, self.limits, self._field = model, limits, target_field
    self._reader = model.runner(LayerReader, names)
    self._reads_pairs = model.module.batch_layout == "encoder_decoder"
    self._decoding, self._generator = decoding, None
    if decoding is not None and self._reads_pairs:
      self._generator = model.runner(Generator, model.vocabulary.eos_id, 0, model.special.start)

  def prepare(self, rows: Sequence[Row]) -> list[Prepared | RejectedRow]:
    read = self.limits.tokenize(self._model, rows)
    return [
      r if isinstance(r, RejectedRow) else self._with_targets(row, r[1]) for row, r in zip(rows, read, strict=True)
    ]

  def _with_targets(self, row: Row, tokens: list[int]) -> Prepared | RejectedRow:
    given = row.targets
    if given is None and isinstance(row.fields.get(self._field), str):
      given = self._model.vocabulary.encode(row.fields[self._field])
    if given is None or not self._reads_pairs:
      return PreparedPair(row, tokens)
    special, positions = self._model.special, self._model.positions
    ids = [special.start, *special.before_targets, *given]
    if max(ids) >= self._model.config.vocab_size:
      return reject(row, "the model's embedding has no row for a token of its targets", self.limits.field)
    if positions is not None and len(ids) > positions:
      if not self.limits.truncate:
        why = f"its targets are too long: {len(ids):,} tokens (the model has {positions:,} positions)"
        return reject(row, why, self.limits.field, remedy="--truncate cuts them")
      ids = ids[:positions]
    return PreparedPair(row, tokens, decoder_tokens=ids)

  def answer(self, batch: Sequence[PreparedPair], shape: BatchShape | None = None) -> list[tuple[Answer, int]]:
    shape = shape or self.planner(len(batch)).smallest(len(batch), max(len(p.tokens) for p in batch))
    module = self._model.module
    inputs = prompt_batch(module.batch_layout, [p.tokens for p in batch], shape)
    inputs = with_spelling(inputs, module, self._model.vocabulary)
    decoder = self._decoder_inputs(batch)
    if decoder:
      length = decoding.bucket(max(map(len, decoder)), at_most=self._model.positions)
      tokens = np.zeros((shape.rows, length), np.int32)
      for row, ids in enumerate(decoder):
        tokens[row, : len(ids)] = ids
      inputs["decoder_input_tokens"] = tokens
    found = self._reader(self._model.params, inputs)
    if not any(found.values()):
      kind = self._model.kind
      raise UserError(f"{kind} has no attention, or no layers of one width, to look into", try_="model.embed")
    answers = []
    for row, prepared in enumerate(batch):
      targets = decoder[row] if decoder else None
      answers.append((self._answer(row, prepared.tokens, targets, found, inputs), len(prepared.tokens)))
    return answers

  def _decoder_inputs(self, batch: Sequence[PreparedPair]) -> list[list[int]]:
    """Returns what the decoder of an encoder-decoder reads, given or generated; nothing if only the encoder runs."""
    if not self._reads_pairs or (self._generator is None and any(p.decoder_tokens is None for p in batch)):
      return []
    written: dict[int, list[int]] = {}
    if missing := [row for row, p in enumerate(batch) if p.decoder_tokens is None]:
      texts = [batch[row].tokens for row in missing]
      made = self._generator.texts(self._model.params, texts, self._decoding)
      for row, ids, lengths in zip(missing, made.tokens, made.lengths, strict=True):
        written[row] = [self._model.special.start, *ids[0, : lengths[0]].tolist()][: self._model.positions]
    return [written.get(row, p.decoder_tokens) for row, p in enumerate(batch)]

  def _answer(
    self, row: int, tokens: list[int], targets: list[int] | None, found: Mapping[str, Mapping[str, np.ndarray]],
    inputs: Mapping[str, np.ndarray],
  ) -> Answer:  # fmt: skip
    """Cuts one row out of the arrays: padding, and learned prompts and prefixes, which precede the text."""
    padded = inputs.get("encoder_input_tokens", inputs.get("decoder_input_tokens")).shape[1]
    text = (padded, len(tokens))
    read = {
      "encoder": text,
      "decoder": text if targets is None else (inputs["decoder_input_tokens"].shape[1], len(targets)),
    }
    pieces = self._model.vocabulary.piece
    answer: Answer = {"tokens": [pieces(token) for token in tokens]}
    answer["target_tokens"] = None if targets is None else [pieces(token) for token in targets]
    for stack, arrays in found.items():
      for name, array in arrays.items():
        array = _last(array[:, row], -2, *read[stack])
        if name != "states":
          array = _last(array, -1, *(text if name == "cross" else read[stack]))
        answer["cross" if name == "cross" else stack] = array
    return answer


def _last(array: np.ndarray, axis: int, padded: int, length: int) -> np.ndarray:
  """Returns the first `length` of the last `padded` entries of an axis."""
  first = array.shape[axis] - padded
  return np.take(array, range(first, first + length), axis)
