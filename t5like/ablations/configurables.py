"""Functions and classes that the gin files of ablations/ and finetune/suites/ use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import gin

from t5like.ablations.suites.plan import Suite
from t5like.errors import UserError, nearest
from t5like.models.config import MODIFICATIONS, TransformerConfig
from t5like.objectives import CATALOGUE
from t5like.planning.flops import forward_flops
from t5like.tasks.mixing_rates import mixing_rates as rates_by_size

_STRATEGIES = ("equal", "proportional", "temperature")


@dataclasses.dataclass(frozen=True)
class Scale:
  """The sizes and steps of a sweep; the files of scales/ set them through macros."""

  corpus: str  # the task of the pre-training text
  tasks: tuple[str, ...]  # to fine-tune on: tasks, or mixtures of tasks
  seeds: int
  pretrain_steps: int
  pretrain_batch_size: int
  pretrain_lengths: Mapping[str, int]
  finetune_steps: int
  finetune_batch_size: int
  finetune_lengths: Mapping[str, int]
  finetune_eval_period: int
  finetune_eval_examples: int
  finetune_learning_rate: float
  finetune_eval_loss_period: int = 0
  # Multi-task training:
  mixed_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
  mixed_batch_size: int = 0
  mixed_eval_period: int = 0
  # With heads:
  finetune_epochs: float = 0.0  # at most this many, and at most finetune_steps
  finetune_span_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of rows with spans


def head_width(width: int, heads: int) -> int:
  """Returns the width of an attention head."""
  if width % heads:
    raise UserError(f"a width of {width} cannot be divided into {heads} heads", try_="another WIDTH or HEADS")
  return width // heads


def half_of(number: int) -> int:
  return number // 2


def tokens_for_repeats(steps: int, batch_size: int, lengths: Mapping[str, int], repeats: int) -> int:
  """Returns the number of unique tokens that a run of this size sees `repeats` times: 2^35 / 64 = 2^29.

  At least two rows: a run of a few steps cannot repeat anything a thousand times.
  """
  return max(steps * batch_size * lengths["inputs"] // repeats, 2 * lengths["inputs"])


def mixed_tasks(
  corpus: str, sizes: Mapping[str, int], strategy: str, maximum: int | None = None, temperature: float = 1.0
) -> dict[str, float]:
  """Returns the mixing rates of labeled tasks and the corpus, which counts as larger than any limit."""
  if corpus in sizes:
    raise UserError(f"TASK_SIZES contains the corpus, {corpus!r}", try_="TASK_SIZES without it")
  largest = maximum or max(sizes.values())
  return mixing_rates({corpus: largest, **sizes}, strategy, maximum, temperature)


def mixing_rates(
  sizes: Mapping[str, int], strategy: str, maximum: int | None = None, temperature: float = 1.0
) -> dict[str, float]:
  """Returns rates that sum to 1: equal, by size up to `maximum`, or the latter to the power 1 / temperature."""
  if strategy not in _STRATEGIES:
    raise UserError(
      f"unknown mixing strategy {strategy!r}", nearest=nearest(strategy, _STRATEGIES), known=", ".join(_STRATEGIES)
    )
  if strategy == "equal":
    return {task: 1 / len(sizes) for task in sizes}
  weights = rates_by_size(sizes, maximum, temperature)
  return {task: weight / sum(weights.values()) for task, weight in weights.items()}


def sum_of(numbers: tuple[int, ...]) -> int:
  return sum(numbers)


def steps_at_equal_flops(
  steps: int, config: TransformerConfig, mlp_dim: int, lengths: Mapping[str, int], objective: str, batch_size: int
) -> int:
  """Returns the steps that take as many FLOPs as `steps` of the model without its modifications.

  mlp_dim  of that model: a gated MLP is narrower
  """
  defaults = {field.name: field.default for field in dataclasses.fields(TransformerConfig)}
  names = ("gated_mlp", "activation", "embedding_dim", "embedding_projection", "num_experts", "experts_per_token")
  plain = {name: defaults[name] for name in (*names, *MODIFICATIONS)} | {"layer_groups": None, "mlp_dim": mlp_dim}
  inside = CATALOGUE[objective].lengths(lengths["inputs"])
  flops = [
    forward_flops(c, batch_size, inside.inputs, inside.targets) for c in (dataclasses.replace(config, **plain), config)
  ]
  return max(round(steps * flops[0] / flops[1]), 1)


gin.external_configurable(Scale, "scale")
gin.external_configurable(Suite, "suite")
for _function in (head_width, half_of, tokens_for_repeats, mixed_tasks, sum_of, steps_at_equal_flops):
  gin.external_configurable(_function, _function.__name__)
