"""Finds the parameters of INIT_FROM: a t5like or T5X checkpoint, or a Hugging Face folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import flax.linen as nn
import numpy as np

from t5like.errors import UserError
from t5like.experiments.compatibility import model_fingerprint
from t5like.files import storage
from t5like.interop import huggingface, t5x
from t5like.interop.awd_lstm_files import awd_lstm_file, load_awd_lstm
from t5like.interop.elmo_files import is_elmo_folder, load_elmo
from t5like.interop.layouts import flatten
from t5like.models import T5
from t5like.training.checkpoints.folders import PARAMS, checkpoint_steps, find_checkpoint
from t5like.training.checkpoints.given_parameters import GivenParameters, SourceModel
from t5like.vocabularies import load_vocabulary, vocabulary_in

_HUGGING_FACE = ("config.json", "bert_config.json", "modules.json")


def foreign_kind(source: str | Path) -> str | None:
  """Returns 'T5X checkpoint', 'Hugging Face folder', 'ELMo folder' or 'AWD-LSTM file' for one of these, else None."""
  path = storage.as_path(source).absolute()
  if (path / PARAMS).is_dir() or checkpoint_steps(path):
    return None
  if any((path / file).is_file() for file in _HUGGING_FACE):
    return "Hugging Face folder"
  if is_elmo_folder(path):
    return "ELMo folder"
  if awd_lstm_file(path) is not None:
    return "AWD-LSTM file"
  if path.is_file() or (path / "checkpoint").is_file():
    return "T5X checkpoint"
  inside = path.iterdir() if path.is_dir() else []
  return "T5X checkpoint" if any(entry.name.startswith("checkpoint_") for entry in inside) else None


def find_parameters(source: str, model: nn.Module) -> Path | GivenParameters:
  """Returns the checkpoint in `source`, or the parameters of another library, checked against `model`."""
  kind = foreign_kind(source)
  if kind is None:
    try:
      return find_checkpoint(source)
    except UserError as error:
      lines = error.lines | {"expected": f"{error.lines['expected']}; a T5X checkpoint; or a Hugging Face folder"}
      raise UserError(error.what, **lines) from None
  local = storage.local_tree(storage.as_path(source).absolute())
  config, backbone = model.config, getattr(model, "backbone", model)

  def read() -> tuple[nn.Module, Mapping[str, np.ndarray]]:
    if kind == "ELMo folder":
      # The words of a model without output are not part of it.
      words = {} if getattr(config, "has_output", True) else {"vocab_size": config.vocab_size}
      theirs, params = load_elmo(local, **words)
    elif kind == "AWD-LSTM file":
      theirs, params = load_awd_lstm(local)
    else:
      is_t5x = kind == "T5X checkpoint"
      imported = t5x.load(local, config) if is_t5x else huggingface.load(local, scan_layers=config.scan_layers)
      theirs, params = imported.model, imported.params
    return theirs, flatten(params)

  if kind == "T5X checkpoint":
    _check_kind(T5, backbone, f"the {kind} {source}")
  theirs, arrays = read()
  _check_kind(type(getattr(theirs, "backbone", theirs)), backbone, f"the {kind} {source}")
  vocabulary_file = vocabulary_in(local.parent if local.is_file() else local)
  vocabulary = load_vocabulary(str(vocabulary_file)) if vocabulary_file else None
  stored_config = dataclasses.replace(theirs.config, param_dtype=config.param_dtype)  # narrower floats are widened
  return GivenParameters(
    f"the {kind} {source}",
    model_fingerprint(stored_config, vocabulary),
    arrays,
    lambda: read()[1],
    "the gin files of that model: a file of gin/models, "
    + (f"--gin.VOCABULARY={vocabulary_file}, " if vocabulary else "")
    + f"or `t5like convert from_{'t5x' if kind.startswith('T5X') else 'hf'}`, which writes a config.gin",
    known=lambda: SourceModel(getattr(theirs, "head", None), vocabulary),
  )


def refuse_foreign(source: str) -> None:
  """Raises UserError for a foreign RESTORE_FROM, which has no optimizer state of t5like."""
  if kind := foreign_kind(source):
    raise UserError(
      f"RESTORE_FROM must be a t5like checkpoint with optimizer and step, but {source} is a {kind}",
      try_=f"--gin.INIT_FROM={source} --gin.RESTORE_FROM=None: its parameters, with a fresh optimizer",
    )


def _check_kind(kind: type, model: nn.Module, source: str) -> None:
  if type(model) is not kind:
    raise UserError(
      f"{source} is a {kind.__name__}, but the model is a {type(model).__name__}",
      try_="--gin_file=models/... of the checkpoint's model family",
    )
