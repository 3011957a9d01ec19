"""Converts checkpoints of other libraries to model directories, and models to Hugging Face folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax

from t5like.decoding.options import without_own_end
from t5like.errors import UserError
from t5like.experiments.compatibility import check_vocabulary, fits_embedding, model_fingerprint
from t5like.experiments.experiment import Experiment
from t5like.experiments.reading import load_experiment
from t5like.files import storage
from t5like.finetuning.distillation import LEARNED
from t5like.inference.heads.no_answer import with_threshold
from t5like.inference.parameters import BASE_FILE
from t5like.inference.prompts import PromptForm, has_training_config, position_limit, prompt_form
from t5like.inference.vocabulary import TOKENIZER, find_vocabulary, published_vocabulary
from t5like.interop.new_folders import complete_folder, new_folder
from t5like.models.config import TransformerConfig
from t5like.models.heads import EmbeddingHead, WithHead
from t5like.models.tuning import merge
from t5like.training.checkpoints import check_fingerprint, find_checkpoint, load_parameters, save_parameters
from t5like.training.records.model_dir import CONFIG
from t5like.vocabularies import Vocabulary, copy_vocabulary, load_vocabulary, vocabulary_in

if TYPE_CHECKING:
  from t5like.interop.huggingface import Imported

REPORT = "conversion.txt"


@dataclasses.dataclass(frozen=True)
class ImportSettings:
  """Settings for importing a Hugging Face or T5X checkpoint into a model directory."""

  source: str | Path
  target: str | Path  # a new folder
  library: str = "huggingface"  # or "t5x"
  vocabulary: str | None = None  # name or file; None: the one next to the checkpoint, or guessed from its size
  scan_layers: bool = False  # store stacked layers
  dtype: str | None = None  # cast parameters; None: as stored
  expected: TransformerConfig | None = None  # must match the checkpoint; None: sizes are read from the checkpoint


@dataclasses.dataclass(frozen=True)
class ExportSettings:
  """Settings for exporting a model directory to a Hugging Face folder."""

  source: str | Path
  target: str | Path  # a new folder
  vocabulary: str | None = None
  dtype: str | None = None
  step: int | None = None  # None: the newest
  average: bool = False  # export the moving average of the parameters
  modules: Sequence[str] = ()  # that the configuration may import


@dataclasses.dataclass(frozen=True)
class Conversion:
  """The result of a conversion."""

  target: Path
  parameters: int
  arrays: int
  summary: str = ""  # numbers of tensors used, missing and unexpected
  note: str = ""  # set if no vocabulary was found

  @classmethod
  def of(cls, target: Path, params: Any, **more: str) -> Conversion:
    leaves = jax.tree.leaves(params)
    return cls(target, sum(x.size for x in leaves), len(leaves), **more)


def import_checkpoint(settings: ImportSettings) -> Conversion:
  """Writes a model directory from a checkpoint of another library, with a report on every tensor."""
  target, source = new_folder(settings.target), storage.as_path(settings.source)
  here = storage.local_tree(source)
  imported = _read(settings, here)
  if settings.dtype:
    config = dataclasses.replace(imported.model.config, param_dtype=settings.dtype)
    params = cast(imported.params, settings.dtype)
    imported = dataclasses.replace(imported, model=imported.model.clone(config=config), params=params)
  name, vocabulary, note = _find_import_vocabulary(settings.vocabulary, source, imported.model.config)
  fingerprint = model_fingerprint(imported.model.config, vocabulary)
  if settings.expected is not None:
    expected = dataclasses.replace(settings.expected, param_dtype=imported.model.config.param_dtype)
    check_fingerprint(fingerprint, model_fingerprint(expected, vocabulary), source)
    imported = dataclasses.replace(imported, model=imported.model.clone(config=expected))
  # T5X checkpoints do not record a dropout rate: runs/finetune.gin sets it.
  has_dropout = bool(imported.model.config.dropout_rate) or imported.model_type != "t5x"
  origin = f"Converted from {source} by `t5like convert`."
  own = {"DECODING": _read_decoding(settings, here, imported, vocabulary)}
  with complete_folder(target, in_place=True) as folder:
    save_parameters(folder, imported.params, step=0, fingerprint=fingerprint)
    if vocabulary is not None:
      name = keep_vocabulary(name, vocabulary, folder, target)
    storage.write_atomic(folder / REPORT, imported.report.full() + "\n")
    storage.write_atomic(folder / CONFIG, config_text(imported.model, name, origin, target, has_dropout, own))
  return Conversion.of(target, imported.params, summary=imported.report.summary(), note=note)


def export_model(settings: ExportSettings) -> Conversion:
  """Exports a model directory to a Hugging Face folder, with a tokenizer if the vocabulary is found."""
  from t5like.interop.layouts import check_parameters, flatten

  target, source = new_folder(settings.target), storage.as_path(settings.source).absolute()
  experiment = load_experiment(source, settings.modules)
  if experiment.method:
    raise UserError(
      f"{source} holds only what {type(experiment.method).__name__} has trained", try_="--merge, or to_peft"
    )
  vocabulary, note = None, ""
  try:
    _, vocabulary = find_vocabulary(source, experiment.model.config, settings.vocabulary, experiment.vocabulary)
  except UserError as error:
    if settings.vocabulary:
      raise
    note = f"no tokenizer written: {error.what}"
  params = load_parameters(source, settings.step, average=settings.average)
  params = {name: part for name, part in params.items() if name != LEARNED}
  check_parameters(experiment.model, flatten(params), str(source))
  if settings.dtype:
    params = cast(params, settings.dtype)
  model_type = "mt5" if experiment.vocabulary == "mt5" else None
  model = with_threshold(experiment.model, source, int(find_checkpoint(source, settings.step).name))
  save_hugging_face(target, model, params, vocabulary, experiment, model_type, experiment.decoding)
  return Conversion.of(target, params, note=note)


def save_hugging_face(
  target: Path,
  model: nn.Module,
  params: Any,
  vocabulary: Vocabulary | None,
  experiment: Experiment | None,
  model_type: str | None = None,
  decoding: Mapping[str, Any] | None = None,
  origin: Path | None = None,
) -> None:
  """Writes a folder for transformers' `from_pretrained`: weights, config.json and tokenizer files.

  `decoding`: the model's own decoding settings, for generation_config.json. `origin`: the folder that it comes from.
  """
  from t5like.interop import hf_generation, huggingface

  if not isinstance(model.config, TransformerConfig):
    name = type(getattr(model, "backbone", model)).__name__
    raise UserError(f"transformers has no class for {name}", try_="model.save(folder), a model directory")
  if decoding:
    hf_generation.check_decoding(decoding)
  head = getattr(model, "head", None)
  if isinstance(head, EmbeddingHead) and head.length is None and has_training_config(experiment):
    model = model.clone(head=head.clone(length=experiment.lengths["inputs"]))
  with complete_folder(target) as folder:
    if jax.process_index() != 0:
      return
    form = None if vocabulary is None else prompt_form(model, vocabulary, experiment)
    huggingface.save(folder, model, params, model_type, vocabulary, closed=form is None or _is_closed(model, form))
    if form is not None:
      _save_tokenizer(folder, model, vocabulary, form)
    if decoding:
      hf_generation.write_decoding(folder, decoding, model.batch_layout == "encoder_decoder")
    if origin is not None:
      hf_generation.keep_template(origin, folder)


def save_model_directory(
  target: Path,
  model: nn.Module,
  params: Any,
  vocabulary: Vocabulary,
  vocabulary_name: str,
  source: Path,
  settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
  """Writes a model directory: a checkpoint without optimizer state at step 0, config.gin, and the vocabulary.

  If `source` is a model directory its configuration is kept, so that prompts are formatted as before.
  `settings` are the model's own, by macro.
  """
  with complete_folder(target, in_place=True) as folder:
    save_parameters(folder, params, step=0, fingerprint=model_fingerprint(model.config, vocabulary))
    if jax.process_index() == 0:
      name = keep_vocabulary(vocabulary_name, vocabulary, folder, target)
      storage.write_atomic(folder / CONFIG, _saved_config_text(target, model, name, source, settings))


def keep_vocabulary(name: str, vocabulary: Vocabulary, folder: Path, target: Path) -> str:
  """Copies a vocabulary to a folder that becomes `target`; returns the name of the copy there."""
  return copy_vocabulary(name, vocabulary, folder).replace(str(folder), str(target), 1)


def _saved_config_text(
  target: Path, model: nn.Module, vocabulary: str, source: Path, settings: Mapping[str, Mapping[str, Any]] | None
) -> str:
  if not (source / CONFIG).is_file():
    return config_text(model, vocabulary, f"Saved from {source}.", target, settings=settings)
  text = (source / CONFIG).read_text()
  values = {"VOCABULARY": repr(vocabulary), "MODEL_DIR": repr(str(target)), "INIT_FROM": "None", **_texts(settings)}
  if (source / BASE_FILE).is_file():  # what a method has trained is merged
    values["TRAINABLE"] = "@Everything()"
  # A complete configuration has only the macros that its run used; one written from Python has none.
  has_macro = lambda macro: f"= %{macro}\n" in text or "include '" in text  # noqa: E731
  changes = [f"{m if has_macro(m) else f'train.{m.lower()}'} = {value}" for m, value in values.items()]
  threshold = getattr(getattr(model, "head", None), "no_answer_threshold", None)
  changes += [] if threshold is None else [f"SpanHead.no_answer_threshold = {threshold!r}"]
  return "\n".join([text, f"# Saved from {source}.", *changes, ""])


def merged(model: nn.Module, params: Any) -> tuple[nn.Module, Any]:
  """Returns the plain model and parameters that are equal to a tuned model; others are returned as they are.

  Raises UserError for extensions that the base's parameters cannot express, such as adapters.
  """
  if model.tuning is None:
    return model, params
  left, params = merge(model.tuning, params)
  if left is not None:
    kinds = sorted({type(extension).__name__ for _, found in left.sites for extension in found})
    raise UserError(
      f"this model cannot be merged into a plain one: {', '.join(kinds)} add layers or tokens of their own",
      expected="LoRA, DoRA, (IA)3, or trained biases and norms",
    )
  return model.clone(tuning=None), params


def cast(params: Any, dtype: str) -> Any:
  return jax.tree.map(lambda x: x.astype(jax.numpy.dtype(dtype)), params)


def _read_decoding(
  settings: ImportSettings, source: Path, imported: Imported, vocabulary: Vocabulary | None
) -> Mapping[str, Any]:
  """Returns the decoding settings of a Hugging Face folder."""
  from t5like.interop.hf_generation import decoding_of

  layout = imported.model.batch_layout
  if settings.library != "huggingface" or layout == "encoder":
    return {}
  found = decoding_of(source, layout == "encoder_decoder")
  return found if vocabulary is None else without_own_end(found, vocabulary.eos_id)


def config_text(
  model: nn.Module,
  vocabulary: str,
  origin: str,
  target: Path,
  dropout: bool = True,
  settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
  """Returns a config.gin that rebuilds the model, ready for training or evaluation once TASK is set.

  `settings` are the model's own, by macro; empty ones are not written.
  """
  backbone = getattr(model, "backbone", model)
  config, name = model.config, type(backbone).__name__
  fields = {k: v for k, v in _changed_fields(config).items() if k != "dropout_rate"}
  kind, own = type(config).__name__, []
  if isinstance(config, TransformerConfig):
    own = ["TransformerConfig.dropout_rate = %DROPOUT_RATE"]
    own += [f"DROPOUT_RATE = {config.dropout_rate!r}"] if dropout else []
  return "\n".join([
    f"# {origin}",
    "",
    "include 'runs/finetune.gin'",
    "",
    *(_head_text(model, name) if isinstance(model, WithHead) else [f"MODEL = @{name}()"]),
    f"{name}.config = @{kind}()",
    *_family_text(backbone),
    *(f"{kind}.{field} = {value!r}" for field, value in fields.items()),
    *own,
    "",
    f"VOCABULARY = {vocabulary!r}",
    f"MODEL_DIR = {str(target)!r}",
    *(f"{macro} = {value}" for macro, value in _texts(settings).items()),
    "TASK = ''",
    "INIT_FROM = None",
    "",
  ])  # fmt: skip


def _texts(settings: Mapping[str, Mapping[str, Any]] | None) -> dict[str, str]:
  """Returns settings as gin's text, by macro, without empty ones."""
  return {macro: repr(dict(value)) for macro, value in (settings or {}).items() if value}


