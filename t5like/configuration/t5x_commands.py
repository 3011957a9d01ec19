"""Translates T5X's gin files: training to gin, eval.py and infer.py to commands, whose settings are options here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from t5like.configuration.t5x_defaults import our_task
from t5like.configuration.t5x_files import T5XConfiguration, read_t5x_file
from t5like.configuration.t5x_names import lookup
from t5like.configuration.t5x_translation import (
  SIZES,
  model_partitions,
  task_modules,
  translate_training,
  untranslated_lines,
)
from t5like.errors import UserError

# Placeholders for values that the file does not set.
_CHECKPOINT, _MODEL_DIR = "CHECKPOINT_PATH", "MODEL_DIR"
_DECODING_OPTIONS = ("--max_length", "--beams", "--length_penalty", "--temperature", "--top_k", "--top_p")
# Settings that eval.py and infer.py require but do not use.
_UNUSED = (
  "DROPOUT_RATE", "DatasetConfig.shuffle", "DatasetConfig.seed", "DatasetConfig.use_cached", "DatasetConfig.pack",
  "DatasetConfig.module", "DatasetConfig.use_custom_packing_ops",
)  # fmt: skip


def translate_file(
  path: Path, overrides: Sequence[tuple[str, str]], folders: Sequence[Path], name: str
) -> tuple[str, list[str]]:
  """Translates a T5X gin file.

  Args:
    path: the T5X file.
    overrides: values of T5X's macros.
    folders: search path of included files.
    name: of the new file, for its header.

  Returns:
    The text of a gin file, or of the equivalent commands, and the lines that could not be translated.
  """
  source = read_t5x_file(path, overrides, folders)
  if not source.settings and not source.unread:
    raise UserError(f"no settings in {path}", expected="a T5X gin file")
  origin = f"Translated from {path.name} by `t5like convert gin`."
  kind = command_kind(source)
  if kind == "train":
    result = translate_training(source)
    header = f"{origin}\n\n  t5like train --gin_file={name} --gin.MODEL_DIR=..."
    return result.gin_text(header), result.untranslated
  commands, untranslated = translate_command(source, kind)
  lines = [f"# {origin} In t5like this is a command, not a gin file.", *commands]
  if untranslated:
    lines += ["", "# Not translated:", *(f"#   {' '.join(line.split())}" for line in untranslated)]
  return "\n".join(lines) + "\n", untranslated


def command_kind(source: T5XConfiguration) -> str:
  """Returns 'train', 'eval' or 'infer', from the run file or the script that the file configures."""
  if source.run is not None:
    return "train" if source.run in ("pretrain", "finetune") else source.run
  scripts = {key.split("/")[-1].split(".")[0] for key in source.settings}
  if "save" in scripts:
    raise UserError("T5X's export is not supported", try_="t5like convert to_hf, for Hugging Face's libraries")
  return "eval" if "evaluate" in scripts else "infer" if "infer" in scripts else "train"


def translate_command(source: T5XConfiguration, kind: str) -> tuple[list[str], list[str]]:
  """Returns the shell commands, and the lines that could not be translated."""
  names = ("RestoreCheckpointConfig.path", "CHECKPOINT_PATH", "INITIAL_CHECKPOINT_PATH")
  path = next(filter(None, [source.get(name) for name in names]), _CHECKPOINT)
  mode = source.get("RestoreCheckpointConfig.mode", "specific")
  path = str(path[0] if isinstance(path, list | tuple) and path else path)
  task = source.first("DatasetConfig.mixture_or_task_name", "MIXTURE_OR_TASK_NAME", default="TASK")
  ours = our_task(str(task))
  model = f" --gin_file={source.model}" if source.model else ""
  sizes = [f" --gin.{lookup(name).ours}={source.get(name)}" for name in SIZES if source.has(name)]
  read = [f"t5like convert from_t5x {shlex.quote(path)} {_MODEL_DIR}{model}{''.join(sizes)}"]
  options: dict[str, Any] = {"--model_dir" if kind == "eval" else "--model": _MODEL_DIR, "--task": ours or task}
  if modules := task_modules(source, bool(ours)):
    options["--task_modules"] = ",".join(modules)
  options["--split"] = source.get("DatasetConfig.split", "test")
  options["--batch_size"] = source.get("DatasetConfig.batch_size", 32)
  lengths = source.first("DatasetConfig.task_feature_lengths", "TASK_FEATURE_LENGTHS")
  if isinstance(lengths, dict):
    options["--inputs_length" if kind == "eval" else "--max_inputs"] = lengths.get("inputs")
    options["--max_length"] = lengths.get("targets")
  options |= _decoding(source)
  options["--examples"] = source.get("Evaluator.num_examples")
  options |= _output(source, kind)
  if scores := kind == "infer" and source.get("infer.mode", "predict") == "score":  # generates nothing
    options = {name: value for name, value in options.items() if name not in _DECODING_OPTIONS}
  words = [f"{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None]
  words += ["--truncate"] if "--max_inputs" in options else []
  words += ["--score"] if scores else []
  partitions = model_partitions(source)
  if kind == "infer" and partitions > 1:
    words.append(f"--mesh=data=-1,tensor={partitions}")
  source.mark(*_UNUSED)
  untranslated = untranslated_lines(source)
  if mode == "all":
    untranslated.append("RestoreCheckpointConfig.mode = 'all'  (convert and evaluate one checkpoint after the other)")
  if kind == "eval" and partitions > 1:
    untranslated.append(f"PjitPartitioner.num_partitions = {partitions}  (eval uses the mesh of the model directory)")
  if source.is_decoder:
    untranslated.append(f"the checkpoint {path!r}  (from_t5x cannot read T5X's decoders)")
  return [*([] if source.is_decoder else read), f"t5like {kind} " + " \\\n    ".join(words)], untranslated


def _decoding(source: T5XConfiguration) -> dict[str, Any]:
  """Returns the options of sampling, where 0 means no limit, or of beam search."""
  names = {"temperature": "temperature", "topk": "top_k", "topp": "top_p"}
  found = {f"--{ours}": source.get(f"temperature_sample.{theirs}") or None for theirs, ours in names.items()}
  if any(found.values()):  # its num_decodes are samples, of which T5X keeps the likeliest
    source.mark("EncoderDecoderModel.decode_fn")
    return found
  beams = source.get("predict_batch_with_aux.num_decodes", 1)
  return {} if beams == 1 else {"--beams": beams, "--length_penalty": source.get("beam_search.alpha")}


def _output(source: T5XConfiguration, kind: str) -> dict[str, str]:
  names = ("evaluate.output_dir", "EVAL_OUTPUT_DIR") if kind == "eval" else ("infer.output_dir", "INFER_OUTPUT_DIR")
  folder = source.first(*names)
  if kind == "eval":
    return {"--out": folder} if folder else {}
  return {"--output": str(PurePosixPath(folder or ".") / "answers.jsonl").replace("gs:/", "gs://", 1)}
