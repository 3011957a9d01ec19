"""Score checkpoints: by decoding, by ranking candidates, by the loss of text; follow a run; compare two of them.

  t5like eval --model_dir=~/runs/demo_snli --task=snli                    the newest checkpoint
  t5like eval --model_dir=~/runs/demo_snli --task=snli --follow           each as training writes it
  t5like eval --model_dir=gpt2 --task=snli --shots=5 --rank --prompt=my_prompt.txt
  t5like eval --model_dir=gpt2 --loss --text=book.txt                     perplexity and bits per byte
  t5like eval --compare ~/runs/a ~/runs/b                                 is b better, or is it chance?
  t5like eval --model_dir=~/runs/glue --submit=glue                       files for the leaderboard

MODEL_DIR is the directory of a run or conversion, one of its checkpoints, or a Hugging Face folder. Tables are written
to MODEL_DIR/evaluations/scores.json and scores.csv, answers to MODEL_DIR/predictions. What was evaluated is remembered.
On several machines, the same command on each with T5LIKE_COORDINATOR, T5LIKE_NUM_PROCESSES and T5LIKE_PROCESS_ID.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from t5like.cli.decoding_options import add_decoding_arguments, given_options
from t5like.cli.options import add_task_modules, task_modules
from t5like.errors import InvalidSetting, UserError
from t5like.files import storage

if TYPE_CHECKING:  # help must not wait for jax
  from t5like.evaluation import Evaluation, EvaluationSettings
  from t5like.evaluation.following import CheckpointSelection
  from t5like.evaluation.leaderboards import Submission
  from t5like.evaluation.tables import Record
  from t5like.inference import Model

NOTHING_EVALUATED = 1


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--model_dir", "--model", help="a model directory, a checkpoint in it, or a Hugging Face folder")
  parser.add_argument("--task", help="tasks or mixtures with metrics, by commas (default: the run's own)")
  parser.add_argument("--split", help="the split to score (default: validation)")
  parser.add_argument("--examples", type=int, default=0, metavar="N", help="only the first N examples of each task")
  parser.add_argument(
    "--average", action="store_true", help="the moving average of the parameters, where a run kept it"
  )
  parser.add_argument("--again", action="store_true", help="also what was evaluated already")
  parser.add_argument("--batch_size", type=int, metavar="N", help="rows at a time (default: the run's, or 32)")
  parser.add_argument("--inputs_length", type=int, metavar="N", help="cut inputs to N tokens (default: as in training)")
  parser.add_argument("--show", type=int, default=3, metavar="N", help="answers to print (default: 3)")
  parser.add_argument("--out", help="write there (default: MODEL_DIR)")
  parser.add_argument("--vocabulary", help="a vocabulary's name or file, where the model does not tell")
  parser.add_argument("--cache_dir", help="the folder of token caches (default: ~/.cache/t5like)")
  add_task_modules(parser)
  _add_checkpoints(parser)
  _add_metrics(parser)
  add_decoding_arguments(parser)


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("which checkpoints").add_mutually_exclusive_group()
  group.add_argument("--step", type=int, help="one (default: the newest)")
  group.add_argument("--steps", metavar="all|N,N", help="all of them, or several")
  group.add_argument("--follow", action="store_true", help="each as training writes it, until the run has ended")


def _add_metrics(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("candidates and prompts")
  group.add_argument(
    "--rank", nargs="?", const="sum", metavar="sum|mean", help="choose the likeliest label; of a token"
  )
  group.add_argument("--candidates", metavar="FIELD|FILE", help="what to rank, in place of the task's labels")
  group.add_argument(
    "--shots", type=int, metavar="K", help="K solved examples before each question; 0: the prompt alone"
  )
  group.add_argument("--shots_split", default="train", help="the split they come from (default: train)")
  group.add_argument("--prompt", metavar="FILE", help="a template with {inputs} and {targets}")
  group.add_argument(
    "--infill", action="store_true", help="T5: the answer fills the first sentinel, as in pre-training"
  )
  group = parser.add_argument_group("loss, perplexity and bits per byte")
  group.add_argument("--loss", action="store_true", help="of a corpus, of the targets of a task, or of --text")
  group.add_argument("--text", metavar="FILE", help="a text file, or JSON lines with a text each")
  group.add_argument("--text_field", default="text", help="the member of a JSON line (default: text)")
  group.add_argument(
    "--window", type=int, metavar="N", help="tokens read together (default: as many as the model takes)"
  )
  group.add_argument("--stride", type=int, metavar="N", help="GPT: from window to window (default: half a window)")
  group.add_argument("--objective", metavar="NAME", help="what a denoiser has to fill in (default: as in training)")
  group = parser.add_argument_group("other")
  group.add_argument("--submit", choices=("glue", "squad"), help="files for a leaderboard")
  group.add_argument(
    "--squad_file", metavar="FILE", help="the official questions: answers get the text of their contexts"
  )
  group.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two model directories or files of predictions")
  group.add_argument("--resamples", type=int, default=10_000, metavar="N", help="of the bootstrap (default: 10,000)")


def run(args: argparse.Namespace) -> int:
  _check(args)
  if args.compare:
    return _compare(args)

  from t5like import parallel
  from t5like.console import say

  hosts = parallel.start(config=repr(sorted(vars(args).items())))
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
  from t5like.training.guards.interruption import Interruption

  submission = Submission(args.submit, args.squad_file) if args.submit else None
  fields = ("examples", "rank", "candidates", "shots", "shots_split", "prompt", "infill", "inputs_length", "average")
  settings = EvaluationSettings(
    split=args.split or (submission.split if submission else "validation"),
    decoding=given_options(args),
    batch_size=args.batch_size,
    task_modules=tuple(task_modules(args)),
    cache_dir=args.cache_dir,
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

  return load(args.model_dir, args.vocabulary, modules=task_modules(args))


def _checkpoints(
  args: argparse.Namespace, model: Model, settings: EvaluationSettings, stopped: Callable[[], bool]
) -> int:
  """Evaluates and prints; returns the number of checkpoints."""
  from t5like.console import say
  from t5like.evaluation.checkpoints import at_step, measure_checkpoints, task_measurements
  from t5like.evaluation.settings import description
  from t5like.evaluation.tables import FOLDER, Results, scores_table, steps_table
  from t5like.evaluation.task_evaluation import TaskEvaluation

  def report(record: Record, result: Evaluation) -> None:
    say(result.report(record.task, record.split, record.step or 0, args.show))

  tasks = TaskEvaluation(model, _names(args) or _own_task(model), settings)
  out, chosen = _out(args, model), _chosen(args)
  results, found = Results(out / FOLDER), []
  measurements = task_measurements(tasks, out, report, stopped)
  for records in measure_checkpoints(model, measurements, chosen, results, args.average, args.again, stopped):
    found.append(records)
    how = ", ".join(filter(None, (settings.split, description(tasks.identity))))
    if len(records) > 1:
      say(f"{at_step(records[0].step)} ({how}):\n{scores_table(records)}")
    elif records[0].predictions:  # a task alone has been reported
      say(f"all answers: {out / records[0].predictions}")
  if chosen.several and len(found) > 1:
    say(f"all checkpoints ({settings.split}):\n{steps_table([record for records in found for record in records])}")
  if results.json.is_file():
    say(f"tables: {results.json} and {results.csv.name}")
  return len(found)


def _submitted(
  args: argparse.Namespace, model: Model, settings: EvaluationSettings, submission: Submission
) -> Iterator[str]:
  from t5like.evaluation.leaderboards import submit
  from t5like.evaluation.task_evaluation import TaskEvaluation

  tasks = TaskEvaluation(model, _names(args) or submission.tasks, settings, without_metrics=True)
  submission.check(tasks.sets)
  step = model.step(args.step)
  for written in submit(submission, tasks, model.parameters(step, args.average), _out(args, model), step):
    if written.rows is None:
      yield f"{written.path}" + (f"  ({written.story})" if written.story else "")
      continue
    if written.note:
      yield f"note: {written.note}" if not submission.squad_file else written.note
    yield f"{written.path}  {written.rows:,} rows" + (f"\n  note: {written.story}" if written.story else "")


def _loss(args: argparse.Namespace) -> int:
  if args.follow:
    raise UserError("--loss follows no run: the loop itself does it", try_="--gin.EVAL_LOSS_PERIOD=1000 in training")
  if given_options(args):
    raise UserError("--loss writes nothing", expected=f"no --{next(iter(given_options(args)))} beside it")

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
  results, found = Results(_out(args, model) / FOLDER), []
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
  """Prints two runs side by side, and the rows on which they differ."""
  from t5like.evaluation.comparison import Selection, compare_paths, differences_table
  from t5like.training.records.model_dir import write_text

  a, b = (storage.as_path(path).absolute() for path in args.compare)
  selection = Selection(tuple(_names(args)) or None, args.split, args.step)
  for found in compare_paths(a, b, selection, args.resamples, args.seed or 0, task_modules(args), print):
    print(f"{found.name}: {len(found.a.rows):,} rows\n  A {found.a.path}\n  B {found.b.path}")
    print(differences_table(found.differences))
    only = found.only_right()
    print(
      f"  {len(found.rows):,} rows are answered differently: only A is right in {only['A']:,}, only B in {only['B']:,}"
    )
    for row in found.rows[: args.show]:
      print(f"  row {row['row']}: {row['inputs']}\n    target {row['target']!r}, A {row['a']!r}, B {row['b']!r}")
    if args.out:
      path = storage.as_path(args.out) / f"{found.name}.differs.jsonl"
      write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows))
      print(f"  all of them: {path}")
  return 0


def _names(args: argparse.Namespace) -> list[str]:
  return [name for name in (args.task or "").split(",") if name]


def _own_task(model: Model) -> list[str]:
  if not model.trained_elsewhere and model.experiment.objective is None:
    return [model.experiment.task]
  raise UserError("this model has no task of its own to be scored on", try_="--task=TASK, or --loss")


def _out(args: argparse.Namespace, model: Model) -> Path:
  return storage.as_path(args.out).absolute() if args.out else model.folder


def _chosen(args: argparse.Namespace) -> CheckpointSelection:
  from t5like.evaluation.following import CheckpointSelection

  return CheckpointSelection(args.step, args.steps, args.follow)


def _check(args: argparse.Namespace) -> None:
  """Options that cannot go together, before anything is loaded."""
  if bool(args.compare) == bool(args.model_dir):
    raise UserError(
      "one model is scored, or two are compared",
      expected="--model_dir=DIR, or --compare A B",
      try_="t5like eval --help",
    )
  if args.model_dir and not args.follow:
    storage.check_reachable(args.model_dir, "--model_dir")
    _check_folder(storage.as_path(args.model_dir))
  for name, least in (("show", 0), ("resamples", 1)):
    if getattr(args, name) < least:
      raise UserError(f"--{name}={getattr(args, name)} cannot work", expected=f"{least} or more")
  loss = args.loss or args.text
  for name, needs, there in (
    ("squad_file", "--submit=squad", args.submit == "squad"),
    ("window", "--loss", loss), ("stride", "--loss", loss), ("objective", "--loss", loss),
  ):  # fmt: skip
    if getattr(args, name) is not None and not there:
      raise UserError(f"--{name} belongs to {needs}", try_=f"{needs} --{name}={getattr(args, name)}")
  if loss and (args.rank or args.shots is not None or args.prompt or args.submit):
    raise UserError("--loss looks at the text as it is", expected="no --rank, --shots, --prompt or --submit beside it")
  if args.submit and (args.follow or args.steps):
    raise UserError("a submission is of one checkpoint", try_="--step=N")


def _check_folder(folder: Path) -> None:
  """Without a look at anything heavy: is there a model at all?"""
  if not any((folder / name).exists() for name in ("config.gin", "config.json", "bert_config.json", "params")):
    raise UserError(
      "no model and no checkpoint here",
      looked=folder,
      found=", ".join(sorted(p.name for p in folder.iterdir())[:8]) if folder.is_dir() else "",
      expected="a model directory (config.gin), its checkpoints/<step>, or a Hugging Face folder (config.json)",
    )
