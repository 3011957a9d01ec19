"""Sources of models: model directories with checkpoints, Hugging Face folders, and files of ELMo and AWD-LSTM."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import flax.linen as nn
import numpy as np

from t5like.console import warn
from t5like.errors import UserError
from t5like.experiments.compatibility import model_fingerprint
from t5like.experiments.corpus_files import as_options
from t5like.experiments.experiment import Experiment
from t5like.experiments.reading import load_experiment
from t5like.files import storage
from t5like.files.storage import DEFAULT_ROOT
from t5like.finetuning.distillation import LEARNED
from t5like.inference.vocabulary import find_vocabulary
from t5like.interop.layouts import flatten, stack_layers, unflatten, unstack_layers
from t5like.parallel import MeshAxes
from t5like.training.checkpoints import checkpoint_steps, find_checkpoint, load_parameters, read_fingerprint
from t5like.training.checkpoints.folders import PARAMS
from t5like.training.checkpoints.integrity import CHECKSUMS
from t5like.training.records.model_dir import CONFIG, DATA_SETTINGS, OWN_TARGETS
from t5like.vocabularies import SPELLED

HUB = "hf://"
_HF_CONFIG_FILES = ("config.json", "bert_config.json", "modules.json")
_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]  # also in folders, such as 1_Pooling
_OLD_HUB_FILES = ["pytorch_model*.bin"]  # only of repositories without safetensors
_BLOCKS, _BLOCK = 64, 4096  # blocks sampled per weight file, and their size in bytes
_MAX_LISTED = 5  # tensors listed in a message
_STACKED = "scan_layers"  # of a fingerprint


class Source(Protocol):
  """A folder that holds a model."""

  folder: Path
  module: nn.Module
  experiment: Experiment | None  # None: not a run or conversion

  @property
  def vocabulary(self) -> str | None:
    """The name or file in the configuration; None: not configured."""

  @property
  def mesh(self) -> MeshAxes:
    """The mesh that the model was trained on."""

  @property
  def model_type(self) -> str | None:
    """Hugging Face's model type, if the sizes do not determine it (mt5 is a T5)."""

  @property
  def decoding(self) -> Mapping[str, Any]:
    """Fields of DecodeSettings with which the model generates by default."""

  @property
  def own_targets(self) -> Sequence[str]:
    """The tasks that it was trained on, if their targets have a vocabulary of their own, which is not the model's."""

  def steps(self) -> list[int]:
    """Returns the steps of all existing checkpoints."""

  def step(self, step: int | None) -> int | None:
    """Returns the step that `read` would read: the given one or the newest; None: no steps."""

  def read(self, step: int | None, average: bool, fingerprint: Mapping[str, Any] | None) -> Any:
    """Reads parameters as numpy arrays."""

  def recorded_vocabulary(self, step: int | None) -> str | None:
    """Returns the fingerprint of the vocabulary used in training; None: not recorded."""

  def files(self, step: int | None) -> list[Path]:
    """Returns the files whose contents identify the parameters."""

  def configured_eos_ids(self) -> set[int]:
    """Returns the EOS ids of a Hugging Face configuration."""

  def task_hint(self, cache_dir: str | None = None) -> str:
    """Returns the options for the tasks and token caches of the model's own run, but for those that are in use."""


