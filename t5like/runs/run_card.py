"""The run card of a training run."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import numpy as np

from t5like import data, planning
from t5like.console import memory_size
from t5like.data.in_place import UNIT
from t5like.data.layouts import Batch
from t5like.experiments.compatibility import phase_flops, row_tokens, stack_lengths
from t5like.experiments.experiment import Experiment
from t5like.experiments.phases import Phase, blank_batch
from t5like.experiments.streaming import MISSING_GUARANTEES, StreamProcess
from t5like.files import data_card
from t5like.finetuning import TrainingPlan
from t5like.models import ELECTRA
from t5like.models.attention import describe_backend
from t5like.models.config import TransformerConfig
from t5like.models.heads import WithHead
from t5like.models.recurrent import RecurrentConfig
from t5like.models.stack import describe_layer_loop
from t5like.objectives import Lengths
from t5like.planning.run_card import devices, large, version_numbers, versions
from t5like.runs.pools import POOLS
from t5like.runs.saved_parameters import without_teacher
from t5like.runs.starting_table import starting_data, starting_text
from t5like.runs.trained_flops import mean_share
from t5like.training.state import StateSpec, parameter_count

if TYPE_CHECKING:
  from t5like.runs.preparing import PreparedRun

_MAX_LABELS = 8  # shown on the card
_CARDS_SHOWN = 3  # of the data of a mixture
_SAMPLED_STEPS = 256  # whose lengths are averaged


@dataclasses.dataclass(frozen=True)
class RunCard:
  """Summary of a run before it starts, as labeled lines and as data."""

  entries: Mapping[str, str]
  facts: Mapping[str, Any]

  def __str__(self) -> str:
    return planning.render_run_card(self.entries)

  def as_json(self) -> str:
    return json.dumps({**self.facts, "text": dict(self.entries)}, indent=1) + "\n"


def describe_run(run: PreparedRun) -> RunCard:
  experiment, plan, phases, batches, mesh = run.experiment, run.plan, run.phases, run.batches, run.mesh
  config, cards, teacher, flops_shares = experiment.model.config, _data_cards(batches), run.teacher, run.flops_shares
  spec = run.specs[plan.episodes.index(plan.largest)]
  lengths = phases[-1].lengths
  steps = steps_per_phase(phases, experiment.steps)
  tokens = [phase.batch_size * row_tokens(experiment.model, phase.lengths) for phase in phases]
  all_tokens = sum(each * n for each, n in zip(tokens, steps, strict=True))
  all_rows = sum(phase.batch_size * n for phase, n in zip(phases, steps, strict=True))
  step_flops = [phase_flops(run.model, phase.batch_size, phase.lengths) for phase in phases]
  parameters = parameter_count(without_teacher(spec.shapes.params))
  all_flops = round(mean_share(flops_shares, plan) * sum(flops * n for flops, n in zip(step_flops, steps, strict=True)))
  entries = {
    "versions": versions(),
    "devices": devices(mesh),
    "model": (
      f"{_model_name(experiment.model)}, {parameters:,} parameters: {_sizes_text(config)}, "
      f"compute dtype {config.compute_dtype}, "
      f"dropout {config.dropout_rate:g}"
    ),
    **({"teacher": teacher.describe()} if teacher else {}),
    **_computation_texts(experiment, lengths),
    "vocabulary": f"{experiment.vocabulary}, embedding of {config.vocab_size:,} rows",
    "data": _stream_text(experiment, run.stream, run.stream_reason)
    if experiment.stream
    else _data_text(experiment, lengths, batches, all_rows, run.expected)
    + "".join(f"\nsee {card}" for card in itertools.islice(cards.values(), _CARDS_SHOWN)),
    "batch": "\n".join(
      f"{phase.batch_size} rows x {_row_text(experiment, phase)} = {each:,} tokens per step, "
      f"{large(each * n)} in {n:,} steps"
      for phase, each, n in zip(phases, tokens, steps, strict=True)
    )
    + (f"\n{large(all_tokens)} in total" if len(phases) > 1 else "")
    + _buckets_text(batches, experiment.steps)
    + (f"\nin {experiment.microbatches} microbatches" if experiment.microbatches > 1 else "")
    + ("\nthe loss is on inputs and targets, in evaluations on targets" if experiment.loss_on_inputs else ""),
    "FLOPs": (
      f"{large(round(flops_shares[-1] * step_flops[-1]), 'FLOP')} per step, {large(all_flops, 'FLOP')} in total "
      f"(model FLOPs, no recomputation){_frozen_text(flops_shares)}"
    ),
    "memory": _memory_text(experiment, plan, spec, mesh, blank_batch(experiment, phases[-1])),
    "trains": plan.describe(),
    "optimizer": f"{experiment.optimizer.description}, learning rate {_rate_text(experiment)}",
    "seed": f"{experiment.seed}; {_reproducibility(experiment, mesh)}",
    "starts from": "\n".join(filter(None, [run.start.description, starting_text(run.start.uses)])),
    "writes to": f"{run.model_dir}\n{_checkpoints_text(experiment)}",
  }
  facts = {
    "versions": version_numbers(),
    "devices": {
      "kind": mesh.devices.flat[0].device_kind,
      "count": mesh.devices.size,
      "hosts": jax.process_count(),
      "mesh": dict(mesh.shape),
    },
    "model": {"class": type(experiment.model).__name__, **_head_facts(experiment.model), **dataclasses.asdict(config)},
    "parameters": parameters,
    **({"teacher": teacher.facts()} if teacher else {}),
    "trains": plan.facts(),
    "task": experiment.task,
    "objective": experiment.objective.name if experiment.objective else None,
    "steps": experiment.steps,
    "tokens": all_tokens,
    "model_flops": all_flops,
    "seed": experiment.seed,
    POOLS: _pools(batches),
    "data_cards": cards,
    "starts_from": {"source": run.start.description, "variables": starting_data(run.start.uses)},
  }
  return RunCard(entries, facts)


def _frozen_text(flops_shares: Sequence[float]) -> str:
  if min(flops_shares) == 1.0:
    return ""
  at_first = ", at first" if len(flops_shares) > 1 else ""
  return f"\n{flops_shares[0]:.2f} of a step that trains everything{at_first}"


def _head_facts(model: nn.Module) -> dict[str, Any]:
  if not isinstance(model, WithHead):
    return {}
  fields = [f.name for f in dataclasses.fields(model.head) if f.name not in ("parent", "name")]
  settings = {name: getattr(model.head, name) for name in fields}
  layer = {} if model.layer is None else {"layer": model.layer}
  return {"backbone": type(model.backbone).__name__, "head": {"class": type(model.head).__name__, **settings, **layer}}


def _sizes_text(config: TransformerConfig | RecurrentConfig) -> str:
  if isinstance(config, RecurrentConfig):
    return f"{config.num_layers} LSTM layers, {config.embed_dim} wide, cells of {config.hidden_dim}"
  return (
    f"{config.num_encoder_layers}+{config.num_decoder_layers} layers, {config.embed_dim} wide, "
    f"{config.num_heads} heads x {config.head_dim}{_attention_text(config)}, mlp {config.mlp_dim}"
  )


def _computation_texts(experiment: Experiment, lengths: Lengths) -> dict[str, str]:
  """Returns how layers and attention are computed."""
  config = experiment.model.config
  if isinstance(config, RecurrentConfig):
    carried = "the state is carried from batch to batch" if experiment.carries_state else "every row starts from zeros"
    return {"layers": f"a loop over the positions of a row; {carried}"}
  attention = describe_backend(
    config,
    **stack_lengths(experiment.model, lengths),
    packed=experiment.packs,
    deterministic=experiment.deterministic,
  )
  return {"layers": describe_layer_loop(config), "attention": attention}


def _attention_text(config: TransformerConfig) -> str:
  """Returns what differs from an attention in which every head has its own keys and reads all of them."""
  grouped = f" ({config.kv_heads} of keys)" if config.kv_heads != config.num_heads else ""
  return grouped + (f", window {config.attention_window:,}" if config.attention_window else "")


def _model_name(model: nn.Module) -> str:
  if isinstance(model, ELECTRA) and model.config.mlm_head:
    generator = model.generator_config
    return f"ELECTRA with a generator {generator.embed_dim} wide ({generator.num_heads} heads, mlp {generator.mlp_dim})"
  if not isinstance(model, WithHead):
    return type(model).__name__
  head = model.head
  labels = ", ".join(getattr(head, "labels", ())[:_MAX_LABELS])
  labels += ", ..." if len(getattr(head, "labels", ())) > _MAX_LABELS else ""
  given = [labels] if labels else [f"{head.choices} choices"] if head.form == "choices" else []
  given += [f"pooling {head.pooling}"] if head.pooling else []
  given += [f"loss {head.loss}, {head.texts} texts per row"] if head.form == "embedding" else []
  given += ["a learned mix of layers"] if head.mix_layers else []
  given += [f"the states of layer {model.layer}"] if model.layer is not None else []
  article = "an" if head.form == "embedding" else "a"
  return f"{type(model.backbone).__name__} with {article} {type(head).__name__} ({'; '.join(given)})"


def _reproducibility(experiment: Experiment, mesh: jax.sharding.Mesh) -> str:
  if experiment.deterministic or mesh.devices.flat[0].platform != "gpu":
    return "bitwise reproducible on this kind of device"
  return "DETERMINISTIC = False: repeated runs differ slightly"


def _row_text(experiment: Experiment, phase: Phase) -> str:
  if experiment.model.batch_layout == "encoder":
    texts = getattr(experiment.model, "texts_per_row", 1)
    # Targets are at the same positions.
    each = "texts" if getattr(getattr(experiment.model, "head", None), "form", "") == "embedding" else "choices"
    return f"{texts} {each} x {phase.lengths.inputs} inputs" if texts > 1 else f"{phase.lengths.inputs} inputs"
  return f"({phase.lengths.inputs} inputs + {phase.lengths.targets} targets)"


def _rate_text(experiment: Experiment) -> str:
  rate, end = experiment.optimizer.learning_rate, experiment.steps - 1
  first, before, last = (float(rate(jax.numpy.int32(step))) for step in (0, max(end - 1, 0), end))
  rising = ", still rising: the warm-up does not end before the run" if before < last else ""
  return f"{first:.3g} at the start, {last:.3g} at the end{rising}"


def _buckets_text(batches: data.Batches | None, steps: int) -> str:
  """Returns how batches of a head are padded, and the mean length of the first ones."""
  rows = batches.phases[-1] if batches else None
  if rows is None or not rows.buckets:
    return ""
  mean = float(np.mean(rows.lengths(0, min(steps, _SAMPLED_STEPS))))
  if len(rows.buckets) == 1:
    return f"\nat most: no row has more than {rows.buckets[0]} tokens, to which all are padded"
  *lengths, last = map(str, rows.buckets)
  return (
    f"\nat most: a batch is padded to {', '.join(lengths)} or {last} tokens by its longest row, {mean:.0f} on average"
  )


def _checkpoints_text(experiment: Experiment) -> str:
  keep = experiment.keep
  when = [f"every {experiment.checkpoint_period:,} steps"] if experiment.checkpoint_period else []
  when += [f"every {experiment.checkpoint_minutes:g} minutes"] if experiment.checkpoint_minutes else []
  kept = [f"the last {keep.last}"]
  kept += [f"all multiples of {keep.every:,}"] if keep.every else []
  kept += [f"the best {keep.best} by {keep.metric}"] if keep.best else []
  return f"a checkpoint {' and '.join([*when, 'at the end'])}; keeps {', '.join(kept)}"


def steps_per_phase(phases: Sequence[Phase], steps: int) -> list[int]:
  """Returns the number of steps in each phase of a run."""
  counts = []
  for phase in phases:
    counts.append(steps if phase.steps is None else min(phase.steps, steps))
    steps -= counts[-1]
  return counts


def _stream_text(experiment: Experiment, stream: StreamProcess | None, reason: str) -> str:
  rows = "packed by seqio" if experiment.packs else "one example per row"
  what = f"objective {experiment.objective.name}" if experiment.objective else rows
  lines = [f"task {experiment.task} ({experiment.split}), {what}", MISSING_GUARANTEES]
  if reason:
    lines.insert(1, f"cannot be cached: {reason}")
  if experiment.eval_split:
    lines.append(f"evaluation uses a token cache of the split {experiment.eval_split}: each example exactly once")
  return "\n".join(lines + (stream.describe() if stream else []))


def _data_text(
  experiment: Experiment,
  lengths: Lengths,
  batches: data.Batches | None,
  rows: int,
  expected: Sequence[tuple[str, float, int | None]],
) -> str:
  name = f"task {experiment.task} ({experiment.split})"
  if batches is None:
    text = f"{name}: not tokenized yet; the run will do that first"
    if len(expected) < 2:
      return text
    members = [f"  {share:6.1%}  {task}" + (f", {size:,} rows" if size else "") for task, share, size in expected]
    return "\n".join([text, f"a mixture of {len(expected)} tasks", *members])
  source = batches.phases[-1].source
  count = rows / source.rows_per_epoch
  shown = f"{count:,.0f}" if count >= 100 else f"{count:.3g}"
  passes = f"{source.rows_per_epoch:,} rows, {shown} passes in this run"
  if isinstance(source, data.MixtureRows):
    members = [_member_text(*member, sum(source.rates)) for member in zip(source.sources, source.rates, strict=True)]
    return "\n".join([f"{name}: a mixture of {len(members)} tasks", *members, passes])
  if isinstance(source, data.LabeledRows):
    what = "windows" if source.form.name == "spans" else "questions" if source.form.name == "choices" else "examples"
    return f"{name}: {source.rows_per_epoch:,} {what}, one per row, {source.efficiency:.1%} full\n{passes}"
  if isinstance(source, data.ExampleRows):
    how = f"packed, {source.efficiency:.1%} full" if source.pack else "one per row (not packed)"
    return f"{name}: {source.cache.examples:,} examples, {how}{_finished_text(source.cache)}\n{passes}"
  if isinstance(source, data.WindowRows):
    return (
      f"{name}: {source.cache.tokens:,} tokens, objective {experiment.objective.name}\n"
      f"{source.streams} streams side by side, in windows of {lengths.targets} tokens; {passes}"
    )
  kinds = {
    "stream": f"full rows of {lengths.raw} tokens of running text",
    "document": f"rows of up to {lengths.raw} tokens of one document",
    "sentences": f"rows of complete sentences, up to {lengths.raw} tokens",
  }
  return (
    f"{name}: {source.cache.tokens:,} tokens, objective {experiment.objective.name}\n"
    f"{kinds[experiment.objective.unit]}; {passes}{_order_text(source, batches.phases[-1].batch_size)}"
  )


def _order_text(source: data.CorpusRows, batch_size: int) -> str:
  if source.order is None:
    return ""
  row = UNIT / source.order.block
  return (
    f"\nread in place from {source.cache.folder}: every host reads {batch_size * row / 1e6:.2f} MB per step\n"
    f"shuffled in pools of {source.order.blocks * source.order.block:,} rows "
    f"({source.order.blocks:,} blocks of {source.order.block:,}, from all over the corpus)"
  )


def _sources(batches: data.Batches | None) -> list[data.RowSource]:
  source = batches.phases[-1].source if batches else None
  return list(getattr(source, "sources", [source])) if batches else []


def _pools(batches: data.Batches | None) -> dict[str, int]:
  """Returns the units of a pool of each corpus that is read in place."""
  corpora = [source for source in _sources(batches) if isinstance(source, data.CorpusRows)]
  return {str(corpus.cache.folder): corpus.cache.pool // UNIT for corpus in corpora if corpus.order}


def _data_cards(batches: data.Batches | None) -> dict[str, str]:
  """Returns the data card of each task; caches of older versions have none."""
  caches = [getattr(source.cache, "cache", source.cache) for source in _sources(batches)]  # within UNIQUE_TOKENS
  cards = {cache.manifest["description"]["task"]: cache.origin / data_card.PAGE for cache in caches}
  return {task: str(card) for task, card in cards.items() if card.is_file()}


def _member_text(source: data.RowSource, rate: float, rates: float) -> str:
  cache = source.cache
  size = f"{cache.tokens:,} tokens" if cache.is_corpus else f"{cache.examples:,} examples"
  return f"  {rate / rates:6.1%}  {cache.manifest['description']['task']}, {size}{_finished_text(cache)}"


def _finished_text(cache: data.TokenCache) -> str:
  return f"\ncached as finished tokens: {cache.manifest['why']}" if cache.is_finished else ""


def _memory_text(
  experiment: Experiment, plan: TrainingPlan, spec: StateSpec, mesh: jax.sharding.Mesh, batch: Batch
) -> str:
  """Returns the memory of the state (exact) and, on accelerators, of activations (estimated)."""
  config = experiment.model.config
  state = planning.state_bytes(
    spec.shapes.params, spec.shardings.params, spec.shapes.opt_state, spec.shardings.opt_state, config.compute_dtype,
    plan.largest.optimizer.selection,
  )  # fmt: skip
  parts = {"parameters": state.parameters, "optimizer": state.optimizer, "gradients": state.gradients}
  total = sum(parts.values())
  if mesh.devices.flat[0].platform != "cpu" and not isinstance(config, RecurrentConfig):  # no estimate of their loop
    by_position = experiment.mesh.preset == "sequence"
    estimate = planning.estimate_memory(
      experiment.model, batch, state, mesh.shape, experiment.microbatches, by_position
    )
    parts |= {"activations": estimate.activations, "temporaries": estimate.temporaries}
    total = estimate.total
  return f"about {memory_size(total)} per device: " + ", ".join(f"{part} {memory_size(n)}" for part, n in parts.items())
