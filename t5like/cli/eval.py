"""Evaluate checkpoints by decoding, by ranking candidates or by loss; follow a run; compare two models.

  t5like eval --model_dir=~/runs/demo_snli --task=snli                    the newest checkpoint
  t5like eval --model_dir=~/runs/demo_snli --task=snli --follow           every new checkpoint
  t5like eval --model_dir=gpt2 --task=snli --shots=5 --rank --prompt=my_prompt.txt
  t5like eval --model_dir=gpt2 --loss --text=book.txt                     perplexity and bits per byte
  t5like eval --model_dir=bert --embed --task=glue_stsb_classification    its sentence embeddings, by cosine
  t5like eval --compare ~/runs/a ~/runs/b                                 is the difference significant?
  t5like eval --model_dir=~/runs/glue --submit=glue                       files for the leaderboard; super_glue, squad

MODEL_DIR is the directory of a run or conversion, one of its checkpoints, or a Hugging Face folder. Tables are written
to MODEL_DIR/evaluations/scores.json and scores.csv, answers to MODEL_DIR/predictions. Checkpoints evaluated before are
skipped. Multi-host: run the same command on each host with T5LIKE_COORDINATOR, T5LIKE_NUM_PROCESSES and
T5LIKE_PROCESS_ID.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from t5like.cli.decoding_options import add_decoding_arguments, given_options
from t5like.cli.options import add_languages, add_task_modules, at_least, option_lines, task_modules
from t5like.errors import InvalidSetting, UserError
from t5like.files import storage

if TYPE_CHECKING:  # importing jax would slow down --help
  from t5like.evaluation import Evaluation, EvaluationSettings
  from t5like.evaluation.following import CheckpointSelection
  from t5like.evaluation.leaderboards import Submission
  from t5like.evaluation.tables import Record
  from t5like.inference import Model

NOTHING_EVALUATED = 1


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--model_dir", "--model", help="a model directory, a checkpoint in it, or a Hugging Face folder")
  parser.add_argument("--task", help="tasks or mixtures with metrics, comma-separated (default: the run's)")
  parser.add_argument("--split", help="split to evaluate (default: validation)")
  parser.add_argument("--examples", type=int, default=0, metavar="N", help="only the first N examples of each task")
  parser.add_argument(
    "--average", action="store_true", help="use the moving average of the parameters, if the run kept one"
  )
  parser.add_argument(
    "--embed",
    nargs="?",
    const="mean",
    metavar="POOLING",
    help="score the pooled states of a model that has no head: mean (default), cls, max, last",
  )
  parser.add_argument("--again", action="store_true", help="evaluate again what was evaluated before")
  parser.add_argument("--batch_size", type=int, metavar="N", help="rows per batch (default: the run's, or 32)")
  parser.add_argument("--inputs_length", type=int, metavar="N", help="cut inputs to N tokens (default: as in training)")
  parser.add_argument("--show", type=at_least(0), default=3, metavar="N", help="answers to print (default: 3)")
  parser.add_argument("--out", help="output folder (default: MODEL_DIR)")
  parser.add_argument("--vocabulary", help="name or file (default: the model's own)")
  add_languages(parser)
  parser.add_argument("--base", metavar="DIR", help="the base of a run with a method such as LoRA, if it has moved")
  parser.add_argument("--cache_dir", help="folder of token caches (default: ~/.cache/t5like)")
  parser.add_argument(
    "--files", action="append", default=[], metavar="SPLIT=FILES", help="own rows of the task, as in t5like cache"
  )
  add_task_modules(parser)
  _add_checkpoints(parser)
  _add_metrics(parser)
  add_decoding_arguments(parser)


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("checkpoints").add_mutually_exclusive_group()
  group.add_argument("--step", type=int, help="a single step (default: the newest)")
  group.add_argument("--steps", metavar="all|N,N", help="several steps")
  group.add_argument("--follow", action="store_true", help="every new checkpoint, until the run ends")


def _add_metrics(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("ranking and prompts")
  group.add_argument(
    "--rank",
    nargs="?",
    const="sum",
    metavar="sum|mean",
    help="choose the most likely label, by the sum or mean over tokens",
  )
  group.add_argument("--candidates", metavar="FIELD|FILE", help="candidates to rank (default: the task's labels)")
  group.add_argument("--shots", type=int, metavar="K", help="few-shot: K solved examples in each prompt; 0: zero-shot")
  group.add_argument("--shots_split", default="train", help="split of the solved examples (default: train)")
  group.add_argument("--prompt", metavar="FILE", help="a prompt template with {inputs} and {targets}")
  group.add_argument(
    "--infill", action="store_true", help="T5: predict the answer as the span of the first sentinel, as in pre-training"
  )
  group = parser.add_argument_group("loss, perplexity and bits per byte")
  group.add_argument("--loss", action="store_true", help="loss of a corpus, of a task's targets, or of --text")
  group.add_argument("--text", metavar="FILE", help="a text file or JSON lines")
  group.add_argument("--text_field", default="text", help="JSON field with the text (default: text)")
  group.add_argument("--window", type=int, metavar="N", help="context length in tokens (default: the model's maximum)")
  group.add_argument("--stride", type=int, metavar="N", help="GPT: tokens between windows (default: half a window)")
  group.add_argument("--objective", metavar="NAME", help="denoising objective (default: as in training)")
  group = parser.add_argument_group("other")
  group.add_argument("--submit", choices=("glue", "super_glue", "squad"), help="write files for a leaderboard")
  group.add_argument(
    "--squad_file", metavar="FILE", help="the official SQuAD file, to restore the original text of answers"
  )
  group.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two model directories or prediction files")
  group.add_argument(
    "--resamples", type=at_least(1), default=10_000, metavar="N", help="bootstrap resamples (default: 10,000)"
  )


def run(args: argparse.Namespace) -> int:
  _check(args)
  if args.compare:
    return _compare(args)

  from t5like import parallel
  from t5like.console import say

  hosts = parallel.start(config=option_lines(args))
  if hosts:
    say(str(hosts))
  try:
    return _loss(args) if args.loss or args.text else _tasks(args)
  except InvalidSetting as error:
    raise error.as_option() from None


def _tasks(args: argparse.Namespace) -> int:
  from t5like import parallel
  from t5like.console import say
  from t5like.evaluation.following import wait_for_model
  from t5like.evaluation.leaderboards import Submission
  from t5like.evaluation.settings import EvaluationSettings
  from t5like.experiments.corpus_files import from_options
  from t5like.training.guards.interruption import Interruption

  submission = Submission(args.submit, args.squad_file) if args.submit else None
  fields = ("examples", "rank", "candidates", "shots", "shots_split", "prompt", "infill", "inputs_length", "average")
  settings = EvaluationSettings(
    split=args.split or (submission.split if submission else "validation"),
    decoding=given_options(args),
    batch_size=args.batch_size,
    task_modules=tuple(task_modules(args)),
    cache_dir=args.cache_dir,
    files=from_options(args.files),
    **{name: getattr(args, name) for name in fields},
  )
  interruption = Interruption(parallel.stop_signals())
  with interruption if args.follow else contextlib.nullcontext():
    if args.follow:
      wait_for_model(args.model_dir, lambda: interruption.requested)
    if interruption.requested:
      return 128 + interruption.signal
    model = _load(args)
    with model.sharding():
      if submission:
        for written in _submitted(args, model, settings, submission):
          say(written)
        return 0
      evaluated = _checkpoints(args, model, settings, lambda: interruption.requested)
  if interruption.requested:
    return 128 + interruption.signal
  return 0 if evaluated else NOTHING_EVALUATED


def _load(args: argparse.Namespace) -> Model:
  from t5like.inference import load

  given = dict(modules=task_modules(args), base=args.base, languages=args.languages)
  model = load(args.model_dir, args.vocabulary, **given)
  return model.pooled(args.embed) if args.embed else model


def _checkpoints(
  args: argparse.Namespace, model: Model, settings: EvaluationSettings, stopped: Callable[[], bool]
) -> int:
  """Evaluates checkpoints and prints their scores; returns the number of checkpoints."""
  from t5like.console import say
  from t5like.evaluation.checkpoints import at_step, measure_checkpoints, task_measurements
  from t5like.evaluation.settings import description
  from t5like.evaluation.tables import FOLDER, Results, scores_table, steps_table
  from t5like.evaluation.task_evaluation import TaskEvaluation

  def report(record: Record, result: Evaluation) -> None:
    say(result.report(record.task, record.split, record.step or 0, args.show))

  tasks = TaskEvaluation(model, _names(args) or _own_task(model), settings)
  out, chosen = _out(args, model), _chosen(args)
  results, found = Results(out / FOLDER, shared=bool(args.out)), []
  measurements = task_measurements(tasks, out, report, stopped)
  for records in measure_checkpoints(model, measurements, chosen, results, args.average, args.again, stopped):
    found.append(records)
    how = ", ".join(filter(None, (settings.split, description(tasks.identity))))
    if len(records) > 1:
      say(f"{at_step(records[0].step)} ({how}):\n{scores_table(records)}")
    elif records[0].predictions:  # a single task has been reported above
      say(f"all answers: {out / records[0].predictions}")
  if chosen.several and len(found) > 1:
    say(f"all checkpoints ({settings.split}):\n{steps_table([record for records in found for record in records])}")
  if results.json.is_file():
    say(f"tables: {results.json} and {results.csv.name}")
  return len(found)


def _submitted(
  args: argparse.Namespace, model: Model, settings: EvaluationSettings, submission: Submission
) -> Iterator[str]:
  from t5like.evaluation.following import agreed_step
  from t5like.evaluation.leaderboards import submit
  from t5like.evaluation.task_evaluation import TaskEvaluation

  trained_on = model.experiment.task if model.has_training_config else ""
  tasks = TaskEvaluation(model, _names(args) or submission.tasks(trained_on), settings, without_metrics=True)
  submission.check(tasks.sets)
  step = agreed_step(model, args.step)
  submission = dataclasses.replace(submission, no_answer_threshold=model.at(step).no_answer_threshold)
  for written in submit(submission, tasks, model.parameters(step, args.average), _out(args, model), step):
    if written.rows is None:
      yield f"{written.path}" + (f"  ({written.warning})" if written.warning else "")
      continue
    if written.note:
      yield f"note: {written.note}" if not submission.squad_file else written.note
    yield f"{written.path}  {written.rows:,} rows" + (f"\n  note: {written.warning}" if written.warning else "")


def _loss(args: argparse.Namespace) -> int:
  if args.follow:
    raise UserError("--loss cannot be combined with --follow", try_="--gin.EVAL_LOSS_PERIOD=1000 in training")
  if given_options(args):
    raise UserError("--loss does not decode", expected=f"no --{next(iter(given_options(args)))}")

  from t5like.console import say
  from t5like.evaluation.checkpoints import at_step, measure_checkpoints
  from t5like.evaluation.settings import TextLossSettings
  from t5like.evaluation.tables import FOLDER, Results, scores_table, steps_table
  from t5like.evaluation.text_loss import loss_measurements, measured_loss

  fields = (
    "text", "text_field", "examples", "window", "stride", "objective", "inputs_length", "average", "cache_dir",
  )  # fmt: skip
  settings = TextLossSettings(
    tasks=tuple(_names(args)),
    split=args.split or "validation",
    task_modules=tuple(task_modules(args)),
    **{name: getattr(args, name) for name in fields},
    **({"batch_size": args.batch_size} if args.batch_size is not None else {}),
  )
  model = _load(args)
  results, found = Results(_out(args, model) / FOLDER, shared=bool(args.out)), []
  with model.sharding():
    measurements, chosen = loss_measurements(model, settings), _chosen(args)
    for records in measure_checkpoints(model, measurements, chosen, results, args.average, args.again):
      say(f"{at_step(records[0].step)}:\n{scores_table(records, measured_loss)}")
      found.append(records)
  if len(found) > 1:
    rows = [record for records in found for record in records]
    say(f"loss of all checkpoints:\n{steps_table(rows, measured_loss)}")
  say(f"tables: {results.json} and {results.csv.name}")
  return 0 if found else NOTHING_EVALUATED


def _compare(args: argparse.Namespace) -> int:
  """Prints the scores of two models and the rows on which they differ."""
  from t5like.evaluation.comparison import Selection, compare_paths, differences_table

  a, b = (storage.as_path(path).absolute() for path in args.compare)
  selection = Selection(tuple(_names(args)) or None, args.split, args.step)
  for found in compare_paths(a, b, selection, args.resamples, args.seed or 0, task_modules(args), print):
    print(f"{found.name}: {len(found.a.rows):,} rows\n  A {found.a.path}\n  B {found.b.path}")
    print(differences_table(found.differences))
    only = found.only_right()
    print(f"  {len(found.rows):,} answers differ: only A is correct in {only['A']:,}, only B in {only['B']:,}")
    for row in found.rows[: args.show]:
      print(f"  row {row['row']}: {row['inputs']}\n    target {row['target']!r}, A {row['a']!r}, B {row['b']!r}")
    if args.out:
      path = storage.as_path(args.out) / f"{found.name}.differs.jsonl"
      storage.write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows))
      print(f"  all differences: {path}")
  return 0


def _names(args: argparse.Namespace) -> list[str]:
  return [name for name in (args.task or "").split(",") if name]


def _own_task(model: Model) -> list[str]:
  if model.has_training_config and model.experiment.objective is None:
    return [model.experiment.task]
  raise UserError("the model was not fine-tuned on a task: --task is required", try_="--task=TASK, or --loss")


def _out(args: argparse.Namespace, model: Model) -> Path:
  return storage.as_path(args.out).absolute() if args.out else model.folder


def _chosen(args: argparse.Namespace) -> CheckpointSelection:
  from t5like.evaluation.following import CheckpointSelection

  return CheckpointSelection(args.step, args.steps, args.follow)


def _check(args: argparse.Namespace) -> None:
  """Raises UserError for conflicting options, before anything is loaded."""
  if bool(args.compare) == bool(args.model_dir):
    raise UserError(
      "exactly one of --model_dir and --compare is required",
      expected="--model_dir=DIR, or --compare A B",
      try_="t5like eval --help",
    )
  if args.model_dir and not args.follow:
    storage.check_reachable(args.model_dir, "--model_dir")
  if args.out and (out := storage.as_path(args.out)).exists() and not out.is_dir():
    raise UserError(f"--out={args.out} is not a folder")
  if args.steps is not None and not re.fullmatch(r"all|[\d_]+(,[\d_]+)*", args.steps):
    raise UserError(f"invalid --steps={args.steps}", expected="all, or steps such as 1000,2000")
  loss = args.loss or args.text
  for name, needs, satisfied in (
    ("squad_file", "--submit=squad", args.submit == "squad"),
    ("window", "--loss", loss), ("stride", "--loss", loss), ("objective", "--loss", loss),
  ):  # fmt: skip
    if getattr(args, name) is not None and not satisfied:
      raise UserError(f"--{name} requires {needs}", try_=f"{needs} --{name}={getattr(args, name)}")
  if loss and (args.rank or args.shots is not None or args.prompt or args.submit):
    raise UserError("--loss uses no prompts", expected="no --rank, --shots, --prompt or --submit")
  if args.files and (loss or args.submit or args.compare):
    raise UserError("--files are labeled rows of one task", expected="no --loss, --submit or --compare")
  if loss and args.embed:
    raise UserError("--loss and --embed are mutually exclusive", expected="one of them")
  if args.submit and (args.follow or args.steps):
    raise UserError("--submit takes a single checkpoint", try_="--step=N")
