"""Mixtures of tasks, sampled by size, equally, or in between (Raffel et al. 2019, section 3.5.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import seqio

from t5like.errors import UserError, nearest
from t5like.tasks.library import glue, super_glue  # noqa: F401  registers the tasks that are mixed below
from t5like.tasks.mixing_rates import GLUE, SUPER_GLUE, mixing_rates
from t5like.tasks.registry import check_mixture_name, import_modules, note_module

Strategy = Literal["proportional", "equal", "temperature"]


@dataclasses.dataclass(frozen=True)
class RateBySize:
  """The rate of a task, from the size its source reports; evaluated lazily."""

  maximum: float | None = None
  temperature: float = 1.0

  def __call__(self, task: seqio.Task) -> float:
    return mixing_rates({task.name: training_examples(task)}, self.maximum, self.temperature)[task.name]


def known_size(task: seqio.Task, split: str) -> int | None:
  """Returns the number of rows of a split, or None if that requires reading data."""
  if split == "train" and (size := {**GLUE, **SUPER_GLUE}.get(task.name)):
    return size
  if isinstance(task.source, seqio.TfdsDataSource):  # it would look for the data and may download it
    return None
  return task.source.num_input_examples(split)


def training_examples(task: seqio.Task) -> int:
  """Returns the number of training rows: the published number, or else what the source reports."""
  known = {**GLUE, **SUPER_GLUE}
  if task.name in known:
    return known[task.name]
  if "train" not in task.splits:
    return 0
  because = None
  try:
    size = task.source.num_input_examples("train")
  except Exception as error:  # TFDS raises many types for a missing data set
    size, because = None, str(error).strip().split("\n")[0]
  if size is None:
    raise UserError(
      f"the size of task {task.name!r} is unknown, so its share in a mixture cannot be computed",
      because=because,
      try_=f"pass sizes: register_mixture(name, {{{task.name!r}: 12345, ...}}), or strategy='equal'",
    )
  return size


def register_mixture(
  name: str,
  tasks: Sequence[str] | Mapping[str, int],
  strategy: Strategy = "proportional",
  maximum: float | None = None,
  temperature: float | None = None,
  leave_out: Sequence[str] = (),
) -> seqio.Mixture:
  """Registers a mixture with seqio.

  Registering the same definition twice is allowed; a different one under the same name is an error.

  tasks: names of tasks, or a mapping from name to size.
  strategy: "proportional" samples tasks by their number of examples, capped at `maximum` (K in the
    paper); "equal" samples all at the same rate; "temperature" raises the rates of "proportional" to
    the power 1 / temperature (T in the paper, 2 by default).
  leave_out: tasks to drop, as in leave-one-out training.
  """
  _check_settings(strategy, maximum, temperature)
  if not {*tasks} <= set(seqio.TaskRegistry.names()):
    import_modules()  # so that shipped tasks can be mixed without importing their modules
  for task in (*tasks, *leave_out):
    known = seqio.TaskRegistry.names() if task in tasks else tasks
    if task not in known:
      raise UserError(f"no task {task!r} for the mixture {name!r}", nearest=nearest(task, known))
  sizes = {task: tasks[task] if isinstance(tasks, Mapping) else None for task in tasks if task not in leave_out}
  if not sizes:
    raise UserError(f"the mixture {name!r} has no tasks left")
  _check_features(name, sizes)
  by_size = RateBySize(maximum, (temperature or 2.0) if strategy == "temperature" else 1.0)
  rates = {task: _rate(strategy, task, size, by_size) for task, size in sizes.items()}
  return _add(name, rates)


def _rate(strategy: Strategy, task: str, size: int | None, by_size: RateBySize) -> float | RateBySize:
  if strategy == "equal":
    return 0.0 if size == 0 else 1.0
  return by_size if size is None else mixing_rates({task: size}, by_size.maximum, by_size.temperature)[task]


def _check_settings(strategy: str, maximum: float | None, temperature: float | None) -> None:
  strategies = get_args(Strategy)
  if strategy not in strategies:
    raise UserError(f"no strategy {strategy!r}", nearest=nearest(strategy, strategies), known=", ".join(strategies))
  if temperature is not None and strategy != "temperature":
    raise UserError(f"strategy {strategy!r} takes no temperature", try_="strategy='temperature'")
  if maximum is not None and strategy == "equal":
    raise UserError("strategy 'equal' takes no maximum: it ignores sizes", try_="strategy='proportional'")


def _check_features(name: str, tasks: Iterable[str]) -> None:
  features = {task: tuple(seqio.TaskRegistry.get(task).output_features) for task in tasks}
  if len(set(features.values())) > 1:
    raise UserError(
      f"the tasks of the mixture {name!r} have different features",
      **{task: ", ".join(names) for task, names in features.items()},
    )


def _add(name: str, rates: Mapping[str, float | RateBySize]) -> seqio.Mixture:
  check_mixture_name(name)
  if name not in seqio.MixtureRegistry.names():
    note_module(name)
    return seqio.MixtureRegistry.add(name, list(rates.items()))
  registered = seqio.MixtureRegistry.get(name)
  was = dict(registered.rate_per_task_name)
  if was != dict(rates):
    differs = [task for task in {**was, **rates} if was.get(task) != rates.get(task)]
    raise UserError(
      f"a mixture {name!r} is already registered with other rates",
      differs=", ".join(differs),
      try_=f"another name, or seqio.MixtureRegistry.remove({name!r}) first",
    )
  return registered


@dataclasses.dataclass(frozen=True)
class TaskShare:
  """The share of a task in a mixture's training examples."""

  task: str
  size: int | None  # None if unknown; strategy "equal" does not need it
  rate: float
  share: float  # the shares of a mixture sum to 1


