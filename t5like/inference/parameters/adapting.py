"""Fits the parameters of INIT_FROM to a model that differs in head, layers, positions or vocabulary.

Rules, each reported on the run card:

- A model without a head starts the backbone of one with a head, and the reverse. A head is taken if it has the same
  labels, else it is new. BERT's pre-training heads and pooler are taken, new or left out as the model needs them;
  likewise ELECTRA's generator, the head of its discriminator, and SpanBERT's.
- A longer position table repeats the old one (Beltagy et al. 2020, section 5); a shorter one is its beginning.
- A larger vocabulary has all pieces of the old one: their rows are taken, wherever they moved. New rows are the mean of
  the old ones with slight noise (Hewitt 2021). A smaller embedding drops only rows beyond the vocabulary. Of a
  vocabulary of whole words (ULMFiT), the words that both have are taken, the others are new.
- A decoder that reads causally starts a prefix LM, and the reverse, unless its relative positions have two directions.
- Fewer layers: the lowest ones, or RESTORE.layers. Scanned and separate layers are converted to each other.

Everything else must match.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from t5like.console import warn
from t5like.errors import UserError
from t5like.experiments.reading import load_experiment
from t5like.finetuning.distillation import LEARNED
from t5like.inference.vocabulary import find_vocabulary
from t5like.interop.layouts import flatten
from t5like.training.checkpoints import Restore, load_parameters
from t5like.training.checkpoints.arrays import Unreadable, stored_arrays
from t5like.training.checkpoints.folders import PARAMS, read_fingerprint
from t5like.training.checkpoints.given_parameters import ArrayUse, GivenParameters, SourceModel
from t5like.training.checkpoints.layer_layouts import LAYER, STACKED
from t5like.training.optimizers.rules import leaves_by_path
from t5like.training.state import StateSpec
from t5like.vocabularies import Vocabulary

Shapes = Mapping[str, jax.ShapeDtypeStruct]
_BACKBONE, _HEAD = "backbone/", "head/"
_DELTA = "embedding_delta/"  # of ELECTRA's discriminator, with disentangled embeddings: see models/electra.py
_BERT_HEADS = (
  "pooler/", "mlm_head/", "nsp_head/", "generator/", "discriminator_head/", "boundary_head/", _DELTA, f"{LEARNED}/",
)  # fmt: skip
# The decoder's by a head on T5's encoder, the others by any head.
_UNUSED_WITH_HEAD = ("decoder/", "token_embedder/decoder/", "logits_dense/", "logits_bias/", "output_bias")
_POSITIONS = ("token_embedder/position_embedding", "token_embedder/decoder/position_embedding")
_VOCABULARY_AXIS = {
  "token_embedder/embedding": 0, "logits_dense/kernel": 1, "mlm_head/bias": 0, "logits_bias/bias": 0, "output_bias": 0,
}  # fmt: skip
_FREE_FIELDS = ("max_positions", "pooler", "mlm_head", "nsp_head", "discriminator_head", "scan_layers", "param_dtype")
_NOISE = 1e-3  # of new rows, in standard deviations of the old ones


@dataclasses.dataclass(frozen=True)
class _Part:
  """An array of the source, or one layer of a stacked array."""

  path: str
  shape: tuple[int, ...]
  layer: int | None = None


@dataclasses.dataclass(frozen=True)
class _Recipe:
  """How an array is made: parts, stacked if they are layers, with rows selected along an axis (-1: a new row)."""

  parts: tuple[_Part, ...]
  stacked: bool = False
  rows: np.ndarray | None = None
  axis: int = 0
  plus: str | None = None  # an array to add

  @property
  def shape(self) -> tuple[int, ...]:
    shape = list(self.parts[0].shape)
    if self.rows is not None:
      shape[self.axis] = len(self.rows)
    return (len(self.parts), *shape) if self.stacked else tuple(shape)

  def make(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    parts = [arrays[p.path] if p.layer is None else arrays[p.path][p.layer] for p in self.parts]
    array = np.stack(parts) if self.stacked else parts[0]
    array = array if self.plus is None else array + arrays[self.plus]
    return array if self.rows is None else _select(array, self.rows, self.axis, name)


def adapt(
  source: Path | GivenParameters,
  model: nn.Module,
  vocabulary: Vocabulary,
  spec: StateSpec,
  fingerprint: Mapping[str, Any],
  options: Restore,
) -> Path | GivenParameters:
  """Returns the source, or parameters made from it for `model`. What does not fit is left to `check_restorable`.

  Args:
    source: a checkpoint of t5like, or parameters in memory.
    model: the model of the run.
    vocabulary: the run's.
    spec: of the run's state.
    fingerprint: of the run's model and vocabulary.
    options: the run's.
  """
  given = isinstance(source, GivenParameters)
  saved = source.fingerprint if given else read_fingerprint(source)
  try:
    stored = source.stored if given else stored_arrays(source / PARAMS)
  except Unreadable:  # check_restorable reports the damage
    return source
  wanted = leaves_by_path(spec.shapes.params)
  same = {k: v.shape for k, v in stored.items()} == {k: v.shape for k, v in wanted.items()}
  has_head = any(path.startswith(_HEAD) for path in wanted)
  if same and not has_head and saved == fingerprint and not options.layers:
    return source
  known = (source.known() if source.known else SourceModel()) if given else _known_about(source)
  plan = _Plan(stored, wanted, saved, fingerprint, known, getattr(model, "head", None), vocabulary, options)
  if same and plan.changes_nothing() and plan.fingerprint == saved:
    return source
  if plan.other_gelu:
    warn(
      f"{source} has the other form of gelu (exact or Google's approximation, less than 0.0005 apart); for its own: "
      f"--gin.TransformerConfig.activation={saved['activation']}"
    )

  def read() -> dict[str, np.ndarray]:
    # load_parameters compares checksums: restore_state does so only for a checkpoint that it reads itself.
    return plan.execute(source.take() if given else flatten(load_parameters(source)))

  return GivenParameters(
    str(source),
    plan.fingerprint,
    None,
    read,
    source.advice if given else "another MODEL_DIR, or the gin files of the checkpoint (its config.gin)",
    stored=plan.stored(),
    uses=plan.uses,
  )


def _known_about(checkpoint: Path) -> SourceModel:
  """Reads the head and the vocabulary of a run from its directory, as far as it has them."""
  folder, head, vocabulary = checkpoint.parent.parent, None, None
  try:
    experiment = load_experiment(folder)
    head = getattr(experiment.model, "head", None)
    _, vocabulary = find_vocabulary(folder, experiment.model.config, None, experiment.vocabulary)
  except UserError:  # a checkpoint on its own, or a configuration that needs the user's modules
    pass
  return SourceModel(head, vocabulary)


def check_same_labels(checkpoint: Path, model: nn.Module) -> None:
  """Raises UserError if a run would continue with other labels, or in another order: its head has another meaning."""
  old, new = _known_about(checkpoint).head, getattr(model, "head", None)
  labels = [getattr(head, "labels", None) for head in (old, new)]
  if all(labels) and tuple(labels[0]) != tuple(labels[1]):
    raise UserError(
      "the labels of the head have changed since this checkpoint",
      checkpoint=checkpoint,
      saved=", ".join(labels[0]),
      now=", ".join(labels[1]),
      try_="another MODEL_DIR, with --gin.INIT_FROM of this one for its backbone",
    )


class _Plan:
  """Chooses the source of every array of the run: arrays of the checkpoint, and how they are converted."""

  def __init__(
    self,
    stored: Shapes,
    wanted: Shapes,
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    known: SourceModel,
    head: nn.Module | None,
    vocabulary: Vocabulary,
    options: Restore,
  ):
    self._stored, self._wanted, self._options = stored, wanted, options
    # A field that is not in a fingerprint has its default value.
    free = _FREE_FIELDS if saved.get("positions") == "relative_bias" else (*_FREE_FIELDS, "prefix_lm")
    self.other_gelu = {saved.get("activation"), current.get("activation")} == {"gelu", "gelu_erf"}
    free = (*free, "activation") if self.other_gelu else free
    kept = {field: value for field, value in saved.items() if field not in free}
    self.fingerprint = kept | {field: current[field] for field in free if field in current}
    self._vocabulary_rows = self._match_vocabularies(saved, current, known.vocabulary, vocabulary)
    self._parts = _parts(stored)
    self._source_layers = _layer_counts(self._parts)
    self._layers = self._choose_layers()
    self.recipes: dict[str, _Recipe] = {}
    self.uses: list[ArrayUse] = []
    self._extra: dict[str, jax.ShapeDtypeStruct] = {}
    with_head = any(path.startswith(_HEAD) for path in wanted)
    takes_head = with_head and _same_head(known.head, head) and _select_head(stored) == _select_head(wanted)
    for path, target in wanted.items():
      # A projection to the states of a teacher of another width is initialized again.
      resized = path.startswith(f"{LEARNED}/") and path in stored and stored[path].shape != target.shape
      if not resized and (not path.startswith(_HEAD) or takes_head):
        self._find(path, target)
      if path not in self.recipes and path.removeprefix(_BACKBONE).startswith((_HEAD, *_BERT_HEADS)):
        self.uses.append(ArrayUse(path, "new", target.shape))
    self._leave_out((_HEAD, *_BERT_HEADS) + (_UNUSED_WITH_HEAD if with_head else ()))
    for stack in ("encoder", "decoder"):  # a head on T5's encoder has no decoder
      if self._layers.get(stack) or (with_head and stack not in self._layers):
        self.fingerprint[f"num_{stack}_layers"] = current.get(f"num_{stack}_layers")

  def needed(self) -> list[str]:
    added = {recipe.plus for recipe in self.recipes.values() if recipe.plus}
    return sorted(added | {part.path for recipe in self.recipes.values() for part in recipe.parts})

  def stored(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the arrays as they will be, and those that do not belong to the model."""
    dtypes = {path: self._stored[recipe.parts[0].path].dtype for path, recipe in self.recipes.items()}
    made = {path: jax.ShapeDtypeStruct(recipe.shape, dtypes[path]) for path, recipe in self.recipes.items()}
    return made | self._extra

  def execute(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {path: recipe.make(path.removeprefix(_BACKBONE), arrays) for path, recipe in self.recipes.items()}

  def changes_nothing(self) -> bool:
    return all(use.status == "taken" and not use.note for use in self.uses) and all(
      not recipe.stacked and recipe.parts[0].path == path and recipe.parts[0].layer is None
      for path, recipe in self.recipes.items()
    )

  def _find(self, path: str, target: jax.ShapeDtypeStruct) -> None:
    """Adds the recipe and the use of an array, if the source has all of its parts."""
    name, note = path.removeprefix(_BACKBONE), ""
    if stacked := STACKED.fullmatch(name):
      stack, have = stacked["stack"], self._source_layers.get(stacked["stack"], 0)
      layers = self._layers.get(stack) or range(target.shape[0])
      found = [self._parts.get(f"{stack}/layers_{i}/{stacked['rest']}") for i in layers]
      if None in found:
        return
      if len(found) == have and [part.layer for part in found] == list(range(have)):  # stacked in the source, too
        recipe = _Recipe((_Part(found[0].path, (have, *found[0].shape)),))
      else:
        recipe = _Recipe(tuple(found), stacked=True)
        note = f"layers {_numbers(layers)} of {have}" if self._layers.get(stack) else ""
      self._add(path, recipe, "resized" if note else "taken", note)
      return
    theirs = self._layer_name(name)
    if theirs not in self._parts:
      return
    delta = name.replace("token_embedder/", _DELTA)
    plus = delta if delta != name and delta in self._stored and delta not in self._wanted else None
    recipe, note = self._with_rows(name, _Recipe((self._parts[theirs],), plus=plus), target)
    moved = "" if theirs == name else f"layer {LAYER.fullmatch(theirs)['index']} of the checkpoint"
    summed = "the discriminator's: the sum of the generator's and a difference" if plus else ""
    self._add(path, recipe, "resized" if note else "taken", note or moved or summed)

  def _add(self, path: str, recipe: _Recipe, status: str, note: str) -> None:
    self.recipes[path] = recipe
    self.uses.append(ArrayUse(path, status, recipe.shape, note))

  def _leave_out(self, heads: tuple[str, ...]) -> None:
    """Sorts the arrays that are not used: heads and upper layers are left out, others are reported as differences."""
    used = set(self.needed())
    for path, array in self._stored.items():
      name = path.removeprefix(_BACKBONE)
      layer = LAYER.fullmatch(name)
      if path in used:
        continue
      if name.startswith(heads) or (layer and self._layers.get(layer["stack"])):
        note = self._unused_layers(layer["stack"]) if layer and not name.startswith(heads) else ""
        self.uses.append(ArrayUse(path, "left out", array.shape, note))
      else:
        self._extra[path] = array

  def _unused_layers(self, stack: str) -> str:
    have = self._source_layers[stack]
    return f"layers {_numbers(i for i in range(have) if i not in self._layers[stack])} of {have}"

  def _layer_name(self, name: str) -> str:
    """Returns the name in the source of a layer's array in the run."""
    match = LAYER.fullmatch(name)
    chosen = self._layers.get(match["stack"]) if match else None
    if not chosen or int(match["index"]) >= len(chosen):
      return name
    return f"{match['stack']}/layers_{chosen[int(match['index'])]}/{match['rest']}"

  def _with_rows(self, name: str, recipe: _Recipe, target: jax.ShapeDtypeStruct) -> tuple[_Recipe, str]:
    if name in _POSITIONS:
      offset = self.fingerprint.get("position_offset", 0)  # the rows before position 0 are kept
      rows, new = recipe.parts[0].shape[0] - offset, target.shape[0] - offset
      if rows == new:
        return recipe, ""
      note = f"{rows:,} -> {new:,} positions, " + ("repeated" if new > rows else "the first ones")
      taken = np.concatenate([np.arange(offset), offset + np.arange(new) % rows])
      return dataclasses.replace(recipe, rows=taken), note
    axis = _VOCABULARY_AXIS.get(name)
    if axis is None or self._vocabulary_rows is None:
      return recipe, ""
    rows, new = recipe.parts[0].shape[axis], target.shape[axis]
    chosen = np.where(np.arange(new) < rows, np.arange(new), -1)  # rows beyond the vocabulary are as good as new ones
    chosen[: len(self._vocabulary_rows)] = self._vocabulary_rows
    if np.array_equal(chosen, np.arange(rows)):
      return recipe, ""
    fresh = int(np.sum(chosen < 0))
    return dataclasses.replace(recipe, rows=chosen, axis=axis), f"{rows:,} -> {new:,} rows, {fresh:,} of them new"

  def _match_vocabularies(
    self, saved: Mapping[str, Any], current: Mapping[str, Any], old: Vocabulary | None, new: Vocabulary
  ) -> np.ndarray | None:
    """Returns for each id of the new vocabulary the id of the same piece in the old one (-1: none).

    None: the vocabularies are unknown, or the old one has pieces that the new one lacks.
    """
    if saved.get("vocabulary") is not None and saved["vocabulary"] == current.get("vocabulary"):
      rows = np.arange(new.vocab_size)
    elif old is None or (rows := _moved_pieces(old, new)) is None:
      return None
    self.fingerprint |= {field: current[field] for field in ("vocabulary", "vocab_size") if field in current}
    return rows

  def _choose_layers(self) -> dict[str, tuple[int, ...]]:
    """Returns the source's layers for each stack of the run; an empty tuple for a stack with all of them."""
    chosen = {}
    for stack, wanted in _layer_counts(_parts(self._wanted)).items():
      have = self._source_layers.get(stack, 0)
      layers = self._options.layers or (tuple(range(wanted)) if wanted < have else ())
      if self._options.layers and (len(layers) != wanted or max(layers) >= have):
        raise UserError(
          f"RESTORE.layers = {list(layers)} does not fit the {stack}",
          expected=f"{wanted} numbers of layers below {have}",
        )
      chosen[stack] = layers
    return chosen


def _parts(stored: Shapes) -> dict[str, _Part]:
  """Returns all arrays by their names in the backbone, those of stacked layers one by one."""
  found = {}
  for path, array in stored.items():
    name = path.removeprefix(_BACKBONE)
    if match := STACKED.fullmatch(name):
      for i in range(array.shape[0]):
        found[f"{match['stack']}/layers_{i}/{match['rest']}"] = _Part(path, tuple(array.shape[1:]), i)
    else:
      found[name] = _Part(path, tuple(array.shape))
  return found


def _layer_counts(parts: Mapping[str, _Part]) -> dict[str, int]:
  counts: dict[str, int] = {}
  for name in parts:
    if match := LAYER.fullmatch(name):
      counts[match["stack"]] = max(counts.get(match["stack"], 0), int(match["index"]) + 1)
  return counts


def _select_head(arrays: Shapes) -> dict[str, tuple[int, ...]]:
  return {path: tuple(array.shape) for path, array in arrays.items() if path.startswith(_HEAD)}


def _same_head(old: nn.Module | None, new: nn.Module | None) -> bool:
  """Whether two heads answer the same question: of one kind, with the same labels in the same order.

  A head without a description counts as the same: its shapes decide.
  """
  if old is None:
    return True
  if type(old) is not type(new):
    return False
  return all(getattr(old, field, None) == getattr(new, field, None) for field in ("labels", "hidden"))


def _moved_pieces(old: Vocabulary, new: Vocabulary) -> np.ndarray | None:
  """Returns the old id of every new piece, or -1; None unless the new vocabulary has all old pieces, or whole words."""
  ids = {old.piece(token): token for token in range(old.vocab_size)}
  pieces = [new.piece(token) for token in range(new.vocab_size)]
  if old.has_whole_words and new.has_whole_words:
    return np.array([ids.get(piece, -1) for piece in pieces])
  if len(ids) < old.vocab_size or len(pieces) < old.vocab_size or not ids.keys() <= set(pieces):
    return None
  return np.array([ids.get(piece, -1) for piece in pieces])


def _select(array: np.ndarray, rows: np.ndarray, axis: int, name: str) -> np.ndarray:
  """Returns rows of a table; new ones are the mean of the old ones with slight noise, the same on every host."""
  chosen = np.take(array, np.maximum(rows, 0), axis=axis)
  if np.any(rows < 0):
    old = np.take(array, rows[rows >= 0], axis=axis).astype(np.float32)
    mean, spread = old.mean(axis=axis, keepdims=True), old.std(axis=axis, keepdims=True)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    shape = list(chosen.shape)
    shape[axis] = int(np.sum(rows < 0))
    at = [slice(None)] * chosen.ndim
    at[axis] = rows < 0
    chosen[tuple(at)] = (mean + _NOISE * spread * rng.standard_normal(shape)).astype(chosen.dtype)
  return chosen


def _numbers(values: Any) -> str:
  values = list(values)
  if values == list(range(values[0], values[0] + len(values))) and len(values) > 2:
    return f"{values[0]}-{values[-1]}"
  return ", ".join(map(str, values))