@dataclasses.dataclass(frozen=True)
class RunDirectory:
  """The directory of a run or conversion; `given_step`: the user chose this checkpoint."""

  folder: Path
  module: nn.Module
  experiment: Experiment
  given_step: int | None = None

  @property
  def vocabulary(self) -> str:
    return self.experiment.vocabulary

  @property
  def mesh(self) -> MeshAxes:
    return self.experiment.mesh

  @property
  def model_type(self) -> str | None:
    return "mt5" if self.vocabulary == "mt5" else None

  @property
  def decoding(self) -> Mapping[str, Any]:
    return self.experiment.decoding

  @property
  def own_targets(self) -> Sequence[str]:
    try:
      found = storage.read_json(self.folder / DATA_SETTINGS).get(OWN_TARGETS, ())
    except (OSError, ValueError, AttributeError):
      return ()  # of a conversion, or an earlier version
    return [str(task) for task in found] if isinstance(found, list) else ()

  def steps(self) -> list[int]:
    return checkpoint_steps(self.folder)

  def step(self, step: int | None) -> int:
    return int(find_checkpoint(self.folder, self.given_step if step is None else step).name)

  def read(self, step: int | None, average: bool, fingerprint: Mapping[str, Any] | None) -> Any:
    params = self._load(step, average, fingerprint)
    return {name: part for name, part in params.items() if name != LEARNED}

  def _load(self, step: int | None, average: bool, fingerprint: Mapping[str, Any] | None) -> Any:
    """Loads a checkpoint, whose layers may be stored differently: SCAN_LAYERS may have changed in the run."""
    checkpoint = find_checkpoint(self.folder, self.step(step))
    stacked = read_fingerprint(checkpoint).get(_STACKED)
    if fingerprint is not None and stacked is not None:
      fingerprint = {**fingerprint, _STACKED: stacked}
    params = load_parameters(self.folder, int(checkpoint.name), fingerprint=fingerprint, average=average)
    if stacked in (None, self.module.config.scan_layers):
      return params
    return unflatten((unstack_layers if stacked else stack_layers)(flatten(params)))

  def recorded_vocabulary(self, step: int | None) -> str | None:
    return read_fingerprint(find_checkpoint(self.folder, self.step(step))).get("vocabulary")

  def files(self, step: int | None) -> list[Path]:
    checkpoint = find_checkpoint(self.folder, self.step(step))
    sums = checkpoint / CHECKSUMS
    return [sums] if sums.is_file() else sorted(p for p in (checkpoint / PARAMS).rglob("*") if p.is_file())

  def configured_eos_ids(self) -> set[int]:
    return set()

  def task_hint(self, cache_dir: str | None = None) -> str:
    """Returns options for the user to repeat; applying them automatically would run code named by the directory."""
    own, options = self.experiment, []
    if own.cache_dir not in (DEFAULT_ROOT, cache_dir):
      options.append(f"--cache_dir={own.cache_dir}")
    options += [f"--task_modules={module}" for module in own.task_modules]
    hints = [f"the run used {shlex.join(options)}"] if options else []
    if files := as_options(own.corpus_files):
      copy = self.folder / own.vocabulary
      files += [f"--vocabulary={copy if copy.exists() else own.vocabulary}"]
      files += [f"--split={own.eval_split}"] if own.eval_split else []
      files += ["--lengths=" + ",".join(f"{name}={length}" for name, length in own.lengths.items())]
      hints += [f"and its corpus: {shlex.join(['t5like', 'cache', own.task, *files])}"]
    return ", ".join([*hints, "add this if you trust it"]) if hints else ""


@dataclasses.dataclass(frozen=True)
class TunedDirectory(RunDirectory):
  """The directory of a run that tuned a base with a method such as LoRA: checkpoints hold only what was trained."""

  given_base: str | None = None  # where the base is now; None: as recorded

  @property
  def base_path(self) -> str:
    from t5like.inference.parameters import find_base

    return find_base(self.folder, self.given_base, self.experiment.init_from)

  @cached_property
  def base(self) -> tuple[str, dict[str, np.ndarray]]:
    """The digest of the base, and its parameters."""
    from t5like.inference.parameters import read_base

    experiment = self.experiment
    config = experiment.model.config
    _, vocabulary = find_vocabulary(self.folder, config, None, experiment.vocabulary)
    fingerprint = model_fingerprint(config, vocabulary)
    base = read_base(
      self.base_path, experiment.model, experiment.method, vocabulary, fingerprint, experiment.restore, cast=False
    )
    return base.digest, dict(base.parameters.take())

  def release(self) -> None:
    """Drops the base's parameters, which are read again if they are needed."""
    self.__dict__.pop("base", None)

  def trained_paths(self, step: int | None) -> set[str]:
    """Returns the paths of the parameters that a checkpoint holds."""
    return set(flatten(self._load(step, average=False, fingerprint=None)))

  def read(self, step: int | None, average: bool, fingerprint: Mapping[str, Any] | None) -> Any:
    digest, arrays = self.base
    checkpoint = find_checkpoint(self.folder, self.step(step))
    saved = read_fingerprint(checkpoint).get("base")
    if saved != digest:
      raise UserError(
        "this checkpoint was trained on another base", checkpoint=checkpoint, differs=f"saved {saved}, now {digest}"
      )
    expected = None if fingerprint is None else {**fingerprint, "base": digest}
    return unflatten({**arrays, **flatten(self._load(step, average, expected))})


