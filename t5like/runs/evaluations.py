"""Evaluation while training: by decoding, and by the loss of the true answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from t5like.files import storage
from t5like.evaluation import answer_scoring as evaluation_run
from t5like.experiments.experiment import Experiment
from t5like.runs.loss_evaluation import loss_evaluator
from t5like.runs.preparing import PreparedRun
from t5like.evaluation.scoring import about_path
from t5like.objectives import SpecialTokens
from t5like.training.records.metrics import MetricWriter
from t5like.training.optimizers.moving_average import averaged_parameters, has_average
from t5like.console import say
from t5like.training.state import TrainState

_SHOWN_EXAMPLES = 5

# (state) -> scores by their full names, such as eval/snli/accuracy
Evaluate = Callable[[TrainState], dict[str, float]]


def evaluated_parameters(state: TrainState) -> Any:
  """The moving average of the parameters where the optimizer keeps one: that is what it is for."""
  return averaged_parameters(state.opt_state, state.params) if has_average(state.opt_state) else state.params


def decoding_evaluation(run: PreparedRun, writer: MetricWriter, beat: Callable[[], None]) -> Evaluate:
  """Scores a state by decoding, prints and records. `beat` is called as it goes on."""
  experiment = run.experiment
  split, examples = experiment.eval_split, experiment.eval_examples
  scorers = {
    member.task: evaluation_run.scorer(
      experiment.model,
      run.mesh,
      run.vocabulary,
      member.cache,
      run.phases[-1].lengths,
      experiment.batch_size,
      examples,
      beat,
      experiment.task_modules,
    )
    for member in run.scored
  }

  identities = {m.task: evaluation_run.data_identity(m.cache, experiment.task_modules) for m in run.scored}

  def evaluate(state: TrainState) -> dict[str, float]:
    step, params, found = int(state.step), evaluated_parameters(state), {}
    for task, score in scorers.items():
      result = score(params)
      if jax.process_index() == 0:
        result.write(evaluation_run.predictions_path(run.model_dir, task, split, step, examples), identities[task])
        evaluation_run.show(result, task, split, step, _SHOWN_EXAMPLES)
      writer.write(step, f"eval/{task}", result.scores)
      found |= {f"eval/{task}/{name}": value for name, value in result.scores.items()}
    return found

  return evaluate


def loss_evaluation(run: PreparedRun, writer: MetricWriter, beat: Callable[[], None]) -> Evaluate:
  """The loss of the true answers, over the same text every time."""
  experiment = run.experiment
  losses = loss_evaluator(
    experiment,
    run.phases[-1],
    run.evaluated,
    SpecialTokens.of(run.vocabulary),
    run.spec,
    run.mesh,
    experiment.eval_loss_batches,
    experiment.microbatches,
  )

  def evaluate(state: TrainState) -> dict[str, float]:
    step, params, found = int(state.step), evaluated_parameters(state), {}
    for task, loss in losses.items():
      values = loss(params, lambda *done: beat())
      writer.write(step, f"eval_loss/{task}", values)
      shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
      say(f"{task} ({experiment.eval_split}) at step {step:,}: {shown}")
      found |= {f"eval_loss/{task}/{name}": value for name, value in values.items()}
    return found

  return evaluate


def was_evaluated(run: PreparedRun, rows: Iterable[Mapping[str, Any]]) -> bool:
  """Whether every scored task, as it is now, has its scores among the rows of a step; they are then shown."""
  experiment = run.experiment
  by_kind = {row["kind"]: row for row in rows}
  if not all(f"eval/{member.task}" in by_kind for member in run.scored):
    return False
  for member in run.scored:
    step = by_kind[f"eval/{member.task}"]["step"]
    split, examples = experiment.eval_split, experiment.eval_examples
    path = evaluation_run.predictions_path(run.model_dir, member.task, split, step, examples)
    if not _is_of(about_path(path), evaluation_run.data_identity(member.cache, experiment.task_modules)):
      say(f"{member.task} has changed since it was scored at step {step:,}")
      return False
  for member in run.scored:
    scores = {k: v for k, v in by_kind[f"eval/{member.task}"].items() if k not in ("step", "kind")}
    say(f"{member.task} was scored at this step: " + ", ".join(f"{k} {v:.2f}" for k, v in scores.items()))
  return True


def _is_of(about: Path, identity: str) -> bool:
  """False where a file of predictions is of other examples or scoring; runs of before do not say."""
  try:
    return storage.read_json(about).get("data") in (None, identity)
  except (OSError, ValueError):
    return True
