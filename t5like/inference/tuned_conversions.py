"""Converts models that were tuned by a method: merged into plain ones, to peft's folders, and from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from t5like.errors import UserError
from t5like.experiments.compatibility import model_fingerprint
from t5like.experiments.writing import bindings_text
from t5like.files import storage
from t5like.inference.converting import Conversion, cast, config_text, keep_vocabulary, merged, save_hugging_face
from t5like.inference.model import Model, load
from t5like.inference.parameters import read_base, write_base
from t5like.inference.parameters.peft_export import export_peft
from t5like.inference.parameters.peft_import import import_peft
from t5like.inference.sources import TunedDirectory
from t5like.interop.hf_heads import head_of_task
from t5like.interop.layouts import flatten, unflatten, unstack_layers
from t5like.interop.new_folders import complete_folder, new_folder
from t5like.interop.peft_files import read_folder
from t5like.models.heads import WithHead, attach_head
from t5like.training.checkpoints import save_parameters
from t5like.training.records.model_dir import CONFIG


@dataclasses.dataclass(frozen=True)
class TunedSettings:
  """A directory of a run with a method, and what to write."""

  source: str | Path
  target: str | Path  # a new folder
  base: str | None = None  # where the base is now
  vocabulary: str | None = None
  dtype: str | None = None
  step: int | None = None
  modules: Sequence[str] = ()


def merge_model(settings: TunedSettings, hugging_face: bool = False) -> Conversion:
  """Writes base and update as a plain model directory, or as a Hugging Face folder."""
  target, model = new_folder(settings.target), _open(settings)
  if not hugging_face:
    model.save(target)
    return Conversion.of(target, merged(model.module, model.params)[1])
  module, params = merged(model.module, model.source.read(settings.step, False, None))
  if settings.dtype:
    params = cast(params, settings.dtype)
  save_hugging_face(
    target, module, params, model.vocabulary, model.experiment, model.source.model_type, model.decoding,
    storage.as_path(model.source.base_path),
  )  # fmt: skip
  return Conversion.of(target, params)


def to_peft(settings: TunedSettings) -> Conversion:
  """Writes what a method has trained as a folder for peft; the base is named by its path."""
  target, model = new_folder(settings.target), _open(settings)
  experiment, params = model.experiment, model.source.read(settings.step, False, None)
  with complete_folder(target) as folder:
    count = export_peft(folder, experiment.model, params, experiment.method, model.source.base_path)
  return Conversion(target, count, 0)


def from_peft(source: str | Path, base: str | Path, target: str | Path, vocabulary: str | None = None) -> Conversion:
  """Writes a model directory from a folder of peft and its base, a Hugging Face folder or a model directory."""
  target, model = new_folder(target), load(base, vocabulary)
  # With separate layers: peft may train some of them only.
  module = model.module.clone(config=dataclasses.replace(model.config, scan_layers=False))
  folder, arrays = read_folder(storage.as_path(source)), unstack_layers(flatten(model.params))
  if not isinstance(module, WithHead) and (
    head := head_of_task(module, folder.config.get("task_type"), folder.tensors)
  ):
    module, arrays = attach_head(module, head), {f"backbone/{path}": array for path, array in arrays.items()}
  trained = import_peft(folder, module, arrays)
  config = dataclasses.replace(module.config, scan_layers=model.config.scan_layers)
  fingerprint = model_fingerprint(config, model.vocabulary)
  found = read_base(str(base), module, trained.method, model.vocabulary, fingerprint, cast=False)
  arrays = trained.arrays
  if module.tuning is None and "head" in model.params:  # a head that peft did not train
    arrays = {path: x for path, x in flatten(model.params).items() if path.startswith("head/")} | arrays
  origin = f"Converted from {source} by `t5like convert`."
  with complete_folder(target, in_place=True) as new:
    save_parameters(new, unflatten(arrays), fingerprint=fingerprint | {"base": found.digest})
    name = keep_vocabulary(model.vocabulary_name, model.vocabulary, new, target)
    text = config_text(module, name, origin, target, settings=model.macros)
    text = text.replace("INIT_FROM = None", f"INIT_FROM = {str(storage.as_path(base).absolute())!r}")
    write_base(new, str(base), found.digest)
    storage.write_atomic(new / CONFIG, text + bindings_text("TRAINABLE", trained.method))
  return Conversion.of(target, arrays)


def _open(settings: TunedSettings) -> Model:
  model = load(settings.source, settings.vocabulary, modules=settings.modules, base=settings.base)
  if not isinstance(model.source, TunedDirectory):
    raise UserError(
      f"{settings.source} is a complete model: nothing to merge or to export to peft",
      expected="the directory of a run with a method such as LoRA",
      try_="t5like convert to_hf",
    )
  return model if settings.step is None else model.at(settings.step)
