"""A model ready to use: from the directory of a run or a conversion, or straight from a Hugging Face folder."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from t5like import parallel
from t5like.errors import UserError
from t5like.experiments.compatibility import check_splits, model_fingerprint
from t5like.experiments.experiment import Experiment
from t5like.experiments.reading import load_experiment
from t5like.files import storage
from t5like.files.storage import DEFAULT_ROOT
from t5like.inference.vocabulary import find_vocabulary
from t5like.models.config import TransformerConfig
from t5like.objectives import SpecialTokens
from t5like.parallel import MeshAxes
from t5like.training.checkpoints import load_parameters
from t5like.training.checkpoints.folders import PARAMS, checkpoint_steps, find_checkpoint, read_fingerprint
from t5like.training.checkpoints.integrity import CHECKSUMS
from t5like.training.records.model_dir import CONFIG
from t5like.vocabularies import Vocabulary
from t5like.vocabularies.subwords import SubwordVocabulary

_BLOCKS, _BLOCK = 64, 4096  # of a file of weights, and their bytes
_NAMED = 5  # tensors in a message
_HUGGING_FACE = ("config.json", "bert_config.json")


@dataclasses.dataclass(frozen=True)
class PromptForm:
  """What stands around a text that a model goes on from, as it did in training."""

  start: int | None  # before it, in a decoder's prompt
  end: int | None  # after it
  alone: int  # stands for a text without tokens where nothing else stands there

  def tokens(self, text: list[int]) -> list[int]:
    """A prompt of at least one token."""
    around = ([] if self.start is None else [self.start], [] if self.end is None else [self.end])
    return [*around[0], *text, *around[1]] or [self.alone]


@dataclasses.dataclass(frozen=True)
class LoadedModel:
  """A model, its vocabulary and the mesh it runs on; parameters are read when they are asked for."""

  folder: Path
  model: nn.Module
  vocabulary: Vocabulary
  vocabulary_name: str  # as a token cache wants it
  mesh: Mesh
  preset: str | None
  experiment: Experiment | None  # None: a Hugging Face folder
  given_step: int | None = None  # --model was the folder of one checkpoint
  imported: Any = None  # parameters of a Hugging Face folder, numpy arrays
  vocabulary_given: bool = False  # the user chose it, and knows why where the checkpoint names another

  @cached_property
  def special(self) -> SpecialTokens:
    return SpecialTokens.of(self.vocabulary)

  @property
  def fingerprint(self) -> dict[str, Any]:
    return model_fingerprint(self.model.config, self.vocabulary)

  @property
  def trained_elsewhere(self) -> bool:
    return is_trained_elsewhere(self.experiment)

  @property
  def is_decoder(self) -> bool:
    """Goes on from a prompt, and has no encoder that reads it."""
    return self.model.batch_layout in ("decoder", "prefix_lm")

  def steps(self) -> list[int]:
    """The steps of all checkpoints there are now; none in a Hugging Face folder."""
    return [] if self.experiment is None else checkpoint_steps(self.folder)

  def step(self, step: int | None = None) -> int | None:
    """The step that `parameters` would read: the one asked for, else the newest; None in a Hugging Face folder."""
    step = self.given_step if step is None else step
    if self.experiment is not None:
      return int(find_checkpoint(self.folder, step).name)
    if step is not None:
      raise UserError(f"{self.folder} is a Hugging Face folder: it has no steps", given=f"--step={step}")
    return None

  def parameters(self, step: int | None = None, average: bool = False) -> Any:
    """On the devices, sharded as in training. With `average`, the moving average that the optimizer kept."""
    step = self.step(step)
    if step is None and average:
      raise UserError(f"{self.folder} is a Hugging Face folder: it has no moving average of parameters")
    params = self.imported
    if step is not None:
      fingerprint = self.fingerprint
      if self.vocabulary_given:
        fingerprint["vocabulary"] = read_fingerprint(find_checkpoint(self.folder, step)).get("vocabulary")
      params = load_parameters(self.folder, step, fingerprint=fingerprint, average=average)
    with self.sharding():
      return _placed(self.model, params, self.mesh)

  def identity(self, step: int | None = None) -> dict[str, Any]:
    """What tells these weights from others, wherever their folder is: a digest of their files, not all of each."""
    step = self.step(step)
    if step is not None:
      checkpoint = find_checkpoint(self.folder, step)
      sums = checkpoint / CHECKSUMS
      files = [sums] if sums.is_file() else sorted(p for p in (checkpoint / PARAMS).rglob("*") if p.is_file())
    else:
      files = sorted(self.folder.glob("*.safetensors"))
    structure = hashlib.sha256(repr(sorted(self.fingerprint.items())).encode()).hexdigest()[:16]
    return {"weights": _digest(files), "structure": structure, "step": step, "vocabulary": self.vocabulary.fingerprint}

  def task_hint(self) -> str:
    """The options that would find the tasks and token caches of the model's own run; '' where there are none.

    They are for the user to give: a command that followed them unasked would run code that the directory names.
    """
    if self.experiment is None:
      return ""
    own, options = self.experiment, []
    if own.cache_dir != DEFAULT_ROOT:
      options.append(f"--cache_dir={own.cache_dir}")
    options += [f"--task_modules={module}" for module in own.task_modules]
    files = [f"--files={split}={pattern}" for split, pattern in own.corpus_files.items()]
    hints = [f"the run itself used {shlex.join(options)}"] if options else []
    hints += [f"and its corpus: t5like cache {own.task} {shlex.join(files)}"] if files else []
    return ", ".join([*hints, "give that if you trust it"]) if hints else ""

  @contextlib.contextmanager
  def sharding(self) -> Iterator[None]:
    """While active, what is compiled follows the sharding preset of the model's run."""
    with parallel.use_preset(self.preset):
      yield

  @property
  def prompt_form(self) -> PromptForm:
    return prompt_form(self.model, self.vocabulary, self.experiment)