@dataclasses.dataclass(frozen=True)
class ForeignFiles:
  """Files of another library; parameters are read on opening."""

  folder: Path
  module: nn.Module
  params: Any = dataclasses.field(repr=False)  # numpy arrays
  model_type: str | None = None
  experiment: None = None
  vocabulary: str | None = None
  mesh: MeshAxes = MeshAxes()
  decoding: ClassVar[Mapping[str, Any]] = {}
  own_targets: ClassVar[Sequence[str]] = ()
  title: ClassVar[str]

  def steps(self) -> list[int]:
    return []

  def step(self, step: int | None) -> None:
    if step is not None:
      raise UserError(f"{self.folder} is {self.title} and has no steps", given=f"--step={step}")

  def read(self, step: int | None, average: bool, fingerprint: Mapping[str, Any] | None) -> Any:
    self.step(step)
    if average:
      raise UserError(f"{self.folder} is {self.title} and has no moving average of parameters")
    return self.params

  def recorded_vocabulary(self, step: int | None) -> None:
    return None

  def configured_eos_ids(self) -> set[int]:
    return set()

  def task_hint(self, cache_dir: str | None = None) -> str:
    return ""


@dataclasses.dataclass(frozen=True)
class HuggingFaceFolder(ForeignFiles):
  """A folder with config.json and safetensors or pytorch_model.bin."""

  title = "a Hugging Face folder"

  @cached_property
  def decoding(self) -> Mapping[str, Any]:
    from t5like.interop.hf_generation import decoding_of

    layout = self.module.batch_layout
    return {} if layout == "encoder" else decoding_of(self.folder, layout == "encoder_decoder")

  def files(self, step: int | None) -> list[Path]:
    from t5like.interop.tensor_folders import WEIGHT_FILES

    return sorted(path for pattern in WEIGHT_FILES for path in self.folder.glob(pattern))

  def configured_eos_ids(self) -> set[int]:
    from t5like.interop.hf_generation import ends_of

    return set() if self.module.batch_layout == "encoder" else set(ends_of(self.folder))


@dataclasses.dataclass(frozen=True)
class RecurrentFiles(ForeignFiles):
  """The published weights of ELMo (HDF5) or of an AWD-LSTM (fastai)."""

  title = "a file of published weights"
  weights: Path | None = None

  def files(self, step: int | None) -> list[Path]:
    return [self.weights]


def open_source(
  path: str | Path, dtype: str | None = None, modules: Sequence[str] = (), base: str | None = None
) -> Source:
  """Opens a model directory, one checkpoint in it, a Hugging Face folder, `hf://org/name`, or weights of an LSTM.

  `base` is for a directory of a method such as LoRA: where its base is now.
  """
  if not isinstance(path, str | os.PathLike) or not str(path):
    raise UserError(f"not a path of a model: {path!r}", expected="a folder, or hf://org/name")
  if str(path).startswith(HUB):
    path = _from_hub(str(path))
  storage.check_reachable(path, "the model")
  folder = storage.as_path(path).absolute()
  changes = {"compute_dtype": dtype} if dtype else {}
  if (folder / PARAMS).is_dir() and (folder.parent.parent / CONFIG).is_file():
    return _open_run(folder.parent.parent, changes, modules, int(folder.name), base)
  if (folder / CONFIG).is_file():
    return _open_run(folder, changes, modules, base=base)
  if any((folder / file).is_file() for file in _HF_CONFIG_FILES):
    return _open_hugging_face(storage.local_tree(folder), changes)
  if not storage.is_remote(folder) and (found := _open_recurrent(folder, changes)):
    return found
  if (folder / "adapter_config.json").is_file():
    raise UserError(
      f"{folder} is an adapter of peft, not a model",
      try_=f"t5like convert from_peft {folder} NEW_FOLDER --base=MODEL, then load(NEW_FOLDER)",
    )
  raise UserError(
    f"no model in {folder}" if folder.exists() else f"no such folder: {folder}",
    found=", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "",
    expected=f"a model directory (with {CONFIG}), a Hugging Face folder (with config.json), hf://org/name, "
    "a folder of ELMo (options.json, weights.hdf5), or weights of an AWD-LSTM (.pth, .safetensors)",
  )


