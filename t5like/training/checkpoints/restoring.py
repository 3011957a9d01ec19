"""Restores a train state from a checkpoint: of the same structure, but for what the options allow.

Structures are compared by the checkpoint's metadata, before any array is read.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import t5like.training.checkpoints.integrity as integrity
from t5like.errors import UserError
from t5like.parallel.process_zero import run_on_process_zero
from t5like.training.checkpoints.arrays import Unreadable, read_arrays, stored_arrays
from t5like.training.checkpoints.differences import StructureDifference, compare
from t5like.training.checkpoints.folders import (
  PARAMS,
  TRAINING,
  checkpoint_steps,
  fingerprint_differences,
  has_training_state,
  read_description,
)
from t5like.training.checkpoints.given_parameters import GivenParameters
from t5like.training.checkpoints.layer_layouts import Arrays, LayerLayout
from t5like.training.optimizers.rules import check_pattern, leaves_by_path, nearest_paths, path_text
from t5like.training.state import StateSpec, TrainState


@dataclasses.dataclass(frozen=True)
class Restore:
  """Allowed differences between a checkpoint and the run that restores it; none by default.

  The regular expressions match complete paths of variables, such as 'decoder/lora/.*'. With either of them, structures
  are compared variable by variable, and the model's settings may differ; the vocabulary may not.
  """

  parameters_only: bool = False  # fresh optimizer, step 0; narrower floats are widened
  allow_missing: str = ""  # variables that keep their initial value if the checkpoint lacks them
  ignore_extra: str = ""  # variables of the checkpoint that are ignored if the model lacks them
  layers: tuple[int, ...] = ()  # INIT_FROM: the layers to take for each stack, such as (0, 2, 4); (): the lowest

  def __post_init__(self):
    for name in ("allow_missing", "ignore_extra"):
      check_pattern(name, getattr(self, name))
    object.__setattr__(self, "layers", tuple(self.layers or ()))
    if not all(type(layer) is int and layer >= 0 for layer in self.layers):
      raise UserError(f"invalid RESTORE.layers: {list(self.layers)}", expected="numbers of layers, from 0")

  @property
  def lenient(self) -> bool:
    return bool(self.allow_missing or self.ignore_extra)


EXACT = Restore()


@dataclasses.dataclass(frozen=True)
class _ItemMatch:
  """An item of a checkpoint, matched with the state: the arrays to read, and the paths that keep initial values."""

  wanted: Arrays
  missing: frozenset[str]
  layout: LayerLayout


def check_restorable(
  checkpoint: Path | GivenParameters, spec: StateSpec, fingerprint: Mapping[str, Any], options: Restore = EXACT
) -> None:
  """Raises UserError, with every difference, for a checkpoint that does not match. Reads no array."""
  _match_items(checkpoint, spec, fingerprint, options)


def find_episode(checkpoint: Path | GivenParameters, specs: Sequence[StateSpec]) -> int:
  """Returns which of several specs, with different optimizer states, a checkpoint has; 0 if none.

  A run that unfreezes parameters on the way holds optimizer state only for those that have trained.
  """
  if len(specs) == 1 or isinstance(checkpoint, GivenParameters):
    return 0
  stored = _stored(checkpoint, TRAINING)
  wanted = [array_targets(training_part(spec.shapes), training_part(spec.shardings)) for spec in specs]
  fits = (not compare(LayerLayout.of(stored, target).stored, target) for target in wanted)
  return next((number for number, fit in enumerate(fits) if fit), 0)


def restore_state(
  checkpoint: Path | GivenParameters,
  spec: StateSpec,
  fingerprint: Mapping[str, Any],
  options: Restore = EXACT,
  fresh: Callable[[], TrainState] | None = None,
  verified: bool = False,
) -> TrainState:
  """Returns the checkpoint's state with the shardings of `spec`. Must be called by all processes.

  `fresh` returns an initial state, for a fresh optimizer or missing variables. `verified` skips the checksums, which
  were compared just now.
  """
  if not verified and not isinstance(checkpoint, GivenParameters) and integrity.has_checksums(checkpoint):
    run_on_process_zero(lambda: _check_damage(checkpoint))
  items = _match_items(checkpoint, spec, fingerprint, options)
  read = {
    name: item.layout.read(item.wanted, functools.partial(_read_stored, checkpoint, name))
    for name, item in items.items()
  }
  initial = None
  if TRAINING not in items or any(item.missing for item in items.values()):
    if fresh is None:
      raise UserError("this checkpoint has only a part of the state", checkpoint=checkpoint)
    initial = fresh()
  params = _assemble(spec.shapes.params, read[PARAMS], initial.params if initial else None)
  if TRAINING not in items:
    return initial.replace(params=params)
  training = _assemble(training_part(spec.shapes), read[TRAINING], training_part(initial) if initial else None)
  return TrainState(params=params, **training)


def optimizer_kind(opt_state: Any) -> str:
  """Returns the types in an optimizer state: 'ScaleByAdamState, ScaleByScheduleState'."""
  kinds: list[str] = []

  def visit(node: Any) -> bool:
    name = type(node).__name__
    if hasattr(node, "_fields") and jax.tree.leaves(node) and name not in kinds:
      kinds.append(name)
    return False

  jax.tree.leaves(opt_state, is_leaf=visit)
  return ", ".join(kinds)


def _match_items(
  checkpoint: Path | GivenParameters, spec: StateSpec, fingerprint: Mapping[str, Any], options: Restore
) -> dict[str, _ItemMatch]:
  given = isinstance(checkpoint, GivenParameters)
  saved = {"fingerprint": checkpoint.fingerprint} if given else read_description(checkpoint)
  fields = fingerprint_differences(saved["fingerprint"], fingerprint)
  fields = [line for line in fields if line.split()[0] != "scan_layers"]  # layers are converted
  if options.lenient:
    fields = [line for line in fields if line.split()[0] == "vocabulary"]
  targets = {PARAMS: array_targets(spec.shapes.params, spec.shardings.params)}
  with_training = not given and has_training_state(checkpoint) and not options.parameters_only
  if with_training:
    targets[TRAINING] = array_targets(training_part(spec.shapes), training_part(spec.shardings))
  items, differences, fresh_variables = {}, {}, set()
  for name, target in targets.items():
    stored = checkpoint.stored if given else _stored(checkpoint, name)
    layout = LayerLayout.of(stored, target)
    difference = compare(layout.stored, target, widen=not with_training)
    missing, extra = _allowed(name, difference, options, fresh_variables)
    missing |= checkpoint.new & set(difference.missing) if given else set()
    if name == PARAMS:
      _check_patterns_match(options, difference.without(checkpoint.new if given else (), ()))
      fresh_variables |= missing | extra
    differences[name] = difference.without(missing, extra)
    wanted = {path: target[path] for path in target if path in layout.stored}
    items[name] = _ItemMatch(wanted, frozenset(missing), layout)
  if fields or any(differences.values()):
    raise _mismatch_error(checkpoint, fields, differences, saved, spec)
  return items


def _allowed(
  name: str, difference: StructureDifference, options: Restore, fresh: set[str]
) -> tuple[set[str], set[str]]:
  """Returns the missing and the extra variables that the options allow, with their optimizer state."""
  if name == PARAMS:
    return (
      {path for path in difference.missing if re.fullmatch(options.allow_missing, path)},
      {path for path in difference.unexpected if re.fullmatch(options.ignore_extra, path)},
    )
  ends = tuple(f"/{path}" for path in fresh)
  return (
    {path for path in difference.missing if ends and path.endswith(ends)},
    {path for path in difference.unexpected if ends and path.endswith(ends)},
  )


def _check_patterns_match(options: Restore, difference: StructureDifference) -> None:
  """Raises UserError for an expression that matches none of the differing variables: probably a typo."""
  for name, pattern, paths in (
    ("allow_missing", options.allow_missing, difference.missing),
    ("ignore_extra", options.ignore_extra, difference.unexpected),
  ):
    if pattern and paths and not any(re.fullmatch(pattern, path) for path in paths):
      raise UserError(
        f"{name} = {pattern!r} matches none of the variables that differ",
        nearest=nearest_paths(pattern, list(paths)),
        hint="it must match the complete path",
      )


def _mismatch_error(
  checkpoint: Path | GivenParameters,
  fields: list[str],
  differences: dict[str, StructureDifference],
  saved: dict[str, Any],
  spec: StateSpec,
) -> UserError:
  training = differences.get(TRAINING)
  kinds = saved.get("optimizer", ""), optimizer_kind(spec.shapes.opt_state)
  other_optimizer = bool(training) and bool(kinds[0]) and kinds[0] != kinds[1]
  # Another model has another optimizer state as well: the parameters are enough.
  show_training = training and not differences[PARAMS] and not other_optimizer
  lines = differences[PARAMS].lines() | (training.lines() if show_training else {})
  settings = "" if any(differences.values()) else _settings(fields, saved["fingerprint"])
  if isinstance(checkpoint, GivenParameters):
    return UserError(
      f"{checkpoint} does not match the configuration's model or vocabulary",
      differs="\n".join(fields),
      **lines,
      try_=settings or checkpoint.advice,
    )
  if fields or differences[PARAMS]:
    other = "model or vocabulary"
    advice = settings or "another MODEL_DIR, or the gin files of the checkpoint (its config.gin)"
  else:
    other = "optimizer or selection of trained parameters"
    advice = f"another MODEL_DIR with --gin.INIT_FROM={checkpoint}: a fresh optimizer at step 0"
  return UserError(
    f"this checkpoint belongs to another {other}",
    checkpoint=checkpoint,
    differs="\n".join(fields),
    **lines,
    optimizer=f"saved {kinds[0]}\nnow   {kinds[1]}" if other_optimizer else "",
    try_=advice,
  )


def _settings(fields: list[str], saved: Mapping[str, Any]) -> str:
  """Returns the options for the model of a checkpoint whose arrays fit; '' if the vocabulary is another one."""
  names = [line.split()[0] for line in fields]
  return (
    "" if "vocabulary" in names else " ".join(f"--gin.TransformerConfig.{name}={saved.get(name)}" for name in names)
  )


def _check_damage(checkpoint: Path) -> None:
  if damage := integrity.verify_checksums(checkpoint):
    raise damaged_error(checkpoint, damage)


def damaged_error(checkpoint: Path, damage: str) -> UserError:
  steps = [str(step) for step in checkpoint_steps(checkpoint.parents[1]) if str(step) != checkpoint.name]
  return UserError(
    "the checkpoint cannot be read: it is damaged",
    checkpoint=checkpoint,
    because=damage,
    other_steps=", ".join(steps),
    try_="a checkpoint of another step, or a backup",
  )


def _stored(checkpoint: Path, name: str) -> Arrays:
  try:
    return stored_arrays(checkpoint / name)
  except Unreadable as error:
    raise damaged_error(checkpoint, f"its {name} cannot be read: {error}") from error


def _read_stored(checkpoint: Path | GivenParameters, name: str, wanted: Arrays) -> dict[str, Any]:
  if isinstance(checkpoint, GivenParameters):
    return checkpoint.place(wanted)
  if integrity.has_checksums(checkpoint):
    return read_arrays(checkpoint / name, wanted)  # the files are intact: errors have another cause
  try:
    return read_arrays(checkpoint / name, wanted)
  except Unreadable as error:
    raise damaged_error(checkpoint, f"its {name} cannot be read: {error}") from error


def training_part(state: TrainState) -> dict[str, Any]:
  """Returns the state without parameters, as it is saved."""
  part = {"step": state.step, "opt_state": state.opt_state, "seed": state.seed}
  return part if state.carry is None else part | {"carry": state.carry}


def array_targets(shapes: Any, shardings: Any) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns shape, dtype and sharding of each array, by path."""
  arrays, leaf_shardings = leaves_by_path(shapes), jax.tree.leaves(shardings)
  return {
    path: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    for (path, array), sharding in zip(arrays.items(), leaf_shardings, strict=True)
  }


def _assemble(shapes: Any, arrays: Mapping[str, jax.Array], initial: Any) -> Any:
  """Returns a tree like `shapes` of the arrays that were read, with the rest from `initial`."""
  rest = {} if initial is None else leaves_by_path(initial)

  def choose(path: tuple, shape: Any) -> jax.Array:
    name = path_text(path)
    array = arrays[name] if name in arrays else rest[name]
    assert array.shape == shape.shape and array.dtype == jnp.dtype(shape.dtype), name
    return array

  return jax.tree.map_with_path(choose, shapes)