def _family_text(backbone: nn.Module) -> list[str]:
  family = getattr(backbone, "family", None)
  is_field = any(field.name == "family" for field in dataclasses.fields(backbone))
  return [f"{type(backbone).__name__}.family = {family!r}"] if is_field and family not in ("bert", "gpt2") else []


def _head_text(model: WithHead, backbone: str) -> list[str]:
  head = type(model.head).__name__
  return [
    "MODEL = @WithHead()",
    f"WithHead.backbone = @{backbone}()",
    f"WithHead.head = @{head}()",
    *([f"WithHead.stack = {model.stack!r}"] if model.stack else []),
    *([f"WithHead.layer = {model.layer!r}"] if model.layer is not None else []),
    *(f"{head}.{field} = {value!r}" for field, value in _changed_fields(model.head).items()),
  ]


def _changed_fields(settings: Any) -> dict[str, Any]:
  """Returns the fields of a config or a head that do not have their default."""
  fields = [field for field in dataclasses.fields(settings) if field.name not in ("parent", "name", "tuning")]
  return {field.name: value for field in fields if (value := getattr(settings, field.name)) != field.default}


def _read(settings: ImportSettings, source: Path) -> Imported:
  from t5like.interop import huggingface, t5x

  expected = settings.expected
  scan_layers = settings.scan_layers if expected is None else expected.scan_layers
  if settings.library == "t5x":
    return t5x.load(source, expected, scan_layers=scan_layers)
  return huggingface.load(source, scan_layers=scan_layers)