def weights_digest(files: list[Path]) -> str:
  """Hashes file sizes and blocks sampled from each file: different weights differ everywhere."""
  digest = hashlib.sha256()
  for path in files:
    size = path.stat().st_size
    digest.update(f"{path.name} {size}".encode())
    with path.open("rb") as file:
      for part in range(_BLOCKS):
        file.seek(size * part // _BLOCKS)
        digest.update(file.read(_BLOCK))
  return digest.hexdigest()[:16]


def _open_run(
  folder: Path, changes: Mapping[str, Any], modules: Sequence[str], step: int | None = None, base: str | None = None
) -> RunDirectory:
  experiment = load_experiment(folder, modules)
  find_checkpoint(folder, step)  # fail before loading the vocabulary
  model = experiment.model.clone(config=dataclasses.replace(experiment.model.config, **changes))
  if experiment.method:
    return TunedDirectory(folder, experiment.method.tune(model), experiment, step, base)
  if base:
    raise UserError(f"{folder} is a complete model and needs no base", given=f"base {base}")
  return RunDirectory(folder, model, experiment, step)


def _open_hugging_face(folder: Path, changes: Mapping[str, Any]) -> HuggingFaceFolder:
  from t5like.interop import huggingface
  from t5like.interop.sentence_modules import transformer_folder

  imported = huggingface.load(folder, **changes)
  if unused := imported.report.unexpected:
    names = ", ".join(unused[:_MAX_LISTED]) + (" ..." if len(unused) > _MAX_LISTED else "")
    warn(f"ignored {len(unused)} unexpected tensors in {folder}: {names}")
  return HuggingFaceFolder(transformer_folder(folder), imported.model, imported.params, imported.model_type)


def _open_recurrent(path: Path, changes: Mapping[str, Any]) -> RecurrentFiles | None:
  """Opens a folder of ELMo or its weights, or the weights of an AWD-LSTM; None: it is none of these."""
  from t5like.interop.awd_lstm_files import awd_lstm_file, is_awd_lstm, load_awd_lstm
  from t5like.interop.elmo_files import elmo_folder, elmo_weights, load_elmo

  if folder := elmo_folder(path):
    # The softmax is for training; without it, words of any kind can be embedded.
    module, params = load_elmo(folder, has_output=False, vocab_size=1, **changes)
    return RecurrentFiles(folder, module, params, vocabulary=SPELLED, weights=elmo_weights(folder))
  if not is_awd_lstm(path):
    return None
  module, params = load_awd_lstm(path, **changes)
  return RecurrentFiles(path.parent if path.is_file() else path, module, params, weights=awd_lstm_file(path))


def _from_hub(name: str) -> Path:
  """Downloads a model from the Hugging Face Hub, or finds it in the Hub's cache."""
  try:
    from huggingface_hub import snapshot_download
  except ImportError:
    raise UserError(
      f"{name} needs huggingface_hub, which is not installed", try_="pip install huggingface_hub, or a local folder"
    ) from None
  try:
    folder = Path(snapshot_download(name.removeprefix(HUB), allow_patterns=_HUB_FILES))
    if not any(folder.glob("*.safetensors")):
      folder = Path(snapshot_download(name.removeprefix(HUB), allow_patterns=_HUB_FILES + _OLD_HUB_FILES))
    return folder
  except Exception as error:  # exception classes differ between versions: offline, unknown name, no access
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise UserError(f"cannot download {name}", because=first, try_="a local folder") from None
