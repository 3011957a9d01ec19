"""`t5like eval` of tasks: checkpoints, one after the other, on each of them."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from t5like import evaluation, parallel
from t5like.cli.decoding_options import decode_settings, given_options
from t5like.cli.options import task_modules
from t5like.console import ProgressLine, say
from t5like.errors import UserError
from t5like.evaluation import answer_scoring as evaluation_run
from t5like.evaluation import submissions
from t5like.evaluation.answering import rank_answers, write_answers
from t5like.evaluation.evaluation_set import Asker, Questions, default_lengths, open_tasks
from t5like.evaluation.following import Follower, chosen_steps
from t5like.evaluation.scoring import check_functions, score_answers
from t5like.evaluation.tables import FOLDER, Record, Results, checkpoint_identity, scores_table, steps_table
from t5like.files import storage
from t5like.inference.model import LoadedModel, load_model
from t5like.inference.room import NoRoom
from t5like.parallel.process_zero import all_processes, first_process_decides
from t5like.tasks.metrics.values import AUX_VALUES
from t5like.training.checkpoints.folders import checkpoint_steps, checkpoints_folder
from t5like.training.guards.interruption import Interruption
from t5like.training.records.model_dir import CONFIG

_BATCH = 32
NOTHING_EVALUATED = 1


def run(args: argparse.Namespace) -> int:
  with Interruption(parallel.stop_signals()) if args.follow else _Uninterrupted() as interruption:
    if args.follow:
      wait_for_model(args, interruption)
    if interruption.requested:
      return 128 + interruption.signal
    loaded = load_model(args.model_dir, args.vocabulary, modules=task_modules(args))
    with loaded.sharding():
      return _Evaluator(loaded, args, interruption).run()


class _Uninterrupted:
  """Ctrl-C ends the command at once."""

  requested, signal = False, 0

  def __enter__(self) -> _Uninterrupted:
    return self

  def __exit__(self, *unused) -> None:
    pass


class _Stopped(Exception):
  """In the middle of an evaluation."""


def wait_for_model(args: argparse.Namespace, interruption: Any) -> None:
  """A run that has just been started has no checkpoint yet."""
  storage.check_reachable(args.model_dir, "--model_dir")
  folder = storage.as_path(args.model_dir).absolute()
  told = False
  while not interruption.requested and not ((folder / CONFIG).is_file() and checkpoint_steps(folder)):
    if not told:
      say(f"waiting for the first checkpoint in {folder}")
      told = True
    time.sleep(5.0 if storage.is_remote(folder) else 0.5)


def load_next(loaded: LoadedModel, step: int | None, average: bool, several: bool) -> Any:
  """Parameters of a checkpoint; None, and a word on why, where it is damaged or gone and others follow."""
  params, problem = None, None
  try:
    params = loaded.parameters(step, average)
  except UserError as error:
    problem = error
  except (OSError, ValueError) as error:  # removed between two files
    if step is None or (checkpoints_folder(loaded.folder) / str(step)).exists():
      raise
    problem = UserError(str(error))
  if all_processes(problem is None):
    return params
  if not several:
    raise problem or UserError(f"another host cannot read the checkpoint of step {step}")
  gone = step is not None and not (checkpoints_folder(loaded.folder) / str(step)).exists()
  because = problem.lines.get("because", "") if problem else "another host cannot read it"
  say(
    f"step {step:,} was removed before its turn" if gone
    else f"step {step:,} is passed over: {problem.what if problem else ''} {f'({because})' if because else ''}"
  )  # fmt: skip
  return None


class _Evaluator:
  """Asks once what the questions are, then every checkpoint for its answers."""

  def __init__(self, loaded: LoadedModel, args: argparse.Namespace, interruption: Any):
    self._loaded, self._args, self._interruption = loaded, args, interruption
    self._out = storage.as_path(args.out).absolute() if args.out else loaded.folder
    self._results = Results(self._out / FOLDER)
    self._progress = ProgressLine()
    given = given_options(args)
    if args.rank and (set(given) - {"seed"}):
      raise UserError("--rank writes nothing", expected=f"no --{next(iter(set(given) - {'seed'}))} beside it")
    targets = default_lengths(loaded)[1]
    self._settings, self._stops = decode_settings({"max_length": targets} | given, loaded.vocabulary)
    if self._settings.n_best > 1:
      raise UserError("an evaluation looks at the best answer only", expected="no --n_best")
    self._asker = Asker(loaded, args, self._settings.max_length)
    self._described = self._describe(given)
    self._batch_size = args.batch_size or (loaded.experiment.batch_size if not loaded.trained_elsewhere else _BATCH)
    mesh = loaded.mesh
    self._generator = evaluation.Generator(loaded.model, mesh, loaded.special.eos)
    self._scorer = evaluation.CandidateScorer(loaded.model, mesh, loaded.special.start, self._batch_size)

  def run(self) -> int:
    args = self._args
    split = args.split or ("test" if args.submit == "glue" else "validation")
    names = self._names()
    questions = [self._asker(task, split, cache) for task, cache in self._open(names, split).items()]
    if args.submit:
      return self._submit(questions)
    records, evaluated, several = [], 0, bool(args.follow or args.steps)
    try:
      for step in self._steps():
        found = self._checkpoint(step, questions, several)
        if found is None:
          continue
        records, evaluated = [*records, *found], evaluated + 1
        self._tell(step, split, found)
    except _Stopped:
      self._progress.leave()
    if several and evaluated > 1:
      say(f"all checkpoints ({split}):\n{steps_table(records)}")
    if jax.process_index() == 0 and self._results.json.is_file():
      say(f"tables: {self._results.json} and {self._results.csv.name}")
    if self._interruption.requested:
      return 128 + self._interruption.signal
    return 0 if evaluated else NOTHING_EVALUATED

  def _names(self) -> list[str]:
    if self._args.task:
      return [name for name in self._args.task.split(",") if name]
    if self._args.submit:
      return list(submissions.GLUE) if self._args.submit == "glue" else ["squad"]
    if not self._loaded.trained_elsewhere and self._loaded.experiment.objective is None:
      return [self._loaded.experiment.task]
    raise UserError("this model has no task of its own to be scored on", try_="--task=TASK, or --loss")

  def _open(self, names: list[str], split: str) -> dict[str, Any]:
    """Tasks to score; of several, those without metrics are named and left out."""
    caches = open_tasks(self._loaded, self._args, names, split)
    if self._args.submit:
      return caches
    silent = [task for task, cache in caches.items() if not cache.scoring["metrics"] and not cache.is_corpus]
    if silent and len(silent) == len(caches):
      raise UserError(f"task {silent[0]!r} has no metric functions: its answers are withheld", try_="another task")
    if silent:
      say(f"without metrics, left out: {', '.join(silent)}")
    scored = {task: cache for task, cache in caches.items() if task not in silent}
    for cache in scored.values():
      check_functions(cache.scoring, task_modules(self._args))
    return scored

  def _steps(self) -> Iterator[int | None]:
    args, loaded = self._args, self._loaded
    if not (args.follow or args.steps):
      return iter([loaded.step(args.step)])
    if loaded.experiment is None:
      raise UserError(f"{loaded.folder} is a Hugging Face folder: it has no steps")
    if args.steps:
      return iter(chosen_steps(loaded.folder, args.steps))
    return iter(Follower(loaded.folder, lambda: self._interruption.requested))

  def _checkpoint(self, step: int | None, questions: list[Questions], several: bool) -> list[Record] | None:
    """The records of one checkpoint, of earlier evaluations or made now; None where it cannot be read."""
    identity = self._identity(step)
    if identity is None:
      say(f"step {step:,} was removed before its turn")
      return None
    params, records = None, []
    for asked in questions:
      blank = Record(step, identity, asked.task, asked.split, self._described, len(asked.fields), {}, data=asked.data)
      if self._is_known(blank):
        records.append(self._known(blank))
        continue
      if params is None:
        params = load_next(self._loaded, step, self._args.average, several)
        if params is None:
          return None
      records.append(self._evaluate(params, asked, blank))
    return records

  def _identity(self, step: int | None) -> str | None:
    if step is None:
      return ""
    try:
      return checkpoint_identity(checkpoints_folder(self._loaded.folder) / str(step))
    except FileNotFoundError:
      return None

  def _is_known(self, blank: Record) -> bool:
    """Process 0 looks it up, all go by what it finds."""
    if self._args.again:
      return False
    return bool(first_process_decides(lambda: int(self._results.find(blank.key) is not None)))

  def _known(self, blank: Record) -> Record:
    known = (self._results.find(blank.key) if jax.process_index() == 0 else None) or blank
    scores = ", ".join(f"{name} {value:.2f}" for name, value in known.scores.items())
    say(f"{blank.task} was evaluated at {_at(blank.step)} already: {scores}  (--again does it anew)")
    return known

  def _evaluate(self, params: Any, asked: Questions, blank: Record) -> Record:
    result = self.answer(params, asked)
    path = self._predictions(blank)
    record = dataclasses.replace(
      blank, scores=result.scores, majority=result.majority, predictions=str(path.relative_to(self._out))
    )
    if jax.process_index() == 0:
      try:
        result.write(path, asked.data)
      except OSError as error:
        raise UserError("answers cannot be written", file=path, because=error.strerror, try_="--out=DIR") from None
      self._results.add(record)
      evaluation_run.show(result, record.task, record.split, record.step or 0, self._args.show)
    return record

  def answer(self, params: Any, asked: Questions) -> evaluation.Evaluation:
    """Every question once; on several hosts all of them have all answers."""
    note, likelihoods = self._note(asked), None
    if asked.candidates is not None:
      coded = [[self._asker.answer_tokens(text) for text in row] for row in asked.candidates]
      best, scores = rank_answers(self._scorer, params, asked.prompts, coded, self._args.rank, note)
      answers = {n: row[c] if c >= 0 else "" for n, (row, c) in enumerate(zip(asked.candidates, best, strict=True))}
      more = {
        n: {"log_likelihoods": dict(zip(row, values, strict=False))}
        for n, (row, values) in enumerate(zip(asked.candidates, scores, strict=True))
      }
      unanswered = [n for n, chosen in enumerate(best) if chosen < 0]
    else:
      written = write_answers(self._generator, params, asked.prompts, self._settings_for(asked), self._batch_size, note)
      unanswered = [n for n, tokens in enumerate(written) if isinstance(tokens, NoRoom)]
      answers = {n: "" if n in unanswered else self._text(tokens, asked) for n, tokens in enumerate(written)}
      more = None
      if any(entry.get("takes") == AUX_VALUES for entry in asked.scoring["metrics"]):
        likelihoods = dict(enumerate(self._likelihoods(params, asked.prompts, written)))
    target_scores = None if asked.targets is None else self._likelihoods(params, asked.prompts, asked.targets)
    self._progress.leave()
    for n in unanswered:
      say(
        f"{asked.task}: the devices have no room for example {n} of {len(asked.prompts[n]):,} tokens, "
        "which counts as answered with nothing (--inputs_length=N cuts it)"
      )
    modules = task_modules(self._args)
    return score_answers(answers, asked.fields, asked.scoring, more, modules, likelihoods, target_scores)

  def _likelihoods(self, params: Any, prompts: list[list[int]], answers: list[Any]) -> list[float]:
    """Of one answer to each prompt; NaN where the devices had no room for it."""
    known = [[] if isinstance(tokens, NoRoom) else tokens for tokens in answers]
    _, scores = rank_answers(self._scorer, params, prompts, [[tokens] for tokens in known])
    return [
      row[0] if row and not isinstance(given, NoRoom) else math.nan for row, given in zip(scores, answers, strict=True)
    ]

  def _settings_for(self, asked: Questions) -> Any:
    """With the template's own end of an answer among the stop sequences, where the vocabulary can write it."""
    if asked.stop is None:
      return self._settings
    tokens = tuple(self._loaded.vocabulary.encode(asked.stop))
    known = tokens and self._loaded.vocabulary.unk_id not in tokens
    more = (*self._settings.stop_sequences, tokens) if known else self._settings.stop_sequences
    return dataclasses.replace(self._settings, stop_sequences=tuple(dict.fromkeys(more)))

  def _text(self, tokens: list[int], asked: Questions) -> str | list[int]:
    if asked.answers == "ids":
      return tokens
    if self._args.infill:
      sentinels = set(self._loaded.special.sentinels)
      tokens = tokens[1:] if tokens and tokens[0] == self._loaded.special.sentinels[0] else tokens
      end = next((i for i, token in enumerate(tokens) if token in sentinels), len(tokens))
      tokens = tokens[:end]
    text = (asked.vocabulary or self._loaded.vocabulary).decode(tokens)
    for stop in (*self._stops, *([asked.stop] if asked.stop is not None else [])):
      text = text.partition(stop)[0]
    return text.strip() if self._asker.prompted else text

  def _note(self, asked: Questions) -> Callable[[int], None]:
    def note(done: int) -> None:
      self._progress.show(f"{asked.task}: {done:,}/{len(asked.fields):,}")
      if self._interruption.requested and jax.process_count() == 1:
        raise _Stopped

    return note

  def _describe(self, given: dict[str, Any]) -> str:
    """How it is evaluated, in words that tell one way from another."""
    args, words = self._args, []
    if args.rank:
      words.append(f"rank {args.rank}")
    words += [
      f"{name} {value}" for name, value in sorted(given.items()) if name != "seed" or args.shots or not args.rank
    ]
    if args.candidates:
      words.append(f"candidates {args.candidates}")
    if self._asker.prompted:
      template = zlib.crc32(repr(self._asker.template).encode())
      words.append(f"shots {args.shots or 0} prompt {template:08x}" + (" infill" if args.infill else ""))
      words += [f"from {args.shots_split}"] if args.shots and args.shots_split != "train" else []
    words += [f"inputs {args.inputs_length}"] if args.inputs_length else []
    words += ["average"] if args.average else []
    words += [f"first {args.examples}"] if args.examples else []
    return ", ".join(words)

  def _predictions(self, record: Record) -> Path:
    """Greedy answers lie where the train loop puts them; those of other ways say which in their names."""
    step = 0 if record.step is None else record.step
    path = evaluation_run.predictions_path(self._out, record.task, record.split, step, self._args.examples)
    ways = self._described.removesuffix(f"first {self._args.examples}").strip(", ")
    if not ways:
      return path
    slug = re.sub(r"[^\w.]+", "_", ways)[:80]
    return path.with_name(f"{path.stem}-{slug}-{zlib.crc32(ways.encode()):08x}.jsonl")

  def _tell(self, step: int | None, split: str, records: list[Record]) -> None:
    """The table of a checkpoint; a task alone has been told of."""
    if len(records) > 1:
      how = f", {self._described}" if self._described else ""
      say(f"{_at(step)} ({split}{how}):\n{scores_table(records)}")
    elif records[0].predictions:
      say(f"all answers: {self._out / records[0].predictions}")

  def _submit(self, questions: list[Questions]) -> int:
    from t5like.evaluation.leaderboards import submit

    step = self._loaded.step(self._args.step)
    params = load_next(self._loaded, step, self._args.average, several=False)
    return submit(self._args, self._out, step, questions, lambda asked: self.answer(params, asked))


def _at(step: int | None) -> str:
  return "the model" if step is None else f"step {step:,}"