def _find_import_vocabulary(
  given: str | None, source: Path, config: TransformerConfig
) -> tuple[str, Vocabulary | None, str]:
  """Returns the vocabulary's name or file, the vocabulary (None: not found), and a note if it was not found.

  Tries the requested one, then the one next to the checkpoint, then that of published checkpoints of this size. The
  weights are converted even without a vocabulary.
  """
  nearby = None if given else vocabulary_in(source)
  name = given or (str(nearby.absolute()) if nearby else published_vocabulary(config) or "unknown")
  try:
    vocabulary = load_vocabulary(name)
  except UserError:
    if given or nearby:
      raise
    return name, None, f"vocabulary {name} not found: only the weights are converted"
  if nearby and not fits_embedding(config, vocabulary) and (nearby.parent / TOKENIZER).is_file():
    name = str((nearby.parent / TOKENIZER).absolute())  # as in find_vocabulary
    vocabulary = load_vocabulary(name)
  check_vocabulary(config, name, vocabulary)
  return name, vocabulary, ""


def _is_closed(model: nn.Module, form: PromptForm) -> bool:
  """Whether padding must differ from the end of texts: transformers' classifiers search for it, embeddings mask it."""
  return form.end is not None and not isinstance(getattr(model, "head", None), EmbeddingHead)


def _save_tokenizer(folder: Path, model: nn.Module, vocabulary: Vocabulary, form: PromptForm) -> None:
  from t5like.interop.hf_tokenizers import TextSpecialTokens, padding_token, save_tokenizer

  config, has_head = model.config, isinstance(model, WithHead)
  around, types = TextSpecialTokens(form.start, form.end), config.num_token_types > 1
  padding = padding_token(vocabulary, config.vocab_size, _is_closed(model, form)) if has_head else None
  # A head's rows and a decoder's prompts are as in training; without an end, as the tokenizer's.
  keeps = form.end is None or not (has_head or model.batch_layout in ("decoder", "prefix_lm"))
  save_tokenizer(folder, vocabulary, around, position_limit(config), types, padding, keep_template=keeps)
