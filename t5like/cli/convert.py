"""Import a model from Hugging Face or T5X, or export one to Hugging Face: bit for bit, unless --dtype casts.
Translate a T5X gin file.

  t5like convert from_hf  ~/downloads/t5-small            ~/runs/t5_small
  t5like convert from_t5x ~/downloads/t5_1_1/checkpoint_1000000  ~/runs/t5_1_1
  t5like convert to_hf    ~/runs/t5_small                 ~/exported
  t5like convert merge     ~/runs/t5_lora        ~/runs/t5_merged
  t5like convert to_hf     ~/runs/t5_lora        ~/exported  --merge
  t5like convert to_peft   ~/runs/t5_lora        ~/exported_lora
  t5like convert from_peft ~/downloads/lora      ~/runs/t5_lora  --base=~/downloads/t5-small
  t5like convert gin      my_t5x_finetune.gin  --out=my_finetune.gin

An imported model is a model directory like that of a run: evaluate it with `t5like eval`, or fine-tune it with
--gin.INIT_FROM. Its conversion.txt lists every tensor used, missing and unexpected. With --gin_file the checkpoint must
match that file's model; otherwise sizes are read from the checkpoint.

A run with a method such as LoRA saves only what it trains. `merge` and `to_hf --merge` write base and update as one
model; `to_peft` and `from_peft` exchange the update with Hugging Face's peft. --base is where the base is now.

`gin` prints a gin file for `t5like train`, or the commands for T5X's eval and infer files, and lists what it could not
translate. --gin.NAME=VALUE sets macros that the T5X file leaves open. Modules named in the file are not imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from t5like.cli.options import add_gin_arguments, add_task_modules, gin_search_paths, task_modules
from t5like.errors import UserError
from t5like.files import storage

if TYPE_CHECKING:  # importing jax would slow down --help
  from t5like.inference.converting import Conversion
  from t5like.models import TransformerConfig

_LIBRARIES = {"from_hf": "huggingface", "from_t5x": "t5x"}


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("direction", choices=("from_hf", "from_t5x", "to_hf", "merge", "to_peft", "from_peft", "gin"))
  parser.add_argument("source", help="a checkpoint of the other library; to_hf: a model directory; gin: a gin file")
  parser.add_argument("target", nargs="?", help="a new folder; gin: none")
  parser.add_argument("--out", metavar="FILE", help="gin: output file (default: standard output)")
  parser.add_argument("--vocabulary", help="name or file (default: next to the checkpoint, or by its size)")
  parser.add_argument("--scan_layers", action="store_true", help="store stacked layers, for SCAN_LAYERS = True")
  parser.add_argument(
    "--dtype", choices=("float32", "bfloat16", "float16"), help="cast parameters (default: as stored)"
  )
  parser.add_argument("--base", metavar="FOLDER", help="the base of a run with a method such as LoRA")
  parser.add_argument("--merge", action="store_true", help="to_hf: write base and update of such a run as one model")
  parser.add_argument("--step", type=int, help="to_hf: the checkpoint's step (default: the newest)")
  parser.add_argument(
    "--average", action="store_true", help="to_hf: the moving average of the parameters, of a run with ema_decay"
  )
  add_task_modules(parser)
  add_gin_arguments(parser)


def run(args: argparse.Namespace) -> int:
  if args.direction == "gin":
    return _translate(args)
  if args.target is None or args.out:
    raise UserError(
      f"convert {args.direction} needs a new folder to write to", try_=f"t5like convert {args.direction} SOURCE FOLDER"
    )
  storage.check_reachable(args.source, "source")
  if args.direction in ("merge", "to_peft", "from_peft") or args.merge:
    return _convert_tuned(args)
  return _export(args) if args.direction == "to_hf" else _import(args)


def _import(args: argparse.Namespace) -> int:
  from t5like.inference import converting
  from t5like.interop.new_folders import new_folder

  target = new_folder(args.target)
  settings = converting.ImportSettings(
    args.source,
    target,
    _LIBRARIES[args.direction],
    args.vocabulary,
    args.scan_layers,
    args.dtype,
    _expected_config(args),
  )
  done = converting.import_checkpoint(settings)
  if done.note:
    print(f"{done.note} (set --vocabulary=FILE to read text)")
  print(f"{_describe(done)} from {storage.as_path(args.source)}\n{done.summary}")
  print(f"model directory: {done.target}  (all tensors: {converting.REPORT})")
  return 0


def _export(args: argparse.Namespace) -> int:
  from t5like.inference import converting
  from t5like.interop.new_folders import new_folder
  from t5like.interop.sentence_modules import MODULES

  target = new_folder(args.target)
  if args.gin_file or args.gin_overrides or args.scan_layers:
    raise UserError("to_hf exports the model unchanged", expected="only --step, --average, --dtype and --vocabulary")
  done = converting.export_model(
    converting.ExportSettings(
      args.source, target, args.vocabulary, args.dtype, args.step, args.average, task_modules(args)
    )
  )
  if done.note:
    print(f"{done.note} (--vocabulary=NAME_OR_FILE)")
  embeds = (done.target / MODULES).exists()
  reader = "sentence_transformers.SentenceTransformer" if embeds else "transformers' from_pretrained"
  print(f"{_describe(done)} to {done.target}\nload them with {reader}({str(done.target)!r})")
  return 0


def _convert_tuned(args: argparse.Namespace) -> int:
  from t5like.inference import tuned_conversions

  if args.direction == "from_peft":
    if not args.base:
      raise UserError(
        "convert from_peft needs the base", try_="--base=FOLDER: a Hugging Face folder or model directory"
      )
    done = tuned_conversions.from_peft(args.source, args.base, args.target, args.vocabulary)
  else:
    settings = tuned_conversions.TunedSettings(
      args.source, args.target, args.base, args.vocabulary, args.dtype, args.step, task_modules(args)
    )
    if args.direction == "to_peft":
      done = tuned_conversions.to_peft(settings)
    else:
      done = tuned_conversions.merge_model(settings, hugging_face=args.direction == "to_hf")
  print(f"{done.parameters:,} parameters to {done.target}")
  return 0


def _translate(args: argparse.Namespace) -> int:
  """Prints or writes the translation; reports untranslated lines on stderr."""
  from t5like.configuration.t5x_commands import translate_file

  if args.target is not None:
    raise UserError("convert gin takes no target folder", given=args.target, try_=f"--out={args.target}")
  if args.gin_file:
    raise UserError("convert gin takes one T5X file", try_=f"t5like convert gin {args.gin_file[0]}")
  path = storage.local_path(args.source, "the gin file")
  out = Path(args.out).expanduser() if args.out else None
  if out is not None and out.exists():
    raise UserError(f"{out} already exists", expected="a new file (convert never overwrites)")
  folders = [Path(folder).expanduser() for folder in gin_search_paths(args)]
  text, left_out = translate_file(path, args.gin_overrides, folders, str(args.out or "FILE.gin"))
  if out is None:
    print(text, end="")
  else:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
  wrote = f"{out}: " if out else ""
  print(f"{wrote}lines not translated: {len(left_out)}", file=sys.stderr)
  for line in left_out:
    print(f"  {' '.join(line.split())}", file=sys.stderr)
  return 0


def _expected_config(args: argparse.Namespace) -> TransformerConfig | None:
  """Returns the config of the model in --gin_file; None if it is not given."""
  from t5like.experiments.reading import read_model

  if not args.gin_file:
    if args.gin_overrides:
      raise UserError("--gin.NAME=VALUE needs --gin_file", try_="--gin_file=models/t5/small.gin")
    return None
  # A run file is needed for MODEL and VOCABULARY.
  files = [*args.gin_file, "runs/finetune.gin"]
  config = read_model(files, args.gin_overrides, gin_search_paths(args)).model.config
  return dataclasses.replace(config, scan_layers=config.scan_layers or args.scan_layers)


def _describe(done: Conversion) -> str:
  return f"{done.parameters:,} parameters in {done.arrays} arrays"
