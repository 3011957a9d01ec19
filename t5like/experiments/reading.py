"""From gin files to an Experiment."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5like.errors import UserError

if TYPE_CHECKING:  # help and the supervisor must not wait for jax
  from t5like.experiments.experiment import Experiment

# Importing these tells gin the names that files may use. None of them imports TensorFlow.
_CONFIGURABLES = (
  "t5like.models.configurables",
  "t5like.objectives.configurables",
  "t5like.parallel.configurables",
  "t5like.training.configurables",
  "t5like.experiments.experiment",
)


def register_configurables() -> None:
  from absl import logging

  logging.set_verbosity(logging.ERROR)  # Orbax and Grain warn about their own deprecations
  for module in _CONFIGURABLES:
    importlib.import_module(module)


def load_files(
  files: Sequence[str], overrides: Sequence[tuple[str, str]] = (), search_paths: Sequence[str] = ()
) -> str:
  """Reads and checks gin files without building anything; returns all bindings as text, the same on every host."""
  from t5like import configuration

  register_configurables()
  configuration.load(files, overrides, search_paths)
  return configuration.resolved_config()


def build_experiment() -> Experiment:
  """The run of the files that were loaded last. It carries their text, and has no need of gin any more."""
  from t5like import configuration

  experiment = configuration.build("train")
  object.__setattr__(experiment, "config_text", configuration.operative_config())
  return experiment


def read_experiment(
  files: Sequence[str],
  overrides: Sequence[tuple[str, str]] = (),
  search_paths: Sequence[str] = (),
  **settings: Any,
) -> Experiment:
  """Reads a training run from gin files.

  Args:
    files: gin files, of t5like's own gin folder (`models/t5/tiny.gin`) or yours; later ones win.
    overrides: pairs of a name and its value as gin text, as `--gin.NAME=VALUE` of the command line has them.
    search_paths: other folders to look for files in.
    **settings: macros and parameters by name, with Python values: `TRAIN_STEPS=50`, `**{"MESH.fsdp": 8}`.

  Returns:
    The experiment, which carries its own complete text: other experiments of this process do not change it.

  Raises:
    UserError: a file, a name or a value is wrong, or something required is missing.
  """
  for name, value in settings.items():
    if not is_literal(value):
      raise UserError(f"{name} = {value!r} is no value of a gin file", expected="numbers, texts, lists, dicts of them")
  load_files(files, [*overrides, *((name, repr(value)) for name, value in settings.items())], search_paths)
  return build_experiment()


def is_literal(value: Any) -> bool:
  """Whether gin text can hold the value as Python writes it."""
  try:
    return ast.literal_eval(repr(value)) == value
  except (ValueError, SyntaxError):
    return False


def read_configurable(
  name: str, files: Sequence[str], overrides: Sequence[tuple[str, str]] = (), search_paths: Sequence[str] = ()
) -> Any:
  """What gin files configure under another name than `train`, such as the `scale` of a sweep."""
  from t5like import configuration

  load_files(files, overrides, search_paths)
  return configuration.build(name)


def read_model(
  files: Sequence[str], overrides: Sequence[tuple[str, str]] = (), search_paths: Sequence[str] = ()
) -> Experiment:
  """As `read_experiment`, of files that need not say where to write and what to train on."""
  given = {name for name, _ in overrides}
  unused = [("MODEL_DIR", "unused"), ("TASK", "''"), ("INIT_FROM", "None")]
  return read_experiment(files, [*(pair for pair in unused if pair[0] not in given), *overrides], search_paths)


def load_experiment(model_dir: Path, modules: Sequence[str] = ()) -> Experiment:
  """The run that a model directory's config.gin describes.

  The directory may be somebody else's: its configuration is data, and runs no code but that of `modules`, which the
  user named.
  """
  from t5like import configuration
  from t5like.training.records.model_dir import CONFIG

  config = model_dir / CONFIG
  if not config.is_file():
    raise UserError(
      f"{model_dir} is no model directory", missing=CONFIG, expected="the directory of a run or a conversion"
    )
  register_configurables()
  configuration.load_data(config, modules)
  return build_experiment()
