"""Run a model on a file, standard input, a task, or interactively.

  t5like infer --model=~/runs/demo                                      interactive prompt
  t5like infer --model=~/downloads/t5-small --input=questions.txt       JSON lines to standard output
  t5like infer --model=~/runs/demo --input=rows.jsonl --field=question --output=answers.jsonl --beams=4
  t5like infer --model=~/runs/demo_snli --task=snli --split=validation --output=snli.jsonl
  t5like infer --model=~/downloads/gpt2 --input=texts.txt --score       log-likelihoods
  t5like infer --model=~/downloads/gpt2 --input=reviews.txt --candidates=labels.txt
  t5like infer --model=~/downloads/bert --input=gaps.txt --fill_mask    also --embed, --neighbors=FILE
  t5like infer --model=~/downloads/bert --input=texts.txt --attention=page.html     a page with the heads of every layer
  t5like infer --model=~/downloads/bert --input=texts.txt --word=bank --neighbors=FILE      nearest words in context
  t5like infer --model=~/runs/bert_sst2 --input=reviews.txt             labels and probabilities, of a model with a head
  t5like infer --model=~/downloads/t5-base --adapters=nli=~/runs/nli_lora --adapters=qa=~/runs/qa_lora --adapter=nli

A head reads these fields of JSON lines besides the text: second (of a pair), passage (of a question), choices; or
instead of the text: words (to tag). Rows for training can be read, too: text, text_pair, tokens.

The model is a model directory or a Hugging Face folder. Run a killed command again to resume it: no row of --output is
repeated or lost, and rows keep their order.

Exit status: 0 all rows answered; 1 some rows rejected, or the run failed; 2 invalid arguments or input.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from t5like.cli.decoding_options import add_decoding_arguments, given_options
from t5like.cli.options import add_languages, add_task_modules, at_least, option_lines, task_modules
from t5like.errors import InvalidSetting, UserError, nearest
from t5like.files import storage

if TYPE_CHECKING:  # importing jax would slow down --help
  from t5like.inference.batch_inference import InferenceSettings
  from t5like.inference.job_settings import JobSettings
  from t5like.inference.jobs import Job
  from t5like.inference.model import Model
  from t5like.parallel import MeshAxes

# Options that select a job other than generation, and how to build it from `job_settings`. If two are given together,
# the first one is the job.
_JOBS: dict[str, Callable[[Any, argparse.Namespace], Any]] = {
  "score": lambda jobs, args: jobs.Score(args.target_field),
  "candidates": lambda jobs, args: jobs.Rank(file=args.candidates, per_token=args.per_token),
  "candidates_field": lambda jobs, args: jobs.Rank(field=args.candidates_field, per_token=args.per_token),
  "fill_mask": lambda jobs, args: jobs.Fill(args.top),
  "attention": lambda jobs, args: jobs.Generate(given_options(args)),  # what a decoder reads: see _run_page
  "neighbors": lambda jobs, args: _nearest(jobs, args),
  "embed": lambda jobs, args: jobs.Embed(_pooling(args)),
}
_OWN = "own"
_FILES = ("input", "candidates", "neighbors")


def configure(parser: argparse.ArgumentParser) -> None:
  _add_model_arguments(parser)
  group = parser.add_argument_group("input")
  group.add_argument("--input", metavar="FILE", help="text or JSON lines, also .gz; -: standard input")
  group.add_argument("--format", choices=("text", "jsonl"), help="format of the input (default: from the file name)")
  group.add_argument("--field", metavar="NAME", help="JSON field with the text (default: inputs)")
  group.add_argument("--task", help="a task or mixture with inputs")
  group.add_argument("--split", default="validation", help="split of the task (default: validation)")
  group.add_argument(
    "--examples", type=int, default=0, metavar="N", help="maximum number of examples per task (default: all)"
  )
  add_task_modules(group)
  group.add_argument("--cache_dir", metavar="DIR", help="folder of token caches (default: ~/.cache/t5like)")
  group.add_argument("--max_inputs", type=int, metavar="N", help="maximum tokens per row (default: the model's limit)")
  group.add_argument("--truncate", action="store_true", help="cut rows that are too long instead of rejecting them")
  group.add_argument("--strict", action="store_true", help="stop at the first rejected row")

  group = parser.add_argument_group("output")
  group.add_argument("--output", metavar="FILE", help="JSON lines, or .npy for --embed (default: standard output)")
  group.add_argument("--overwrite", action="store_true", help="replace an existing output")
  group.add_argument("--batch_size", type=int, default=32, metavar="N", help="rows per batch (default: 32)")

  group = parser.add_argument_group("instead of generating text")
  group.add_argument("--score", action="store_true", help="log-likelihood of each row's target, or of each line")
  group.add_argument(
    "--target_field", default="targets", metavar="NAME", help="field of the target, for --score (default: targets)"
  )
  group.add_argument("--candidates", metavar="FILE", help="rank these answers, one per line, by log-likelihood")
  group.add_argument("--candidates_field", metavar="NAME", help="rank the answers listed in this field")
  group.add_argument("--per_token", action="store_true", help="rank by mean log-likelihood per token")
  group.add_argument("--fill_mask", action="store_true", help="most likely tokens for each [MASK]")
  group.add_argument(
    "--no_answer_threshold",
    type=float,
    metavar="X",
    help="no answer if its score exceeds the best span's by more (default: as tuned in training; inf: always answer)",
  )
  group.add_argument(
    "--embed",
    nargs="?",
    const=_OWN,
    metavar="POOLING",
    help="embedding of each row: mean, cls, max, last, weighted_mean (default: the model's own, or mean)",
  )
  group.add_argument(
    "--neighbors",
    "--neighbours",
    metavar="FILE",
    help="nearest lines of this file, or vectors of a .npy file, by cosine similarity",
  )
  group.add_argument(
    "--word",
    nargs="?",
    const="",
    metavar="WORD",
    help="with --neighbors: nearest words of its texts to this word of each row, or to that in the field 'word'",
  )
  group.add_argument(
    "--layer", type=int, metavar="N", help="of the states of --word: 0 are the embeddings (default: -1, the last)"
  )
  group.add_argument(
    "--top", type=at_least(1), default=5, metavar="N", help="tokens per mask, or neighbors (default: 5)"
  )
  group.add_argument(
    "--attention", metavar="PAGE.html", help="write the attention weights of all heads and layers to a page"
  )
  add_decoding_arguments(parser)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("model")
  group.add_argument("--model", required=True, metavar="DIR", help="a model directory or a Hugging Face folder")
  group.add_argument("--base", metavar="DIR", help="the base of a run with a method such as LoRA, if it has moved")
  group.add_argument(
    "--adapters", action="append", default=[], metavar="NAME=DIR", help="a run with such a method on this model"
  )
  group.add_argument("--adapter", metavar="NAME", help="one of --adapters to use; :adapter NAME at the prompt switches")
  group.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")
  group.add_argument("--average", action="store_true", help="use the moving average of the parameters")
  group.add_argument("--vocabulary", metavar="NAME", help="name or file (default: the model's own)")
  add_languages(group)
  group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="compute dtype (default: the model's)")
  group.add_argument("--mesh", metavar="AXES", help="such as data=2,tensor=4 (default: the run's, or data=-1)")


def run(args: argparse.Namespace) -> int:
  _check_options(args)
  from t5like import parallel

  parallel.start(config=option_lines(args))
  interactive = not args.input and not args.task and sys.stdin.isatty()
  local = _local_files(args, interactive)
  with _errors_as_options():
    settings = _settings(args, local)
    model = _load(args)
    if not args.attention:
      settings = _for_head(model, settings, args.no_answer_threshold)
    if args.attention:
      return _run_page(args, model, settings)
    if interactive:
      return _run_prompt(args, model, settings)
    from t5like.inference.batch_inference import answer_rows

    return 1 if answer_rows(model, settings) else 0


def _check_options(args: argparse.Namespace) -> None:
  """Raises UserError for conflicting options, before anything is loaded."""
  jobs = [name for name in _JOBS if getattr(args, name)]
  if len(jobs) > 1 and jobs != ["neighbors", "embed"]:
    raise UserError(f"--{jobs[0]} and --{jobs[1]} are mutually exclusive", expected="one of them")
  decoding = given_options(args)
  if jobs and jobs != ["attention"] and decoding:
    raise UserError(f"--{jobs[0]} generates no text and cannot be combined with --{next(iter(decoding))}")
  if args.word is not None and (not args.neighbors or args.embed):
    raise UserError("--word needs --neighbors=FILE with texts, without --embed")
  if args.layer is not None and args.word is None:
    raise UserError("--layer needs --word=WORD", expected="the layer of its states")
  if args.attention and args.output:
    raise UserError("--attention writes a page and no other output", try_="without --output")
  if args.attention and not args.input and not args.task and sys.stdin.isatty():
    raise UserError("--attention needs texts", try_="--input=FILE, or --task=TASK")
  if args.input and args.task:
    raise UserError("--input and --task are mutually exclusive", expected="one of them")
  if args.output and args.output.endswith(".npy") and (not args.embed or args.neighbors):
    remedy = "--output=FILE.jsonl" + ("" if args.neighbors else ", or --embed=mean")
    raise UserError("only embeddings can be written to a .npy file", try_=remedy)


def _local_files(args: argparse.Namespace, interactive: bool) -> dict[str, str | None]:
  """Returns local copies of the input files, before a model is loaded. Every process needs them."""
  import jax

  given = {name: getattr(args, name) for name in _FILES}
  if not args.input and not args.task and not interactive:
    given["input"] = "-"
  if jax.process_count() > 1 and (interactive or given["input"] == "-"):
    raise UserError("standard input is not available with several processes", try_="--input=FILE")
  return {name: path and _local_file(path, name, args.output) for name, path in given.items()}


def _local_file(path: str, name: str, output: str | None) -> str:
  """Returns the path of a file, or of its local copy if it is remote; raises UserError if it is also the output."""
  if path == "-":
    return path
  storage.check_reachable(path, f"--{name}")
  file = storage.as_path(path)
  if not storage.is_remote(path) and (not os.path.exists(file) or os.path.isdir(file)):
    raise UserError(f"no file {path}", option=f"--{name}")
  if output and _resolved(output) == _resolved(path):
    raise UserError(f"--output and --{name} are the same file", given=path)
  try:
    return str(storage.local_copy(file))
  except FileNotFoundError:
    raise UserError(f"no file {path}", option=f"--{name}") from None
  except OSError as error:
    raise UserError(f"cannot read {path}", because=error.strerror or error) from None


def _resolved(path: str) -> object:
  return storage.as_path(path) if storage.is_remote(path) else os.path.realpath(storage.as_path(path))


def _settings(args: argparse.Namespace, local: dict[str, str | None]) -> InferenceSettings:
  from t5like.inference.batch_inference import InferenceSettings

  job = _job(argparse.Namespace(**vars(args) | local))
  same = {field.name for field in dataclasses.fields(InferenceSettings)} & set(vars(args)) - {"input"}
  given = {name: getattr(args, name) for name in same}
  return InferenceSettings(job=job, input=local["input"], modules=task_modules(args), **given)


def _for_head(model: Model, settings: InferenceSettings, threshold: float | None) -> InferenceSettings:
  """Returns settings that predict labels or embed, if the model has a head and no other job was chosen."""
  from t5like.inference.job_settings import Embed, Generate, Labels
  from t5like.models.heads import WithHead

  if not isinstance(model.module, WithHead) or not isinstance(settings.job, Generate):
    if threshold is not None:
      raise UserError("--no_answer_threshold needs a model that was trained to find answers, such as on squad_v2_spans")
    return settings
  if settings.job.decoding:
    raise UserError(f"a head does not decode: --{next(iter(settings.job.decoding))} has no effect")
  return dataclasses.replace(settings, job=Embed() if model.module.head.form == "embedding" else Labels(threshold))


def _nearest(jobs: Any, args: argparse.Namespace) -> JobSettings:
  if args.word is not None:
    return jobs.NearestWords(args.neighbors, args.word, -1 if args.layer is None else args.layer, args.top)
  return jobs.Nearest(args.neighbors, _pooling(args), args.top)


def _pooling(args: argparse.Namespace) -> str | None:
  return None if args.embed == _OWN else args.embed


def _job(args: argparse.Namespace) -> JobSettings:
  from t5like.inference import job_settings

  name = next((name for name in _JOBS if getattr(args, name)), None)
  return _JOBS[name](job_settings, args) if name else job_settings.Generate(given_options(args))


@contextmanager
def _errors_as_options() -> Iterator[None]:
  """Rephrases errors about settings in terms of command-line options."""
  from t5like.parallel import MeshError

  try:
    yield
  except InvalidSetting as error:
    raise error.as_option() from None
  except MeshError as error:
    raise error.with_suggestions(
      lambda axes: "--mesh=" + ",".join(f"{axis}={size}" for axis, size in axes.items())
    ) from None


def _load(args: argparse.Namespace) -> Model:
  from t5like.console import warn
  from t5like.evaluation.following import agreed_step
  from t5like.inference import load
  from t5like.inference.batch_inference import vocabulary_warnings

  more = (task_modules(args), args.base, _adapters(args), args.languages)
  model = load(args.model, args.vocabulary, _mesh_axes(args.mesh), args.dtype, *more).use(args.adapter)
  step = agreed_step(model, args.step)
  for warning in vocabulary_warnings(model):
    warn(warning)
  return model.at(step, args.average)


def _adapters(args: argparse.Namespace) -> dict[str, str]:
  pairs = [given.partition("=") for given in args.adapters]
  for name, sign, folder in pairs:
    if not (name and sign and folder):
      raise UserError(f"invalid --adapters={name}{sign}{folder}", expected="NAME=DIR, as in --adapters=nli=~/runs/nli")
  return {name: folder for name, _, folder in pairs}


def _mesh_axes(given: str | None) -> MeshAxes | None:
  from t5like.parallel import MeshAxes

  if not given:
    return None
  axes = {}
  names = [field.name for field in dataclasses.fields(MeshAxes)]
  for part in given.split(","):
    name, _, size = part.partition("=")
    if name not in names or (name != "preset" and not size.lstrip("-").isdigit()):
      raise UserError(f"invalid --mesh={given}", expected="sizes such as data=2,tensor=4", nearest=nearest(name, names))
    axes[name] = size if name == "preset" else int(size)
  return MeshAxes(**axes)


def _run_page(args: argparse.Namespace, model: Model, settings: InferenceSettings) -> int:
  from t5like.console import say
  from t5like.inference.inside.page_file import write_attention_page

  rejected = write_attention_page(model, settings, args.attention, args.target_field)
  say(f"wrote {args.attention}")
  return 1 if rejected else 0


def _run_prompt(args: argparse.Namespace, model: Model, settings: InferenceSettings) -> int:
  from t5like.cli.infer_prompt import InteractivePrompt
  from t5like.inference.job_settings import Fill, Generate

  if args.output:
    raise UserError("--output needs a file or a task as input", try_="--input=FILE, or --task=TASK")
  if args.score or args.candidates_field:
    raise UserError("the interactive prompt cannot score or rank fields", try_="--input=FILE of JSON lines")

  def build(model: Model) -> Job:
    job = _for_head(model, settings, args.no_answer_threshold).job
    if model.module.batch_layout == "encoder" and isinstance(job, Generate):
      job = Fill(args.top)
    return job.build(model, settings.reading("text"))

  return InteractivePrompt(model, build, given_options(args)).run()
