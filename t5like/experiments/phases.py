"""The phases of a run and the batches of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from t5like import data, parallel
from t5like.data.labeled_rows import blank_labels
from t5like.data.layouts import Batch, blank
from t5like.errors import UserError
from t5like.experiments.compatibility import check_kind, row_lengths, row_tokens
from t5like.experiments.experiment import Experiment
from t5like.experiments.heads import head_form, rows_form
from t5like.experiments.token_caches import CachedTask
from t5like.objectives import Lengths, SpecialTokens


@dataclasses.dataclass(frozen=True)
class Phase:
  """A phase with batches of one shape; `steps` None: to the end of the run."""

  lengths: Lengths
  batch_size: int
  steps: int | None = None


def run_phases(experiment: Experiment, special: SpecialTokens) -> list[Phase]:
  """Returns the phases of PHASES, then the one of LENGTHS and BATCH_SIZE."""
  given = [*experiment.phases, {}]
  phases = [
    Phase(
      row_lengths(experiment, phase.get("lengths", experiment.lengths), special),
      phase.get("batch_size", experiment.batch_size),
      phase.get("steps"),
    )
    for phase in given
  ]
  for phase in phases:
    tokens = phase.batch_size * row_tokens(experiment.model, phase.lengths)
    if tokens >= 2**31:
      raise UserError(f"a step of {tokens:,} tokens is too large", expected=f"BATCH_SIZE x LENGTHS below {2**31:,}")
  return phases


def phases_left(phases: Sequence[Phase], first_step: int) -> list[Phase]:
  """Returns the phases that are left for a run starting at `first_step`."""
  left, end = [], 0
  for phase in phases:
    end = None if phase.steps is None else end + phase.steps
    if end is None or end > first_step:
      left.append(phase)
  return left


def shapes_left(phases: Sequence[Phase], batches: data.Batches | None, first_step: int) -> list[Phase]:
  """Returns the phases that are left, each with every length of its batches, the longest first: see length_buckets."""
  left = phases_left(phases, first_step)
  if batches is None:
    return left
  found = []
  for phase, rows in zip(left, batches.phases[-len(left) :], strict=True):
    lengths = [dataclasses.replace(phase.lengths, inputs=length) for length in reversed(rows.buckets)]
    found += [dataclasses.replace(phase, lengths=each) for each in lengths or [phase.lengths]]
  return found


def make_batches(
  experiment: Experiment,
  members: Sequence[CachedTask],
  phases: Sequence[Phase],
  special: SpecialTokens,
  parts: parallel.BatchShards,
) -> data.Batches:
  """Returns the batches of a run, of which this process reads `parts`; phases of equal lengths share a row source."""
  for member in members:
    check_kind(experiment, member.cache)
  if experiment.carries_state and len(members) > 1:
    raise UserError(
      f"{type(experiment.model).__name__} carries its state from one batch to the next, and reads one corpus",
      found=", ".join(member.task for member in members),
    )
  sources: dict[Lengths, data.RowSource] = {}
  rows = []
  for number, phase in enumerate(phases):
    if phase.lengths not in sources:
      # A different seed per row source, or a second phase would start with the text of the first.
      seed = experiment.seed + (number << 32)
      sources[phase.lengths] = _mixed(experiment, members, phase.lengths, special, seed)
    source = sources[phase.lengths]
    buckets = length_buckets(experiment.length_buckets, source)
    rows.append(data.PhaseRows(source, phase.batch_size, phase.steps, buckets))
  return data.Batches(rows, data.HostShare(parts.held, parts.total))


def length_buckets(given: Sequence[int], source: data.RowSource) -> tuple[int, ...]:
  """Returns the lengths that batches of a source may have, up to the one for its longest row; () for equal lengths."""
  if not given or not isinstance(source, data.LabeledRows) or source.sizes is None or not source.rows_per_epoch:
    return ()
  shorter = sorted({length for length in given if length < source.length})
  needed = int(np.searchsorted([*shorter, source.length], source.sizes.max())) + 1
  return tuple([*shorter, source.length][:needed])


def _mixed(
  experiment: Experiment, members: Sequence[CachedTask], lengths: Lengths, special: SpecialTokens, seed: int
) -> data.RowSource:
  sources = [_source(experiment, member.cache, lengths, special.of_task(member.task), seed) for member in members]
  return sources[0] if len(sources) == 1 else data.MixtureRows(sources, [member.rate for member in members])


def _source(
  experiment: Experiment, cache: data.TokenCache, lengths: Lengths, special: SpecialTokens, seed: int
) -> data.RowSource:
  if experiment.has_head:
    rows = data.labeled_rows(cache, rows_form(experiment.model, cache), lengths.inputs, special, seed)
    rows.check()
    return rows
  layout = experiment.train_layout
  if cache.is_corpus:
    limit = experiment.unique_tokens
    text = cache if limit is None else data.FirstTokens(cache, limit)
    if experiment.carries_state:
      return data.WindowRows(text, lengths, special, seed, experiment.batch_size)
    order = None
    if cache.pool:
      order = data.PooledOrder.of(lengths.raw * np.dtype(cache.manifest["dtype"]).itemsize, cache.pool)
    return data.CorpusRows(text, experiment.objective, lengths, special, seed, layout, is_packed(experiment), order)
  return data.ExampleRows(cache, lengths, special, seed, layout, experiment.packs)


def is_packed(experiment: Experiment) -> bool:
  """Returns whether rows contain several (labeled) examples."""
  return experiment.packs and (experiment.objective is None or bool(experiment.mix))


def blank_batch(experiment: Experiment, phase: Phase) -> Batch:
  """Returns an empty batch in the shapes of a phase."""
  objective = experiment.objective
  if experiment.has_head:
    return blank_labels(head_form(experiment.model), phase.lengths.inputs, phase.batch_size)
  batch = blank(
    experiment.model.batch_layout,
    phase.lengths,
    phase.batch_size,
    packed=is_packed(experiment),
    shifted=objective is not None and objective.shifted,
  )
  if experiment.carries_state:
    batch["decoder_continues"] = np.zeros(phase.batch_size, np.int32)
  if "labels" in batch and not objective.labels_rows:
    del batch["labels"]
  if objective is not None and objective.orders_tokens:
    batch["encoder_order"] = np.zeros_like(batch["encoder_input_tokens"])
  return batch
