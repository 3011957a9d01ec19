"""Answer text with a model: a file, standard input, a task, or at a prompt.

  t5like infer --model=~/runs/demo                                      a prompt, in a terminal
  t5like infer --model=~/downloads/t5-small --input=questions.txt       JSON lines to standard output
  t5like infer --model=~/runs/demo --input=rows.jsonl --field=question --output=answers.jsonl --beams=4
  t5like infer --model=~/runs/demo_snli --task=snli --split=validation --output=snli.jsonl
  t5like infer --model=~/downloads/gpt2 --input=texts.txt --score       log-likelihoods
  t5like infer --model=~/downloads/gpt2 --input=reviews.txt --candidates=labels.txt
  t5like infer --model=~/downloads/bert --input=gaps.txt --fill_mask    also --embed=mean, --neighbours=FILE

The model is a model directory or a Hugging Face folder. A command that was killed goes on when it is given again:
no row of --output is repeated or lost, and rows keep their order.

Exit status: 0 all rows answered; 1 some were refused, or it failed on the way; 2 bad input, nothing begun.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5like.cli.decoding_options import add_decoding_arguments, given_options
from t5like.cli.options import add_task_modules, task_modules
from t5like.errors import UserError, nearest
from t5like.files import storage

if TYPE_CHECKING:  # help must not wait for jax
  from t5like.inference.jobs import Job, Limits
  from t5like.inference.model import LoadedModel
  from t5like.inference.rows import Rows
  from t5like.parallel import MeshAxes

_SPARE_ROWS = 1024
_JOBS = ("score", "candidates", "candidates_field", "fill_mask", "neighbours", "embed")


def configure(parser: argparse.ArgumentParser) -> None:
  _add_model_arguments(parser)
  group = parser.add_argument_group("what to answer")
  group.add_argument("--input", metavar="FILE", help="text or JSON lines, .gz too; - is standard input")
  group.add_argument("--format", choices=("text", "jsonl"), help="of the input (default: by its name)")
  group.add_argument("--field", metavar="NAME", help="of JSON lines, that has the text (default: inputs)")
  group.add_argument("--task", help="a task or mixture with inputs")
  group.add_argument("--split", default="validation", help="of the task (default: validation)")
  group.add_argument("--examples", type=int, default=0, metavar="N", help="of the task, at most (default: all)")
  add_task_modules(group)
  group.add_argument("--cache_dir", metavar="DIR", help="of token caches (default: ~/.cache/t5like)")
  group.add_argument("--max_inputs", type=int, metavar="N", help="tokens that a row may have (default: all that fit)")
  group.add_argument("--truncate", action="store_true", help="cut rows that are too long, in place of refusing them")
  group.add_argument("--strict", action="store_true", help="stop at the first row that cannot be answered")

  group = parser.add_argument_group("where answers go")
  group.add_argument("--output", metavar="FILE", help="JSON lines, or .npy for --embed (default: standard output)")
  group.add_argument("--overwrite", action="store_true", help="begin the output anew")
  group.add_argument("--batch_size", type=int, default=32, metavar="N", help="rows at a time (default: 32)")

  group = parser.add_argument_group("in place of writing text")
  group.add_argument("--score", action="store_true", help="the log-likelihood of each row's target, or of each line")
  group.add_argument("--target_field", default="targets", metavar="NAME", help="that --score reads (default: targets)")
  group.add_argument("--candidates", metavar="FILE", help="rank these answers, a line each, by their log-likelihood")
  group.add_argument("--candidates_field", metavar="NAME", help="rank the list of answers in this field")
  group.add_argument("--per_token", action="store_true", help="rank by the log-likelihood of a token")
  group.add_argument("--fill_mask", action="store_true", help="the likeliest tokens under each [MASK]")
  group.add_argument("--embed", metavar="cls|mean", help="a vector for each row")
  group.add_argument("--neighbours", metavar="FILE", help="the nearest lines of this file, by cosine of embeddings")
  group.add_argument("--top", type=int, default=5, metavar="N", help="tokens under a mask, neighbours (default: 5)")
  add_decoding_arguments(parser)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("the model")
  group.add_argument("--model", required=True, metavar="DIR", help="a model directory or a Hugging Face folder")
  group.add_argument("--step", type=int, help="of a model directory's checkpoint (default: the newest)")
  group.add_argument("--average", action="store_true", help="the moving average of the parameters")
  group.add_argument("--vocabulary", metavar="NAME", help="or file (default: the model's own, or the one beside it)")
  group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="to compute in (default: the model's)")
  group.add_argument("--mesh", metavar="AXES", help="such as data=2,tensor=4 (default: the run's own, or data=-1)")


def run(args: argparse.Namespace) -> int:
  _check_options(args)
  from t5like import parallel

  parallel.start(config=repr(sorted(vars(args).items())))
  from t5like.inference.model import load_model

  asks = not args.input and not args.task and sys.stdin.isatty()
  if not args.input and not args.task and not asks:
    args.input = "-"
  _check_reachable(args, asks)
  loaded = load_model(args.model, args.vocabulary, _mesh_axes(args.mesh), args.dtype, task_modules(args))
  args.step = _agreed_step(args, loaded)
  _doubt_vocabulary(loaded)
  return _ask(args, loaded) if asks else _answer_rows(args, loaded)


def _check_options(args: argparse.Namespace) -> None:
  """Options that contradict one another, before anything is loaded."""
  jobs = [name for name in _JOBS if getattr(args, name)]
  if len(jobs) > 1 and jobs != ["neighbours", "embed"]:
    raise UserError(f"--{jobs[0]} and --{jobs[1]} are two things to do", expected="one of them")
  decoding = given_options(args)
  if jobs and decoding:
    raise UserError(f"--{jobs[0]} writes no text: --{next(iter(decoding))} has no meaning there")
  if args.input and args.task:
    raise UserError("--input and --task are two things to answer", expected="one of them")
  if args.output and args.output.endswith(".npy") and (not args.embed or args.neighbours):
    raise UserError("only embeddings go into a .npy file", try_="--output=FILE.jsonl, or --embed=mean")
  for name, least in (("batch_size", 1), ("top", 1), ("examples", 0)):
    if getattr(args, name) < least:
      raise UserError(f"--{name}={getattr(args, name)} cannot work", expected=f"{least} or more")
  if args.max_inputs is not None and args.max_inputs < 1:
    raise UserError(f"--max_inputs={args.max_inputs} cannot work", expected="1 or more")


def _check_reachable(args: argparse.Namespace, asks: bool) -> None:
  """Files are looked for before a model is loaded; several processes must all be able to read them."""
  import jax

  if jax.process_count() > 1 and (asks or args.input == "-"):
    raise UserError("several processes cannot share one standard input", try_="--input=FILE that all of them can read")
  for name in ("input", "candidates", "neighbours"):
    path = getattr(args, name)
    if path and storage.is_remote(path):
      setattr(args, name, str(_fetched(path, name, args.output)))
    elif path and path != "-":
      setattr(args, name, os.path.expanduser(path))
      if not os.path.exists(getattr(args, name)) or os.path.isdir(getattr(args, name)):
        raise UserError(f"no file {path}", option=f"--{name}")
      if args.output and os.path.realpath(os.path.expanduser(args.output)) == os.path.realpath(getattr(args, name)):
        raise UserError(f"--output and --{name} are the same file", given=path)


def _fetched(path: str, name: str, output: str | None) -> Path:
  """The local copy of a file on a store."""
  storage.check_reachable(path, f"--{name}")
  if output and storage.as_path(output) == storage.as_path(path):
    raise UserError(f"--output and --{name} are the same file", given=path)
  try:
    return storage.local_copy(storage.as_path(path))
  except FileNotFoundError:
    raise UserError(f"no file {path}", option=f"--{name}") from None
  except OSError as error:
    raise UserError(f"cannot read {path}", because=error.strerror or error) from None


def _agreed_step(args: argparse.Namespace, loaded: LoadedModel) -> int | None:
  """One step for all that follows and for all processes, though a run may write another meanwhile."""
  from t5like.parallel.process_zero import first_process_decides

  if loaded.step(args.step) is None:
    return None
  return first_process_decides(lambda: loaded.step(args.step))


def _doubt_vocabulary(loaded: LoadedModel) -> None:
  """A model's embedding has some rows more than its vocabulary ids, to divide well; not thousands.

  And Hugging Face's configuration says at which ids outputs end.
  """
  from t5like.inference.jobs import configured_ends
  from t5like.inference.running import say

  rows, ids = loaded.model.config.vocab_size, loaded.vocabulary.vocab_size
  if rows - ids > _SPARE_ROWS:
    say(
      f"is this the right vocabulary? {loaded.vocabulary_name} has {ids:,} ids, the model {rows:,} (--vocabulary=...)"
    )
  ends, end = configured_ends(loaded), loaded.vocabulary.eos_id
  if ends and end not in ends:
    told = ", ".join(map(str, sorted(ends)))
    say(f"outputs end at id {end} of {loaded.vocabulary_name}; the model's own configuration says {told}")


def _mesh_axes(given: str | None) -> MeshAxes | None:
  from t5like.parallel import MeshAxes

  if not given:
    return None
  axes = {}
  names = [field.name for field in dataclasses.fields(MeshAxes)]
  for part in given.split(","):
    name, _, size = part.partition("=")
    if name not in names or (name != "preset" and not size.lstrip("-").isdigit()):
      raise UserError(
        f"--mesh={given} cannot work", expected="sizes such as data=2,tensor=4", nearest=nearest(name, names)
      )
    axes[name] = size if name == "preset" else int(size)
  return MeshAxes(**axes)


def _ask(args: argparse.Namespace, loaded: LoadedModel) -> int:
  from t5like.cli.infer_prompt import Prompt

  if args.output:
    raise UserError("--output is for the answers to a file or a task", try_="--input=FILE, or --task=TASK")
  if args.score or args.candidates_field:
    raise UserError("there is nothing to compare what you type with", try_="--input=FILE of JSON lines")
  if loaded.model.batch_layout == "encoder" and not any(getattr(args, name) for name in _JOBS):
    args.fill_mask = True
  job = _job(args, loaded, loaded.parameters(args.step, args.average), _limits(args), "text")
  return Prompt(loaded, job, given_options(args), args.step).run()


def _answer_rows(args: argparse.Namespace, loaded: LoadedModel) -> int:
  from t5like.inference import outputs as infer_output
  from t5like.inference import rows as infer_rows
  from t5like.inference import running as infer_run
  from t5like.parallel.process_zero import first_process_decides

  kind = "task" if args.task else infer_rows.input_format(args.input, args.format)
  limits = _limits(args)
  rows, total = _rows(args, loaded, kind, limits.field)
  path = storage.as_path(args.output) if args.output else None
  if path:
    storage.check_reachable(path, "--output")
  header = _header(args, loaded, limits) if path else {}

  def take_file() -> int:
    stack.enter_context(infer_output.sole_writer(path))
    if not args.overwrite:
      infer_output.check_header(path, header)
    return 0

  with contextlib.ExitStack() as stack:
    if path:
      first_process_decides(take_file)
    job = _job(args, loaded, loaded.parameters(args.step, args.average), limits, kind)
    if path:
      first_process_decides(lambda: infer_output.begin_file(path, header, args.overwrite) or 0)
    if path and path.suffix == ".npy":
      output = infer_output.VectorFile(path, job.width)
    else:
      output = infer_output.JsonLines(path, limits.field)
    stack.callback(output.close)
    waits = kind != "task" and not infer_rows.is_regular(args.input)
    try:
      return infer_run.run_rows(job, rows, output, args.batch_size, args.strict, total, waits)
    except KeyboardInterrupt:
      if path:
        infer_run.say("\nthe same command goes on where this one was")
      raise


def _limits(args: argparse.Namespace) -> Limits:
  from t5like.inference.jobs import Limits
  from t5like.inference.rows import TEXT_FIELD

  return Limits(args.max_inputs, args.truncate, args.field or TEXT_FIELD)


def _rows(args: argparse.Namespace, loaded: LoadedModel, kind: str, field: str) -> tuple[Rows, int | None]:
  """The rows, and how many there are where that is known."""
  from t5like.cli.options import task_modules
  from t5like.evaluation.task_caches import caches_of
  from t5like.inference import rows as infer_rows

  if kind != "task":
    if args.field and kind == "text":
      raise UserError(f"--field={args.field}: lines of text have no fields", try_="--format=jsonl")
    total = infer_rows.count_lines(args.input)
    if total == 0:
      raise UserError(f"{args.input} is empty: there are no rows to answer")
    return infer_rows.read_rows(args.input, kind, field), total
  with _standard_output_aside():
    caches = caches_of(loaded, args.cache_dir, task_modules(args))
    members = caches.open_or_build(args.task, args.split)
  infer_rows.check_task(members, type(loaded.model).__name__)
  total = sum(min(args.examples or m.cache.examples, m.cache.examples) for m in members)
  return infer_rows.task_rows(members, loaded.vocabulary, args.examples), total


@contextlib.contextmanager
def _standard_output_aside() -> Iterator[None]:
  """What is printed goes to standard error, that of other processes too: standard output is for answers."""
  sys.stdout.flush()
  kept = os.dup(1)
  os.dup2(2, 1)
  try:
    with contextlib.redirect_stdout(sys.stderr):
      yield
  finally:
    os.dup2(kept, 1)
    os.close(kept)


def _job(args: argparse.Namespace, loaded: LoadedModel, params: Any, limits: Limits, kind: str) -> Job:
  from t5like.cli.decoding_options import decode_settings
  from t5like.inference import encoder_jobs as infer_encoders
  from t5like.inference import jobs as infer_jobs

  if args.fill_mask:
    return infer_encoders.FillMask(loaded, params, limits, args.top)
  if args.neighbours:
    return _neighbours(args, loaded, params, limits)
  if args.embed:
    return infer_encoders.Embedding(loaded, params, limits, args.embed)
  if args.score and kind == "text" and not loaded.is_decoder:
    raise UserError(
      "--score needs a target for each row",
      expected=f"JSON lines with {limits.field!r} and {args.target_field!r}, or a task",
    )
  if args.score or args.candidates or args.candidates_field:
    whole = args.score and kind == "text"
    return infer_jobs.Ranking(
      loaded,
      params,
      limits,
      args.batch_size,
      target_field=args.target_field if args.score and not whole else None,
      candidates=_lines(args.candidates) if args.candidates else (),
      candidates_field=args.candidates_field,
      per_token=args.per_token,
      whole=whole,
    )
  settings, stops = decode_settings(given_options(args), loaded.vocabulary, infer_jobs.position_count(loaded))
  return infer_jobs.Generation(loaded, params, settings, stops, limits)


def _lines(path: str) -> list[str]:
  """The candidates of a file; each must be one."""
  from t5like.inference.rows import Refused, read_rows

  rows = list(read_rows(path, "text", ""))
  for row in rows:
    if isinstance(row, Refused) or not row.text.strip():
      raise UserError(f"{path}: {row.place}: " + (row.why if isinstance(row, Refused) else "it is empty"))
  if not rows:
    raise UserError(f"{path} is empty: there are no candidates")
  return [row.text for row in rows]


def _neighbours(args: argparse.Namespace, loaded: LoadedModel, params: Any, limits: Limits) -> Job:
  """Embeds the sentences to look among, first."""
  import numpy as np

  from t5like.inference import encoder_jobs as infer_encoders
  from t5like.inference import rows as infer_rows
  from t5like.inference import running as infer_run

  embedding = infer_encoders.Embedding(loaded, params, limits, args.embed or "mean")
  kind = infer_rows.input_format(args.neighbours, None)
  infer_run.say(f"embedding {args.neighbours}")
  progress = infer_run.Progress(infer_rows.count_lines(args.neighbours), 0, embedding.counts)
  kept, vectors = [], []
  sentences = infer_rows.read_rows(args.neighbours, kind, limits.field)
  planner = embedding.planner(args.batch_size)
  for window in infer_rows.windows(sentences, lambda: infer_run.WINDOW * args.batch_size):
    rows, answers, refused = infer_run.answer_window(embedding, window, planner, progress, args.strict)
    if refused:
      raise UserError(f"{args.neighbours}: {refused.place} cannot be embedded", try_="without --strict")
    good = [(row, answer) for row, answer in zip(rows, answers, strict=True) if answer is not None]
    kept += [row for row, _ in good]
    vectors += [np.asarray(answer["embedding"], np.float32) for _, answer in good]
  progress.end()
  if not kept:
    raise UserError(f"{args.neighbours} has no sentence to look among")
  return infer_encoders.Neighbours(embedding, kept, np.stack(vectors), args.top)


def _header(args: argparse.Namespace, loaded: LoadedModel, limits: Limits) -> dict[str, dict[str, Any]]:
  """What must be the same when a file is gone on with."""
  from t5like.cli.decoding_options import decode_settings
  from t5like.inference.jobs import position_count
  from t5like.inference.outputs import digest

  job = next((name for name in ("neighbours", *_JOBS) if getattr(args, name)), "generate")
  what: dict[str, Any] = {"job": job, **dataclasses.asdict(limits)}
  if job == "generate":
    settings, stops = decode_settings(given_options(args), loaded.vocabulary, position_count(loaded))
    what |= dataclasses.asdict(settings) | {"stop": list(stops)}
  for name in ("candidates", "neighbours"):
    if path := getattr(args, name):
      what[name] = f"{digest(Path(path).read_text(encoding='utf-8', errors='surrogateescape')):016x}"
  names = ("candidates_field", "embed", *(("target_field",) if args.score else ()))
  what |= {name: getattr(args, name) for name in names}
  if job in ("candidates", "candidates_field"):
    what["per_token"] = args.per_token
  if job in ("fill_mask", "neighbours"):
    what["top"] = args.top
  model = loaded.identity(args.step) | {"average": args.average, "dtype": loaded.model.config.compute_dtype}
  return {"model": model, "settings": what}
