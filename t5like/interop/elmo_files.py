"""Reads ELMo's published files: options.json and weights in HDF5, as bilm-tf and AllenNLP write them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5like.errors import UserError
from t5like.interop.layouts import check_parameters, unflatten
from t5like.interop.tensor_folders import read_json
from t5like.models.recurrent import ELMo, ELMoConfig
from t5like.vocabularies.characters import spell_sentences

OPTIONS = "options.json"
_SUFFIXES = (".hdf5", ".h5")
_GATES = (0, 2, 1, 3)  # TensorFlow stores input, cell, forget, output; ours are input, forget, cell, output


def elmo_folder(path: Path) -> Path | None:
  """Returns the folder of ELMo's files, given it or its weights; None: it is not one."""
  folder = path.parent if path.is_file() and path.suffix in _SUFFIXES else path
  return folder if is_elmo_folder(folder) else None


def is_elmo_folder(folder: Path) -> bool:
  return _options_in(folder) is not None


def load_elmo(folder: Path | str, **changes: Any) -> tuple[ELMo, dict]:
  """Returns the model of a folder with *options.json and *weights.hdf5, and its parameters as nested numpy arrays.

  `changes` are fields of ELMoConfig, such as compute_dtype. Needs h5py.
  """
  folder = Path(folder).expanduser()
  options = _options_in(folder)
  if options is None:
    raise UserError(f"no {OPTIONS} in {folder}", expected="a folder of ELMo: options.json and weights.hdf5")
  with _opened(elmo_weights(folder)) as file:
    has_output = "softmax" in file
    vocab_size = file["softmax/W"].shape[0] if has_output else 1
    model = ELMo(_config(read_json(options), vocab_size, has_output, options, changes))
    params = _parameters(model.config, file)
  check_parameters(model, params, str(folder))
  return model, unflatten(params)


@functools.partial(jax.jit, static_argnums=0)
def _layers_of(model: ELMo, params: Mapping, characters: Any, lengths: Any, carry: Any) -> tuple[Any, Any]:
  return model.apply({"params": params}, characters, lengths, carry, method=ELMo.layers_of)


def elmo_vectors(
  model: ELMo, params: Mapping, sentences: Sequence[Sequence[str]], carry: Any = None
) -> tuple[list[np.ndarray], Any]:
  """Returns the vectors [layers + 1, words, 2 embed] of each sentence, a list of words, and the states after them.

  Layer 0 is the word alone. Pass the states as `carry` to continue with the next sentences, as bilm-tf
  does; without them, every sentence starts from zeros, and its vectors do not depend on others.
  """
  characters, lengths = spell_sentences(sentences, model.config.chars_per_word)
  layers, carry = _layers_of(model, params, characters, lengths, carry)
  layers = np.asarray(layers, np.float32)
  # Without the marks of a sentence.
  return [layers[:, row, 1 : length - 1] for row, length in enumerate(lengths)], carry


def _config(
  options: Mapping[str, Any], vocab_size: int, has_output: bool, path: Path, changes: Mapping[str, Any]
) -> ELMoConfig:
  try:
    lstm, cnn = options["lstm"], options["char_cnn"]
    if lstm["cell_clip"] != lstm["proj_clip"]:
      raise UserError(
        f"{path} clips cells at {lstm['cell_clip']} and projections at {lstm['proj_clip']}: not supported"
      )
    fields = dict(
      vocab_size=vocab_size, embed_dim=lstm["projection_dim"], hidden_dim=lstm["dim"], num_layers=lstm["n_layers"],
      char_dim=cnn["embedding"]["dim"], num_chars=cnn["n_characters"],
      chars_per_word=cnn["max_characters_per_token"], filters=tuple(map(tuple, cnn["filters"])),
      num_highways=cnn["n_highway"], activation=cnn["activation"], clip=float(lstm["cell_clip"]),
      skip_connections=bool(lstm["use_skip_connections"]), has_output=has_output,
    )  # fmt: skip
  except (KeyError, TypeError) as error:
    raise UserError(f"{path} is not an options file of ELMo: {error} is missing") from None
  # Training counts 261 characters, the readers 262: also that of padding.
  if fields["num_chars"] == 261:
    fields["num_chars"] = 262
  return ELMoConfig(**fields | dict(changes))


def _parameters(config: ELMoConfig, file: Any) -> dict[str, np.ndarray]:
  def read(name: str) -> np.ndarray:
    if name not in file:
      raise UserError(f"no array {name} in {file.filename}", expected="weights of an ELMo with these options")
    return file[name][...]

  encoder = "token_embedder"
  table = read("char_embed")
  params = {f"{encoder}/embedding": np.concatenate([np.zeros_like(table[:1]), table])}
  for number in range(len(config.filters)):
    params[f"{encoder}/convolution_{number}_kernel"] = read(f"CNN/W_cnn_{number}")[0]
    params[f"{encoder}/convolution_{number}_bias"] = read(f"CNN/b_cnn_{number}")
  for number in range(config.num_highways):
    for ours, theirs in ((f"highway_{number}_gate", "carry"), (f"highway_{number}", "transform")):
      params[f"{encoder}/{ours}/kernel"] = read(f"CNN_high_{number}/W_{theirs}")
      params[f"{encoder}/{ours}/bias"] = read(f"CNN_high_{number}/b_{theirs}")
  params[f"{encoder}/project/kernel"] = read("CNN_proj/W_proj")
  params[f"{encoder}/project/bias"] = read("CNN_proj/b_proj")
  for number, direction in enumerate(("forward", "backward")):
    for layer in range(config.num_layers):
      theirs = f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
      ours = f"{direction}/layers_{layer}"
      kernel, bias = _gates(read(f"{theirs}/W_0")), _gates(read(f"{theirs}/B"))
      bias[config.hidden_dim : 2 * config.hidden_dim] += 1  # TensorFlow's cell adds it when it runs
      params[f"{ours}/input/kernel"], params[f"{ours}/recurrent_kernel"] = np.split(kernel, [config.embed_dim])
      params[f"{ours}/input/bias"] = bias
      params[f"{ours}/projection"] = read(f"{theirs}/W_P_0")
  if config.has_output:
    params |= {"logits_dense/kernel": read("softmax/W").T, "output_bias": read("softmax/b")}
  return params


def _gates(array: np.ndarray) -> np.ndarray:
  """Reorders the gates on the last axis."""
  parts = np.split(array, 4, axis=-1)
  return np.concatenate([parts[gate] for gate in _GATES], axis=-1)


def _options_in(folder: Path) -> Path | None:
  found = sorted(folder.glob(f"*{OPTIONS}")) if folder.is_dir() else []
  return found[0] if found else None


def elmo_weights(folder: Path) -> Path:
  """Returns the only file of weights in a folder."""
  found = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and "weights" in path.name)
  if len(found) != 1:
    raise UserError(
      f"{len(found)} weight files in {folder}",
      found=", ".join(path.name for path in found),
      expected="one file *weights.hdf5",
    )
  return found[0]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
  try:
    import h5py
  except ImportError:
    raise UserError(f"{path} needs h5py, which is not installed", try_="pip install 't5like[elmo]'") from None
  try:
    file = h5py.File(path, "r")
  except OSError as error:
    raise UserError(f"{path} is not an HDF5 file, or is damaged", reason=error, try_="download it again") from None
  with file:
    yield file