def is_trained_elsewhere(experiment: Experiment | None) -> bool:
  """From Hugging Face or T5X, converted or not: how it was trained is not known here."""
  return experiment is None or not experiment.task


def prompt_form(model: nn.Module, vocabulary: Vocabulary, experiment: Experiment | None) -> PromptForm:
  """BERT reads text between [CLS] and [SEP], T5 text that is closed by end-of-sequence.

  A T5 from elsewhere with BERT's or RoBERTa's kind of vocabulary (CodeT5) has [CLS] before its text, too. A decoder
  reads what its training put before an answer.
  """
  special, elsewhere = SpecialTokens.of(vocabulary), is_trained_elsewhere(experiment)
  eos = special.eos
  if model.batch_layout == "encoder":
    return PromptForm(special.cls, special.sep, eos)
  if model.batch_layout == "encoder_decoder":
    closed = elsewhere or experiment.objective is None or experiment.objective.closed
    opened = elsewhere and isinstance(vocabulary, SubwordVocabulary)
    return PromptForm(special.cls if opened else None, eos if closed else None, eos)
  if elsewhere:
    return PromptForm(None, None, eos)  # as Hugging Face's GPT-2: documents are separated by end-of-text
  objective = experiment.objective
  if objective is None:
    return PromptForm(special.start, eos, eos)
  has_inputs = objective.lengths(512).inputs > 0
  return PromptForm(None if objective.shifted else special.start, eos if has_inputs and objective.closed else None, eos)


