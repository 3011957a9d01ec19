"""The gin options that every configured verb shares."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t5like.errors import UserError

if TYPE_CHECKING:  # help and the supervisor must not wait for jax
  from t5like.cli.experiment import Experiment

# Importing these tells gin the names that files may use. None of them imports TensorFlow.
_CONFIGURABLES = (
  "t5like.models.configurables",
  "t5like.objectives.configurables",
  "t5like.parallel.configurables",
  "t5like.training.configurables",
  "t5like.cli.experiment",
)


def add_gin_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("configuration")
  group.add_argument(
    "--gin_file", action="append", default=[], metavar="FILE", help="a gin file; repeat it, later files win"
  )
  group.add_argument(
    "--gin.NAME", dest="_", metavar="VALUE", help="set a macro or parameter, e.g. --gin.BATCH_SIZE=64 (no quotes)"
  )
  group.add_argument(
    "--gin_search_paths", action="append", default=[], metavar="DIR", help="another folder to look for gin files in"
  )


def register_configurables() -> None:
  from absl import logging

  logging.set_verbosity(logging.ERROR)  # Orbax and Grain warn about their own deprecations
  for module in _CONFIGURABLES:
    importlib.import_module(module)


def load_experiment(model_dir: Path, modules: Sequence[str] = ()) -> Experiment:
  """The run that a model directory's config.gin describes.

  The directory may be somebody else's: its configuration is data, and runs no code but that of `modules`, which the
  user named.
  """
  from t5like import configuration
  from t5like.training.model_dir import CONFIG

  config = model_dir / CONFIG
  if not config.is_file():
    raise UserError(
      f"{model_dir} is no model directory", missing=CONFIG, expected="the directory of a run or a conversion"
    )
  register_configurables()
  configuration.load_data(config, modules)
  return configuration.build("train")


def load_configuration(args: argparse.Namespace) -> None:
  """Makes the files and overrides of the command line the current configuration."""
  from t5like import configuration

  register_configurables()
  paths = [p for given in args.gin_search_paths for p in given.split(",") if p]
  configuration.load(args.gin_file, args.gin_overrides, paths)
