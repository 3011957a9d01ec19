"""Reads experiments from gin files."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from t5like.errors import UserError
from t5like.experiments.examples import count_rows

if TYPE_CHECKING:  # help and the supervisor must not wait for jax
  from t5like.experiments.experiment import Experiment

# Importing these registers names with gin. None of them imports TensorFlow.
_CONFIGURABLES = (
  "t5like.models.configurables",
  "t5like.objectives.configurables",
  "t5like.parallel.configurables",
  "t5like.training.configurables",
  "t5like.experiments.configurables",
  "t5like.finetuning.configurables",
  "t5like.experiments.experiment",
)


_GIN = threading.RLock()  # gin has one configuration per process


def _in_turn(function: Callable) -> Callable:
  """Lets one thread at a time call functions that read gin files: a server may load a model in each."""

  @functools.wraps(function)
  def locked(*args: Any, **kwargs: Any) -> Any:
    with _GIN:
      return function(*args, **kwargs)

  return locked


@_in_turn
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
  overrides = [*overrides, *_counted_examples(files, overrides, search_paths)]
  configuration.load(files, overrides, search_paths)
  return configuration.resolved_config()


def _counted_examples(
  files: Sequence[str], overrides: Sequence[tuple[str, str]], search_paths: Sequence[str]
) -> list[tuple[str, str]]:
  """Returns EXAMPLES, the number of own rows for training, if the files need it and nothing sets it."""
  from t5like import configuration

  given = {name for name, _ in overrides}
  if "CORPUS_FILES" not in given or "EXAMPLES" in given:
    return []
  needed = configuration.read_parameters("steps_of_epochs", files, overrides, search_paths).get("examples")
  corpus_files = configuration.read_parameters("train", files, overrides, search_paths).get("corpus_files")
  count = count_rows(corpus_files) if isinstance(needed, configuration.MacroReference) else None
  return [("EXAMPLES", str(count))] if count else []


def build_experiment() -> Experiment:
  """Builds the experiment from the files that were loaded last, with their text; it does not depend on gin."""
  from t5like import configuration

  experiment = configuration.build("train")
  object.__setattr__(experiment, "config_text", configuration.operative_config())
  return experiment


@_in_turn
def read_experiment(
  files: str | Sequence[str],
  overrides: Sequence[tuple[str, str]] = (),
  search_paths: Sequence[str] = (),
  **settings: Any,
) -> Experiment:
  """Reads a training run from gin files.

  Args:
    files: a gin file or several, from t5like's gin folder (`models/t5/tiny.gin`) or your own; later ones win.
    overrides: pairs of a name and its value as gin text, as in `--gin.NAME=VALUE` on the command line.
    search_paths: additional folders to search for files.
    **settings: macros and parameters by name, with Python values: `TRAIN_STEPS=50`, `**{"MESH.fsdp": 8}`; paths as text
      or Path, numbers also of numpy; references as in gin: `TRAINABLE="@HeadOnly()"`.

  Returns:
    The experiment with its complete gin text, independent of other experiments in this process.

  Raises:
    UserError: a file, a name or a value is invalid, or a required one is missing.
  """
  settings = _plain_values(settings)
  for name, value in settings.items():
    if not is_literal(value):
      raise UserError(
        f"invalid {name}: {value!r}",
        expected="a number, string, list, dict or reference, as in a gin file",
        try_=f'{name}="@NAME()", or dataclasses.replace(experiment, ...) with an object',
      )
  given = [(name, value if _is_reference(value) else repr(value)) for name, value in settings.items()]
  listed = [files] if isinstance(files, str | os.PathLike) else files
  if not isinstance(listed, list | tuple) or not all(isinstance(file, str | os.PathLike) for file in listed):
    raise UserError(f"invalid files: {files!r}", expected="a gin file, or a list of them")
  for pair in overrides:
    if not isinstance(pair, list | tuple) or [*map(type, pair)] != [str, str]:
      raise UserError(f"invalid overrides: {pair!r}", expected="pairs of texts", try_="keywords: EPOCHS=2")
  load_files([os.fspath(file) for file in listed], [*overrides, *given], search_paths)
  return build_experiment()


def _plain_values(value: Any) -> Any:
  """Returns settings with paths as text and numbers of numpy as Python's."""
  if isinstance(value, dict):
    return {name: _plain_values(each) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return type(value)(_plain_values(each) for each in value)
  if isinstance(value, np.generic):
    return value.item()
  return os.fspath(value) if isinstance(value, os.PathLike) else value


def _is_reference(value: Any) -> bool:
  return isinstance(value, str) and re.fullmatch(r"[@%][A-Za-z_][\w./]*(\(\))?", value) is not None


def is_literal(value: Any) -> bool:
  """Returns whether the value's repr is valid gin text."""
  try:
    return ast.literal_eval(repr(value)) == value
  except (ValueError, SyntaxError):
    return False


@_in_turn
def read_configurable(
  name: str, files: Sequence[str], overrides: Sequence[tuple[str, str]] = (), search_paths: Sequence[str] = ()
) -> Any:
  """Reads a configurable other than `train` from gin files, such as the `scale` of a sweep."""
  from t5like import configuration

  load_files(files, overrides, search_paths)
  return configuration.build(name)


def read_model(
  files: Sequence[str], overrides: Sequence[tuple[str, str]] = (), search_paths: Sequence[str] = ()
) -> Experiment:
  """Like `read_experiment`, but the files need not set MODEL_DIR and TASK."""
  given = {name for name, _ in overrides}
  unused = [("MODEL_DIR", "unused"), ("TASK", "''"), ("INIT_FROM", "None")]
  return read_experiment(files, [*(pair for pair in unused if pair[0] not in given), *overrides], search_paths)


@_in_turn
def load_experiment(model_dir: Path, modules: Sequence[str] = ()) -> Experiment:
  """Loads the experiment from a model directory's config.gin.

  The directory may be untrusted: its configuration is treated as data and runs no code except `modules`, which the
  user named.
  """
  from t5like import configuration
  from t5like.training.records.model_dir import CONFIG

  config = model_dir / CONFIG
  if not config.is_file():
    raise UserError(
      f"{model_dir} is not a model directory", missing=CONFIG, expected="the directory of a run or a conversion"
    )
  register_configurables()
  configuration.load_data(config, modules)
  try:
    return build_experiment()
  except configuration.NotConfigured as error:
    raise UserError("the configuration of a model directory is incomplete", file=config, because=error.what) from None
