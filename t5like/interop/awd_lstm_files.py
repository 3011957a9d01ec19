"""Reads and writes the weights of AWD-LSTM with fastai's names: safetensors, or a state dict of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5like.errors import UserError
from t5like.interop.layouts import check_parameters, flatten, unflatten
from t5like.interop.mapping import Rule, check_complete, export_tensors, import_tensors
from t5like.interop.tensor_folders import SINGLE_FILE, Tensors, write
from t5like.models.recurrent import AWDLSTM, AWDLSTMConfig

_ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
_LAYER = re.compile(r"0\.rnns\.(\d+)\.")
# In training mode, fastai also stores the recurrent weights after dropout.
_IGNORED = re.compile(r"0\.rnns\.\d+\.module\.weight_hh_l0")


def awd_lstm_file(path: Path) -> Path | None:
  """Returns the file of an AWD-LSTM: the given one, or the only weights of a folder without config.json; else None."""
  if path.is_file():
    return path if path.suffix in _ENDINGS else None
  if not path.is_dir() or (path / "config.json").is_file():
    return None
  found = sorted(file for file in path.iterdir() if file.suffix in _ENDINGS)
  return found[0] if len(found) == 1 else None


def is_awd_lstm(path: Path) -> bool:
  """Whether a file, or the only weights of a folder, have the names of an AWD-LSTM."""
  file = awd_lstm_file(path)
  return file is not None and any(map(_LAYER.match, Tensors(file, [file]).names()))


def load_awd_lstm(path: Path | str, **changes: Any) -> tuple[AWDLSTM, dict]:
  """Returns the model of a file, or of the only weights in a folder, and its parameters as nested numpy arrays.

  Sizes are those of the tensors. `changes` are other fields of AWDLSTMConfig. The words are not part of the file:
  fastai stores them as a pickle, `itos.pkl`; the VOCABULARY is the same list as JSON or text.
  """
  path = Path(path).expanduser()
  file = awd_lstm_file(path)
  if file is None:
    raise UserError(f"no weights of an AWD-LSTM in {path}", expected=f"one file with the ending {', '.join(_ENDINGS)}")
  tensors = Tensors(file, [file])
  config = _config(tensors, file, changes)
  names = [name for name in tensors.names() if not _IGNORED.fullmatch(name)]
  params, report = import_tensors(_rules(config), names, tensors.read, str(file))
  check_complete(report, str(file))
  model = AWDLSTM(config)
  check_parameters(model, params, str(file))
  return model, unflatten(params)


def save_awd_lstm(folder: Path | str, model: AWDLSTM, params: Mapping) -> None:
  """Writes model.safetensors with fastai's names, its tied copies included."""
  tensors = export_tensors(_rules(model.config), flatten(params))
  for rule in _rules(model.config):
    tensors |= {copy: tensors[rule.theirs].copy() for copy in rule.copies}
  write(Path(folder), tensors)


def _config(tensors: Tensors, file: Path, changes: Mapping[str, Any]) -> AWDLSTMConfig:
  layers = {int(match[1]) for name in tensors.names() if (match := _LAYER.match(name))}
  needed = ["0.encoder.weight", *(f"0.rnns.{layer}.weight_hh_l0_raw" for layer in layers)]
  if not layers or (missing := [name for name in needed if name not in tensors.names()]):
    raise UserError(
      f"{file} is not an AWD-LSTM of fastai",
      missing=", ".join(missing) if layers else "0.rnns.0.weight_hh_l0_raw",
      found=", ".join(tensors.names()[:4]),
      expected=f"{SINGLE_FILE} or a .pth file with 0.encoder.weight, 0.rnns.0.weight_hh_l0_raw, ..., 1.decoder.bias",
    )
  table = tensors.read("0.encoder.weight")
  hidden = tensors.read("0.rnns.0.weight_hh_l0_raw").shape[1]
  sizes = dict(
    vocab_size=table.shape[0], embed_dim=table.shape[1], hidden_dim=hidden, num_layers=len(layers),
    param_dtype=str(table.dtype),
  )  # fmt: skip
  return AWDLSTMConfig(**sizes | dict(changes))


def _rules(config: AWDLSTMConfig) -> list[Rule]:
  rules = [
    Rule("0.encoder.weight", ("token_embedder/embedding",), copies=("0.encoder_dp.emb.weight", "1.decoder.weight")),
    Rule("1.decoder.bias", ("output_bias",)),
  ]
  for layer in range(config.num_layers):
    theirs, ours = f"0.rnns.{layer}", f"decoder/layers_{layer}"
    rules += [
      Rule(f"{theirs}.weight_hh_l0_raw", (f"{ours}/recurrent_kernel",), transpose=True),
      Rule(f"{theirs}.module.weight_ih_l0", (f"{ours}/input/kernel",), transpose=True),
      Rule(f"{theirs}.module.bias_ih_l0", (f"{ours}/input/bias",)),
      Rule(f"{theirs}.module.bias_hh_l0", (f"{ours}/recurrent_bias",)),
    ]
  return rules
