"""The base of a model that was tuned by a method such as LoRA, whose checkpoints hold only what was trained."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from t5like.errors import UserError
from t5like.files import storage
from t5like.finetuning import read_variables
from t5like.finetuning.methods import Method, parameter_digest
from t5like.inference.parameters.adapting import adapt
from t5like.inference.parameters.finding import find_parameters
from t5like.interop.layouts import flatten, unflatten
from t5like.models.shapes import boxed_shapes
from t5like.models.stepping import cast_weights
from t5like.training.checkpoints import Restore, check_restorable, load_parameters, read_fingerprint
from t5like.training.checkpoints.given_parameters import ArrayUse, GivenParameters
from t5like.training.optimizers.rules import leaves_by_path, path_text
from t5like.training.optimizers.selection import Selection
from t5like.training.state import StateSpec, TrainState
from t5like.vocabularies import Vocabulary

BASE_FILE = "base.json"


@dataclasses.dataclass(frozen=True)
class TunedBase:
  """The parameters of a base for a tuned model, and their identity.

  digest      of the values
  parameters  arrays of the base as the tuned model stores them, and initial values that the method takes from them
  """

  digest: str
  parameters: GivenParameters


def read_base(
  source: str | Path | GivenParameters,
  model: nn.Module,
  method: Method,
  vocabulary: Vocabulary,
  fingerprint: Mapping[str, Any],
  options: Restore | None = None,
  cast: bool = True,
) -> TunedBase:
  """Reads the base of a run; raises UserError for one that does not fit.

  Args:
    source: a model directory, a checkpoint, a folder of another library, or parameters in memory.
    model: the plain model of the run, with its head.
    method: that tunes it.
    vocabulary: the run's.
    fingerprint: of the plain model and the vocabulary.
    options: the run's.
    cast: whether frozen weights are stored in the dtype of computations.
  """
  found = source if isinstance(source, GivenParameters) else find_parameters(str(source), model)
  _refuse_tuned(found)
  spec, options = _plain_spec(model), dataclasses.replace(options or Restore(), parameters_only=True)
  adapted = adapt(found, model, vocabulary, spec, fingerprint, options)
  check_restorable(adapted, spec, fingerprint, options)

  def read() -> dict[str, np.ndarray]:
    given = isinstance(adapted, GivenParameters)
    return dict(adapted.take() if given else flatten(load_parameters(adapted)))

  shapes = nn.unbox(boxed_shapes(method.tune(model)))
  selection = method.episodes(read_variables(shapes), 1)[0].selection

  def tuned(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    stored = method.converted(arrays)
    if cast:
      stored = flatten(store_frozen(unflatten(stored), selection, model.config.dtype))
    return dict(stored) | dict(method.initial(arrays, model, vocabulary))

  known = flatten(spec.shapes.params)
  arrays = {path: array for path, array in read().items() if path in known}
  held = tuned(arrays)
  new = {path: leaf for path, leaf in flatten(shapes).items() if path not in held}
  _check_new(new, selection, type(method).__name__)
  uses = [ArrayUse(path, "new", leaf.shape) for path, leaf in new.items()]
  uses += [use for use in getattr(adapted, "uses", None) or () if use.path not in {f.path for f in uses}]
  advice = "the gin files of that model; see its config.gin"
  parameters = GivenParameters(str(adapted), fingerprint, held, lambda: tuned(read()), advice, uses=uses)
  return TunedBase(parameter_digest(arrays), parameters)


def _plain_spec(model: nn.Module) -> StateSpec:
  """Returns the spec of a model's parameters on one device, to compare them with those of a checkpoint."""
  shapes = nn.unbox(boxed_shapes(model))
  sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  states = (TrainState((), params, (), ()) for params in (shapes, jax.tree.map(lambda _: sharding, shapes)))
  return StateSpec(*states)


def store_frozen(params: Any, selection: Selection, dtype: Any) -> Any:
  """Casts the frozen weights of nested parameters to the dtype of computations: less memory, the same results."""
  cast = leaves_by_path(cast_weights(params, dtype))
  choose = lambda path, x: x if path_text(path) in selection else cast[path_text(path)]  # noqa: E731
  return jax.tree.map_with_path(choose, params)


def write_base(model_dir: Path, source: str, digest: str) -> None:
  """Records the base of a run in its directory."""
  path = source if storage.is_remote(source) else str(storage.as_path(source).absolute())
  storage.write_atomic(model_dir / BASE_FILE, json.dumps({"base": path, "digest": digest}, indent=1) + "\n")


def find_base(model_dir: Path, given: str | Path | None, configured: str | None) -> str:
  """Returns the path of a run's base: the given one, else the recorded one, else INIT_FROM."""
  try:
    recorded = storage.read_json(model_dir / BASE_FILE)["base"]
  except (OSError, ValueError, KeyError, TypeError):
    recorded = configured
  path = str(given or recorded or "")
  if not path or not (storage.is_remote(path) or storage.as_path(path).exists()):
    raise UserError(
      f"the base of {model_dir} is not at {path}" if path else f"the base of {model_dir} is unknown",
      because="its checkpoints hold only what was trained",
      try_="--base=FOLDER, or base=... in Python",
    )
  return path


def _check_new(new: Mapping[str, Any], selection: Selection, method: str) -> None:
  """Raises UserError for variables that the base lacks and that would be frozen at random values."""
  if frozen := sorted(path for path in new if path not in selection):
    raise UserError(
      f"the base has no {', '.join(frozen)}, which {method} would freeze at random values",
      try_=f'--gin.{method}.also="{frozen}", or another base',
    )


def _refuse_tuned(found: Path | GivenParameters) -> None:
  if isinstance(found, Path) and "base" in read_fingerprint(found):
    raise UserError(
      f"{found} holds only what was trained on another base",
      try_="merge it into a plain model first: t5like convert merge SOURCE FOLDER",
    )
