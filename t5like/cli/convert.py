"""Bring a model in from Hugging Face or T5X, or take one out to Hugging Face: bit for bit, unless --dtype casts.
Translate a T5X gin file.

  t5like convert from_hf  ~/downloads/t5-small            ~/runs/t5_small
  t5like convert from_t5x ~/downloads/t5_1_1/checkpoint_1000000  ~/runs/t5_1_1
  t5like convert to_hf    ~/runs/t5_small                 ~/exported
  t5like convert gin      my_t5x_finetune.gin  --out=my_finetune.gin

A model brought in is a model directory like that of a run: score it with `t5like eval`, or train on
from it with --gin.INIT_FROM. conversion.txt there names every tensor used, missing and unexpected.
With --gin_file the checkpoint must be the model of that file; without it, sizes come from the checkpoint.

`gin` prints a gin file for `t5like train`, or the commands for T5X's eval and infer files, and lists what it could not
translate. --gin.NAME=VALUE sets T5X's macros that the file leaves open. Nothing that the file names is imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from t5like.cli.options import add_gin_arguments, add_task_modules, gin_search_paths, task_modules
from t5like.errors import UserError
from t5like.experiments.reading import load_experiment
from t5like.files import storage

if TYPE_CHECKING:
  from t5like.experiments.experiment import Experiment
  from t5like.interop.huggingface import Imported
  from t5like.models import TransformerConfig
  from t5like.vocabularies import Vocabulary

REPORT = "conversion.txt"


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("direction", choices=("from_hf", "from_t5x", "to_hf", "gin"))
  parser.add_argument("source", help="a checkpoint of the other library; for to_hf, a model directory; a gin file")
  parser.add_argument("target", nargs="?", help="a new folder; for gin, none")
  parser.add_argument("--out", metavar="FILE", help="gin: write there (default: print)")
  parser.add_argument("--vocabulary", help="its name or file (default: the one beside the checkpoint, or by its size)")
  parser.add_argument("--scan_layers", action="store_true", help="store layers stacked, for SCAN_LAYERS = True")
  parser.add_argument(
    "--dtype", choices=("float32", "bfloat16", "float16"), help="cast parameters (default: as stored)"
  )
  parser.add_argument("--step", type=int, help="to_hf: the checkpoint's step (default: the newest)")
  parser.add_argument(
    "--average", action="store_true", help="to_hf: the moving average of the parameters, of a run with ema_decay"
  )
  add_task_modules(parser)
  add_gin_arguments(parser)


def run(args: argparse.Namespace) -> int:
  if args.direction == "gin":
    from t5like.cli.convert_gin import convert_gin

    return convert_gin(args)
  if args.target is None or args.out:
    raise UserError(
      f"convert {args.direction} needs a new folder to write to", try_=f"t5like convert {args.direction} SOURCE FOLDER"
    )
  for name in ("source", "target"):
    storage.check_reachable(getattr(args, name), name)
  target = storage.as_path(args.target).absolute()
  if target.exists() and (not target.is_dir() or any(target.iterdir())):
    raise UserError(f"{target} is not empty", expected="a new folder: conversion overwrites nothing")
  if args.direction == "to_hf":
    return _export(args, target)
  return _import(args, target)


def _import(args: argparse.Namespace, target: Path) -> int:
  from t5like.experiments.compatibility import model_fingerprint
  from t5like.training.checkpoints import check_fingerprint, save_parameters
  from t5like.vocabularies import copy_vocabulary

  source = storage.as_path(args.source)
  expected = _expected_config(args)
  here = storage.download_tree(source, storage.mirror_folder(source)) if storage.is_remote(source) else source
  imported = _read(args, here, expected)
  if args.dtype:
    imported = _cast(imported, args.dtype)
  name, vocabulary = _vocabulary(args.vocabulary, source, imported.model.config)
  fingerprint = model_fingerprint(imported.model.config, vocabulary)
  if expected is not None:
    expected = dataclasses.replace(expected, param_dtype=imported.model.config.param_dtype)
    check_fingerprint(fingerprint, model_fingerprint(expected, vocabulary), source)
    imported = dataclasses.replace(imported, model=imported.model.clone(config=expected))
  save_parameters(target, imported.params, step=0, fingerprint=fingerprint)
  if vocabulary is not None:
    name = copy_vocabulary(name, vocabulary, target)
  (target / "config.gin").write_text(_config_text(imported, name, source, target))
  (target / REPORT).write_text(imported.report.full() + "\n")
  print(f"{_describe(imported.params)} from {source}\n{imported.report.summary()}")
  print(f"model directory: {target}  (every tensor: {REPORT})")
  return 0


def _read(args: argparse.Namespace, source: Path, expected: TransformerConfig | None) -> Imported:
  from t5like.interop import huggingface, t5x

  scan_layers = args.scan_layers if expected is None else expected.scan_layers
  if args.direction == "from_t5x":
    return t5x.load(source, expected, scan_layers=scan_layers)
  return huggingface.load(source, scan_layers=scan_layers)


def _expected_config(args: argparse.Namespace) -> TransformerConfig | None:
  """The model that --gin_file describes, None where none is given."""
  from t5like.experiments.reading import read_model

  if not args.gin_file:
    if args.gin_overrides:
      raise UserError("--gin options change a gin file's model", try_="--gin_file=models/t5/small.gin beside them")
    return None
  # A run file binds MODEL and VOCABULARY; what else it needs has no part in a conversion.
  files = [*args.gin_file, "runs/finetune.gin"]
  config = read_model(files, args.gin_overrides, gin_search_paths(args)).model.config
  return dataclasses.replace(config, scan_layers=config.scan_layers or args.scan_layers)


def _vocabulary(given: str | None, source: Path, config: TransformerConfig) -> tuple[str, Vocabulary | None]:
  """The vocabulary's name or file, and the vocabulary itself where it can be loaded.

  The one asked for; else the one beside the checkpoint; else what published
  checkpoints of this size were trained with. None of these: the weights are converted all the same.
  """
  from t5like.experiments.compatibility import check_vocabulary
  from t5like.inference.vocabulary import PUBLISHED
  from t5like.vocabularies import load_vocabulary, vocabulary_in

  beside = None if given else vocabulary_in(source)
  name = given or (str(beside.absolute()) if beside else PUBLISHED.get(config.vocab_size, "unknown"))
  try:
    vocabulary = load_vocabulary(name)
  except UserError:
    if given or beside:
      raise
    print(f"the vocabulary ({name}) is not at hand: the weights are converted, text needs --vocabulary=FILE")
    return name, None
  check_vocabulary(config, name, vocabulary)
  return name, vocabulary


def _cast(imported: Imported, dtype: str) -> Imported:
  config = dataclasses.replace(imported.model.config, param_dtype=dtype)
  return dataclasses.replace(
    imported, model=imported.model.clone(config=config), params=_cast_params(imported.params, dtype)
  )


def _cast_params(params: dict, dtype: str) -> dict:
  import jax

  return jax.tree.map(lambda x: x.astype(jax.numpy.dtype(dtype)), params)


def _config_text(imported: Imported, vocabulary: str, source: Path, target: Path) -> str:
  """A config.gin that rebuilds the model, and with a task trains or scores it."""
  config, name = imported.model.config, type(imported.model).__name__
  defaults = {field.name: field.default for field in dataclasses.fields(config)}
  fields = {k: v for k, v in dataclasses.asdict(config).items() if v != defaults[k] and k != "dropout_rate"}
  # A T5X checkpoint does not record its dropout: that of runs/finetune.gin holds.
  dropout = [f"DROPOUT_RATE = {config.dropout_rate!r}"] if config.dropout_rate or imported.model_type != "t5x" else []
  return "\n".join([
    f"# Converted from {source} by `t5like convert`.",
    "",
    "include 'runs/finetune.gin'",
    "",
    f"MODEL = @{name}()",
    f"{name}.config = @TransformerConfig()",
    *(f"TransformerConfig.{field} = {value!r}" for field, value in fields.items()),
    "TransformerConfig.dropout_rate = %DROPOUT_RATE",
    *dropout,
    "",
    f"VOCABULARY = {vocabulary!r}",
    f"MODEL_DIR = {str(target)!r}",
    "TASK = ''",
    "INIT_FROM = None",
    "",
  ])  # fmt: skip


def _export(args: argparse.Namespace, target: Path) -> int:
  from t5like.inference.vocabulary import find_vocabulary
  from t5like.interop import huggingface
  from t5like.interop.layouts import check_parameters, flatten
  from t5like.training.checkpoints import load_parameters

  source = storage.as_path(args.source).absolute()
  if args.gin_file or args.gin_overrides or args.scan_layers:
    raise UserError(
      "to_hf takes the model as its directory has it", expected="no options but --step, --dtype and --vocabulary"
    )
  experiment = load_experiment(source, task_modules(args))
  try:
    _, vocabulary = find_vocabulary(source, experiment.model.config, args.vocabulary, experiment.vocabulary)
  except UserError as error:
    if args.vocabulary:
      raise
    vocabulary = None
    print(f"no tokenizer is written: {error.what} (--vocabulary=NAME_OR_FILE)")
  params = load_parameters(source, args.step, average=args.average)
  check_parameters(experiment.model, flatten(params), str(source))
  if args.dtype:
    params = _cast_params(params, args.dtype)
  with tempfile.TemporaryDirectory(prefix="t5like-") as temporary:
    folder = Path(temporary) if storage.is_remote(target) else target
    huggingface.save(folder, experiment.model, params, "mt5" if experiment.vocabulary == "mt5" else None, vocabulary)
    if vocabulary is not None:
      _save_tokenizer(folder, experiment, vocabulary)
    if storage.is_remote(target):
      storage.upload_tree(folder, target)
  print(f"{_describe(params)} to {target}\nread them with transformers' from_pretrained({str(target)!r})")
  return 0


def _save_tokenizer(folder: Path, experiment: Experiment, vocabulary: Vocabulary) -> None:
  from t5like.inference.model import prompt_form
  from t5like.interop.hf_tokenizers import Around, save_tokenizer

  form, config = prompt_form(experiment.model, vocabulary, experiment), experiment.model.config
  positions = config.max_positions if config.positions == "learned" else None
  save_tokenizer(folder, vocabulary, Around(form.start, form.end), positions, config.num_token_types > 1)


def _describe(params: dict) -> str:
  import jax

  leaves = jax.tree.leaves(params)
  return f"{sum(x.size for x in leaves):,} parameters in {len(leaves)} arrays"