def load_model(
  source: str | Path,
  vocabulary: str | None = None,
  mesh: MeshAxes | None = None,
  dtype: str | None = None,
  modules: Sequence[str] = (),
) -> LoadedModel:
  """The model in `source`: a model directory, one checkpoint in it, or a Hugging Face folder.

  `vocabulary` takes precedence over what is found; `mesh` over the run's own, which is followed where it fits the
  available devices; `dtype` is that of the computation. The source is data: of the modules that its configuration
  imports only those in `modules`, which the user named, are imported.
  """
  storage.check_reachable(source, "the model")
  folder = storage.as_path(source).absolute()
  changes = {"compute_dtype": dtype} if dtype else {}
  if (folder / PARAMS).is_dir() and (folder.parent.parent / CONFIG).is_file():
    return _of_run(folder.parent.parent, vocabulary, mesh, changes, modules, int(folder.name))
  if (folder / CONFIG).is_file():
    return _of_run(folder, vocabulary, mesh, changes, modules)
  if any((folder / file).is_file() for file in _HUGGING_FACE):
    if storage.is_remote(folder):
      folder = storage.download_tree(folder, storage.mirror_folder(folder))
    return _of_hugging_face(folder, vocabulary, mesh, changes)
  raise UserError(
    f"no model in {folder}" if folder.is_dir() else f"no folder {folder}",
    found=", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "",
    expected=f"a model directory (with {CONFIG}), or a Hugging Face folder (with config.json); nothing is downloaded",
  )


def _of_run(
  folder: Path,
  vocabulary: str | None,
  mesh: MeshAxes | None,
  changes: dict[str, Any],
  modules: Sequence[str],
  step: int | None = None,
) -> LoadedModel:
  experiment = load_experiment(folder, modules)
  checkpoint = find_checkpoint(folder, step)
  model = experiment.model.clone(config=dataclasses.replace(experiment.model.config, **changes))
  name, found = find_vocabulary(folder, model.config, vocabulary, experiment.vocabulary)
  built, preset = _mesh_for(mesh, experiment.mesh, model.config)
  trained_with = read_fingerprint(checkpoint).get("vocabulary")
  if vocabulary and trained_with not in (None, found.fingerprint) and jax.process_index() == 0:
    print(f"{vocabulary} is not the vocabulary that the model was trained with", file=sys.stderr, flush=True)
  return LoadedModel(folder, model, found, name, built, preset, experiment, step, vocabulary_given=bool(vocabulary))


def _of_hugging_face(
  folder: Path, vocabulary: str | None, mesh: MeshAxes | None, changes: dict[str, Any]
) -> LoadedModel:
  from t5like.interop import huggingface

  imported = huggingface.load(folder, **changes)
  if (unused := imported.report.unexpected) and jax.process_index() == 0:
    names = ", ".join(unused[:_NAMED]) + (" ..." if len(unused) > _NAMED else "")
    print(f"{len(unused)} tensors of {folder} have no place in the model: {names}", file=sys.stderr, flush=True)
  model = imported.model
  name, found = find_vocabulary(folder, model.config, vocabulary)
  built, preset = _mesh_for(mesh, MeshAxes(), model.config)
  return LoadedModel(folder, model, found, name, built, preset, None, imported=imported.params)


def _mesh_for(given: MeshAxes | None, own: MeshAxes, config: TransformerConfig) -> tuple[Mesh, str | None]:
  """What was asked for; else the run's own, or plain data parallelism where these are other devices than the run's."""
  axes = own if given is None else given
  try:
    mesh = parallel.make_mesh(axes)
    check_splits(config, mesh)
    return mesh, axes.preset
  except UserError as error:
    if given is not None:
      lines = error.lines | {"try": error.lines.get("try", "").replace("--gin.MESH.", "--mesh with ")}
      raise UserError(error.what, **lines) from None
  return parallel.make_mesh(MeshAxes()), None


def _digest(files: list[Path]) -> str:
  """Of sizes and of blocks spread over each file: other weights differ everywhere."""
  digest = hashlib.sha256()
  for path in files:
    size = path.stat().st_size
    digest.update(f"{path.name} {size}".encode())
    with path.open("rb") as file:
      for part in range(_BLOCKS):
        file.seek(size * part // _BLOCKS)
        digest.update(file.read(_BLOCK))
  return digest.hexdigest()[:16]


def _placed(model: nn.Module, params: Any, mesh: Mesh) -> Any:
  """Each host copies the parts of its own devices; `jax.device_put` would compare whole arrays over all hosts."""
  token = np.ones((1, 1), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  boxed = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
  shardings = parallel.parameter_shardings(boxed, mesh)
  return jax.tree.map(
    lambda x, sharding: jax.make_array_from_callback(x.shape, sharding, lambda at: x[at]), params, shardings
  )
