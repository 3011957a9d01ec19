"""Teacher-forced loss on an evaluation split, without decoding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5like import data, parallel
from t5like.data.layouts import Batch, zero_loss_on_filler_rows
from t5like.evaluation.loss_sums import sum_batches
from t5like.experiments.compatibility import check_kind
from t5like.experiments.experiment import Experiment
from t5like.experiments.heads import rows_form
from t5like.experiments.phases import Phase, blank_batch, is_packed
from t5like.experiments.token_caches import CachedTask
from t5like.objectives import SpecialTokens
from t5like.training.detection import COUNTS, detection_scores
from t5like.training.feed import to_devices
from t5like.training.state import StateSpec
from t5like.training.step import LossSettings, compile_eval_step

# Rows and their corruption are the same at every evaluation, for any seed of the run.
_SEED = 0x10551

EvalStep = Callable[[Any, Any], Mapping[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class EvaluationRows:
  """The rows of an evaluation in batches of a fixed size; this host builds its share of each.

  The last batch is filled up with copies of the first row whose targets have weight 0.
  """

  source: data.RowSource
  rows: int
  batch_size: int
  share: data.HostShare

  def __len__(self) -> int:
    return -(-self.rows // self.batch_size)

  def __getitem__(self, number: int) -> Batch:
    rows = number * self.batch_size + self.share.rows(self.batch_size).astype(np.int64)
    real = rows < self.rows
    return zero_loss_on_filler_rows(self.source.rows(np.where(real, rows, 0)), real)

  def __iter__(self) -> Iterator[Batch]:
    return (self[number] for number in range(len(self)))


class LossEvaluation:
  """The mean loss of a task's targets under some parameters."""

  def __init__(self, eval_step: EvalStep, rows: EvaluationRows, mesh: jax.sharding.Mesh):
    self._eval_step, self._rows, self._mesh = eval_step, rows, mesh

  def __call__(self, params: Any, progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, float]:
    """Returns loss, perplexity, accuracy and target_tokens, the same on every host; reports batches to `progress`."""
    sums = (self._eval_step(params, batch) for batch in to_devices(self._rows, self._mesh))
    return means(sum_batches(sums, lambda done: progress(done, len(self._rows))))


def means(totals: Mapping[str, float]) -> dict[str, float]:
  """Returns the metrics of an evaluation from sums over its target tokens and sentences."""
  tokens = totals["target_tokens"]
  loss = totals["loss"] / tokens if tokens else math.nan
  result = {"loss": loss, "target_tokens": tokens}
  if "accuracy" in totals:  # not for regression
    result |= {
      "perplexity": math.exp(loss) if loss < 700 else loss * math.inf,  # e^710 is beyond a float64
      "accuracy": totals["accuracy"] / tokens if tokens else math.nan,
    }
  if "sentences" in totals:
    result |= {name: totals[name] / totals["sentences"] for name in ("sentence_loss", "sentence_accuracy")}
  for name in [name for name in totals if f"{name}_count" in totals]:  # losses that the model adds
    result[name] = totals[name] / max(totals[f"{name}_count"], 1.0)
  if COUNTS in totals:
    result |= detection_scores(totals[COUNTS])
  return result


def loss_evaluator(
  experiment: Experiment,
  phase: Phase,
  members: Sequence[CachedTask],
  special: SpecialTokens,
  mesh: jax.sharding.Mesh,
  eval_step: EvalStep,
) -> dict[str, LossEvaluation]:
  """Returns a loss evaluation for each task of an evaluation split; `eval_step` is compiled by `loss_step`.

  Labeled examples count exactly once each, packed as in training. Of a corpus, the first EVAL_LOSS_BATCHES batches of a
  fixed order count, or about one pass if it has fewer.
  """
  rows = {m.task: evaluation_rows(experiment, phase, m, special.of_task(m.task), mesh) for m in members}
  return {task: LossEvaluation(eval_step, task_rows, mesh) for task, task_rows in rows.items()}


def loss_step(experiment: Experiment, phase: Phase, spec: StateSpec, mesh: jax.sharding.Mesh) -> EvalStep:
  """Compiles the evaluation of batches with the shape of `phase`."""
  settings = LossSettings(microbatches=experiment.microbatches)
  return compile_eval_step(experiment.model, settings, spec, blank_batch(experiment, phase), mesh)


def evaluation_rows(
  experiment: Experiment, phase: Phase, member: CachedTask, special: SpecialTokens, mesh: jax.sharding.Mesh
) -> EvaluationRows:
  check_kind(experiment, member.cache)
  layout, lengths, size = experiment.model.batch_layout, phase.lengths, phase.batch_size
  parts = parallel.batch_shards(mesh)
  share = data.HostShare(parts.held, parts.total)
  if experiment.has_head:
    labeled = data.labeled_rows(member.cache, rows_form(experiment.model, member.cache), lengths.inputs, special, _SEED)
    return EvaluationRows(labeled, labeled.rows_per_epoch, size, share)
  if not member.cache.is_corpus:
    examples = data.ExampleRows(member.cache, lengths, special, _SEED, layout, experiment.packs)
    return EvaluationRows(examples, examples.rows_per_epoch, size, share)
  packed = is_packed(experiment)
  corpus = data.CorpusRows(member.cache, experiment.objective, lengths, special, _SEED, layout, packed)
  # Full batches without padding rows: row numbers continue into the next pass, with other tokens corrupted.
  batches = min(experiment.eval_loss_batches, -(-corpus.rows_per_epoch // size))
  return EvaluationRows(corpus, batches * size, size, share)
