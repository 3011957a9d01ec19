"""Teacher-forced loss on an evaluation split: how likely the true targets are, without decoding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5like import data, parallel
from t5like.data.layouts import Batch, counting
from t5like.evaluation.loss_sums import add_up
from t5like.experiments.compatibility import check_kind
from t5like.experiments.experiment import Experiment
from t5like.experiments.phases import Phase, blank_batch, is_packed
from t5like.experiments.token_caches import CachedTask
from t5like.objectives import SpecialTokens
from t5like.training.feed import to_devices
from t5like.training.state import StateSpec
from t5like.training.step import LossSettings, compile_eval_step

# Rows and what is hidden in them are the same at every evaluation, and in runs of every seed.
_SEED = 0x10551

EvalStep = Callable[[Any, Any], Mapping[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class EvaluationRows:
  """The rows of an evaluation in batches of one size, of which this host makes its share.

  Rows behind the last are a copy of the first whose targets weigh nothing: they only fill up the last batch.
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
    return counting(self.source.rows(np.where(real, rows, 0)), real)

  def __iter__(self) -> Iterator[Batch]:
    return (self[number] for number in range(len(self)))


class LossEvaluation:
  """The mean loss of a task's targets under some parameters."""

  def __init__(self, eval_step: EvalStep, rows: EvaluationRows, mesh: jax.sharding.Mesh):
    self._eval_step, self._rows, self._mesh = eval_step, rows, mesh

  def __call__(self, params: Any, progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, float]:
    """loss, perplexity, accuracy and target_tokens, the same on every host; `progress` hears of batches done."""
    given = (self._eval_step(params, batch) for batch in to_devices(self._rows, self._mesh))
    return means(add_up(given, lambda done: progress(done, len(self._rows))))


def means(totals: Mapping[str, float]) -> dict[str, float]:
  """What an evaluation says, from sums over its target tokens and sentences."""
  tokens = totals["target_tokens"]
  loss = totals["loss"] / tokens if tokens else math.nan
  result = {
    "loss": loss,
    "perplexity": math.exp(loss) if loss < 700 else loss * math.inf,  # e^710 is beyond a float64
    "accuracy": totals["accuracy"] / tokens if tokens else math.nan,
    "target_tokens": tokens,
  }
  if "sentences" in totals:
    result |= {name: totals[name] / totals["sentences"] for name in ("sentence_loss", "sentence_accuracy")}
  return result


def loss_evaluator(
  experiment: Experiment,
  phase: Phase,
  members: Sequence[CachedTask],
  special: SpecialTokens,
  spec: StateSpec,
  mesh: jax.sharding.Mesh,
  corpus_batches: int = 50,
  microbatches: int = 1,
) -> dict[str, LossEvaluation]:
  """By task, for the members of an evaluation split, in batches of the shape that `phase` has; one compilation for all.

  Of labeled examples every one counts exactly once, packed as in training. Of a corpus the first `corpus_batches`
  batches of a fixed order do, or about one pass where it has fewer.
  """
  rows = {m.task: evaluation_rows(experiment, phase, m, special, corpus_batches, mesh) for m in members}
  if not rows:
    return {}
  settings = LossSettings(microbatches=microbatches)
  eval_step = compile_eval_step(experiment.model, settings, spec, blank_batch(experiment, phase), mesh)
  return {task: LossEvaluation(eval_step, own, mesh) for task, own in rows.items()}


def evaluation_rows(
  experiment: Experiment,
  phase: Phase,
  member: CachedTask,
  special: SpecialTokens,
  corpus_batches: int,
  mesh: jax.sharding.Mesh,
) -> EvaluationRows:
  check_kind(experiment, member.cache)
  layout, lengths, size = experiment.model.batch_layout, phase.lengths, phase.batch_size
  parts = parallel.batch_shards(mesh)
  share = data.HostShare(parts.held, parts.total)
  if not member.cache.is_corpus:
    examples = data.ExampleRows(member.cache, lengths, special, _SEED, layout, experiment.packs)
    return EvaluationRows(examples, examples.rows_per_epoch, size, share)
  packed = is_packed(experiment)
  corpus = data.CorpusRows(member.cache, experiment.objective, lengths, special, _SEED, layout, packed)
  # Whole batches, so that a corpus needs no filling: row numbers go on into the next pass, with other tokens hidden.
  batches = min(corpus_batches, -(-corpus.rows_per_epoch // size))
  return EvaluationRows(corpus, batches * size, size, share)