def shares(mixture: seqio.Mixture, split: str = "train") -> list[TaskShare]:
  """Returns size, rate and share of each task; a task without the split has rate 0."""
  rates = {task.name: _rate_in(mixture, task) if split in task.splits else 0.0 for task in mixture.tasks}
  for name, rate in rates.items():
    if not 0 <= rate < float("inf"):
      raise UserError(f"invalid rate of task {name!r} in the mixture {mixture.name!r}: {rate:g}", expected="0 or more")
  total = sum(rates.values())
  if not total:
    known = sorted({each for task in mixture.tasks for each in task.splits})
    raise UserError(
      f"no task of the mixture {mixture.name!r} has a rate above 0 in split {split!r}",
      nearest=nearest(split, known),
      splits=", ".join(known),
    )
  order = [name for name in mixture.rate_per_task_name if name in rates]
  tasks = {task.name: task for task in mixture.tasks}
  return [
    TaskShare(name, _size_if_known(tasks[name]), rates[name], rates[name] / total)
    for name in (*order, *(name for name in rates if name not in order))
  ]


def _rate_in(mixture: seqio.Mixture, task: seqio.Task) -> float:
  try:
    return mixture.get_rate(task)
  except UserError:
    raise
  except Exception as error:  # seqio's own functions fail on a task whose size is not known
    raise UserError(
      f"the rate of task {task.name!r} in the mixture {mixture.name!r} cannot be computed",
      because=f"{type(error).__name__}: {error}",
      size="unknown" if _size_if_known(task) is None else "",
      try_="num_input_examples of its source, or a number as its rate",
    ) from error


def _size_if_known(task: seqio.Task) -> int | None:
  try:
    return training_examples(task)
  except UserError:
    return None


def is_mixture(found: seqio.Task | seqio.Mixture) -> bool:
  return isinstance(found, seqio.Mixture)


# RTE is the same data in both benchmarks: half the weight each, as in the t5 library.
_BOTH = {**GLUE, **SUPER_GLUE, "glue_rte": GLUE["glue_rte"] / 2, "super_glue_rte": SUPER_GLUE["super_glue_rte"] / 2}

for _name, _tasks in (("glue", GLUE), ("super_glue", SUPER_GLUE), ("glue_and_super_glue", _BOTH)):
  register_mixture(_name, _tasks)
  register_mixture(f"{_name}_equal", _tasks, "equal")
  # The best temperature of the paper's Table 11, with its limit.
  register_mixture(f"{_name}_temperature", _tasks, "temperature", maximum=2**21, temperature=2.0)
for _name, _tasks in (("glue", GLUE), ("super_glue", SUPER_GLUE)):
  for _task, _size in _tasks.items():
    if _size:
      _left_out = [t for t in _tasks if t.startswith(_task)]  # MNLI includes its two validation sets
      register_mixture(f"{_name}_without_{_task.removeprefix(f'{_name}_')}", _tasks, leave_out=_left_out)
