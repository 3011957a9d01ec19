"""Evaluation during training: by decoding, and by teacher-forced loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from t5like.console import ProgressLine, say
from t5like.evaluation import EvaluatedModel, EvaluationSettings, data_identity, make_evaluator
from t5like.evaluation.evaluator import Evaluator
from t5like.evaluation.heads.evaluator import HeadEvaluator
from t5like.evaluation.scoring import about_path, predictions_path
from t5like.experiments.languages import special_tokens, task_languages
from t5like.files import storage
from t5like.runs.loss_evaluation import EvalStep, loss_evaluator, loss_step
from t5like.runs.preparing import PreparedRun
from t5like.runs.saved_parameters import without_teacher
from t5like.training.optimizers.moving_average import averaged_parameters, has_average
from t5like.training.records.metrics import MetricWriter
from t5like.training.state import TrainState

_SHOWN_EXAMPLES = 5

# (state) -> scores by full name, such as eval/snli/accuracy
Evaluate = Callable[[TrainState], dict[str, float]]


def evaluated_parameters(state: TrainState) -> Any:
  """Returns the parameters to evaluate: their moving average if the optimizer has one."""
  params = averaged_parameters(state.opt_state, state.params) if has_average(state.opt_state) else state.params
  return without_teacher(params)


class EvaluationPrograms:
  """The compiled programs of a run's evaluations, which runs of the same shape share."""

  def __init__(self, run: PreparedRun):
    self._run = run

  @functools.cached_property
  def evaluator(self) -> Evaluator | HeadEvaluator:
    run, experiment = self._run, self._run.experiment
    model = EvaluatedModel.of(experiment.model, run.mesh, run.vocabulary, experiment)
    split, examples = experiment.eval_split, experiment.eval_examples
    settings = EvaluationSettings(split=split, examples=examples, task_modules=tuple(experiment.task_modules))
    return make_evaluator(model, settings)

  @functools.cached_property
  def loss_step(self) -> EvalStep:
    run = self._run
    return loss_step(run.experiment, run.phases[-1], run.evaluated_spec, run.mesh)


def decoding_evaluation(
  run: PreparedRun, programs: EvaluationPrograms, writer: MetricWriter, heartbeat: Callable[[], None]
) -> Evaluate:
  """Returns a function that scores a state by decoding, prints and records. Calls `heartbeat` after every batch."""
  split, examples = run.experiment.eval_split, run.experiment.eval_examples
  evaluator, line = programs.evaluator, ProgressLine()

  def evaluate(state: TrainState) -> dict[str, float]:
    step, params, scores = int(state.step), evaluated_parameters(state), {}
    for member in run.scored:
      task, evaluation_set = member.task, evaluator.read(member.task, member.cache)

      def progress(done: int, total: int = len(evaluation_set.fields)) -> None:
        heartbeat()
        line.show(f"decoding {done:,}/{total:,}")

      result = evaluator(params, evaluation_set, progress)
      line.end_line()
      for note in result.notes:
        say(note)
      if jax.process_index() == 0:
        result.write(predictions_path(run.model_dir, task, split, step, examples), evaluation_set.data)
      say(result.report(task, split, step, _SHOWN_EXAMPLES))
      writer.write(step, f"eval/{task}", result.scores)
      scores |= {f"eval/{task}/{name}": value for name, value in result.scores.items()}
    return scores

  return evaluate


def loss_evaluation(
  run: PreparedRun, programs: EvaluationPrograms, writer: MetricWriter, heartbeat: Callable[[], None]
) -> Evaluate:
  """Returns a function that computes the teacher-forced loss, on the same text every time."""
  experiment = run.experiment
  losses = loss_evaluator(
    experiment,
    run.phases[-1],
    run.evaluated,
    special_tokens(experiment.model.config, run.vocabulary, task_languages(experiment)),
    run.mesh,
    programs.loss_step,
  )

  def evaluate(state: TrainState) -> dict[str, float]:
    step, params, scores = int(state.step), evaluated_parameters(state), {}
    for task, loss in losses.items():
      values = loss(params, lambda *done: heartbeat())
      writer.write(step, f"eval_loss/{task}", values)
      shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
      say(f"{task} ({experiment.eval_split}) at step {step:,}: {shown}")
      scores |= {f"eval_loss/{task}/{name}": value for name, value in values.items()}
    return scores

  return evaluate


def was_evaluated(run: PreparedRun, rows: Iterable[Mapping[str, Any]]) -> bool:
  """Returns whether the rows of a step have scores of every task in its current form; prints them if so."""
  experiment = run.experiment
  by_kind = {row["kind"]: row for row in rows}
  if not all(f"eval/{member.task}" in by_kind for member in run.scored):
    return False
  for member in run.scored:
    step = by_kind[f"eval/{member.task}"]["step"]
    split, examples = experiment.eval_split, experiment.eval_examples
    path = predictions_path(run.model_dir, member.task, split, step, examples)
    if not _is_current(about_path(path), data_identity(member.cache, experiment.task_modules)):
      say(f"{member.task} has changed since it was scored at step {step:,}")
      return False
  for member in run.scored:
    scores = {k: v for k, v in by_kind[f"eval/{member.task}"].items() if k not in ("step", "kind")}
    say(f"{member.task} was already scored at this step: " + ", ".join(f"{k} {v:.2f}" for k, v in scores.items()))
  return True


def _is_current(about: Path, identity: str) -> bool:
  """Returns False for predictions of other examples or scoring. Older runs did not record this: True."""
  try:
    return storage.read_json(about).get("data") in (None, identity)
  except (OSError, ValueError):
    return True
