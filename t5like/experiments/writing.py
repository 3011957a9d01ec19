"""Writes an experiment from gin or Python as gin text that can be read back."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from t5like import configuration
from t5like.experiments.experiment import Experiment
from t5like.experiments.reading import is_literal, register_configurables
from t5like.objectives import CATALOGUE, Objective
from t5like.training.optimizers import Optimizer

# Of every module; TRAINABLE determines `tuning`, VOCABULARY ELMo's `characters`.
_FLAX_FIELDS = ("parent", "name", "tuning", "characters")


def config_text(experiment: Experiment) -> str:
  """Returns the gin text that an experiment was read from, or one generated from its fields."""
  if experiment.config_text:
    return experiment.config_text
  register_configurables()
  writer = _Writer()
  fields = {f.name: getattr(experiment, f.name) for f in dataclasses.fields(experiment) if f.init}
  objective = experiment.objective
  if objective is not None and not writer.knows(type(objective)):
    fields |= _named_objective(experiment.task, objective)
  writer.bind("train", fields)
  return "# Written by t5like from an experiment that was built in Python.\n\n" + "\n".join(writer.lines) + "\n"


def bindings_text(macro: str, value: Any) -> str:
  """Returns gin text that sets a macro to an object that gin can build."""
  register_configurables()
  writer = _Writer()
  reference = writer.source(value)
  return "\n".join([f"{macro} = {reference}", *writer.lines, ""])


def _named_objective(task: str, objective: Objective) -> dict[str, str]:
  """Returns fields for a registered objective that gin does not know: it becomes part of the task's name."""
  name = next((name for name, known in CATALOGUE.items() if known == objective), None)
  return {"task": f"{task}_{name}", "objective": "task"} if name else {"objective": objective}


class _Writer:
  """Collects bindings.

  Objects that gin cannot build become calls of `python_only`, which raises, and functions those of
  `python_function`, which raises when it is called.
  """

  def __init__(self):
    self.lines: list[str] = []
    self._names = configuration.names_by_target()
    self._written: dict[str, list[tuple[str, ...]]] = {}  # the bindings of each scope, by name

  def knows(self, target: Any) -> bool:
    return target in self._names

  def bind(self, name: str, arguments: Mapping[str, Any]) -> str:
    """Writes the arguments of a configurable; returns a reference that calls it with them."""
    bindings = tuple(f"{name}.{key} = {self.source(value)}" for key, value in arguments.items())
    before = self._written.setdefault(name, [])
    if bindings not in before:
      before.append(bindings)
      number = len(before)
      scope = f"{name}_{number}/" if number > 1 else ""
      self.lines += [*(f"{scope}{line}" for line in bindings), ""]
    number = before.index(bindings) + 1
    return f"@{name}_{number}/{name}()" if number > 1 else f"@{name}()"

  def source(self, value: Any) -> str:
    if is_literal(value):
      return repr(value)
    if isinstance(value, Mapping):
      return "{" + ", ".join(f"{self.source(k)}: {self.source(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
      return "[" + ", ".join(map(self.source, value)) + "]"
    if isinstance(value, Optimizer) and value.factory_call is None:
      return self.bind("custom_optimizer", {"description": value.description})
    if getattr(value, "factory_call", None):
      return self.bind(*value.factory_call)
    if dataclasses.is_dataclass(value) and self.knows(type(value)):
      return self.bind(self._names[type(value)], _arguments(value))
    if self.knows(value):
      return f"@{self._names[value]}"
    placeholder = "python_function" if inspect.isroutine(value) else "python_only"
    return self.bind(placeholder, {"what": _qualified_name(value)})


def _arguments(value: Any) -> dict[str, Any]:
  """Returns the fields of a dataclass, without defaults that cannot be written as gin text."""
  fields = [f for f in dataclasses.fields(value) if f.init]
  if isinstance(value, nn.Module):
    fields = [f for f in fields if f.name not in _FLAX_FIELDS]
  given = {f.name: getattr(value, f.name) for f in fields}
  left = {f.name for f in fields if not is_literal(given[f.name]) and given[f.name] == f.default}
  return {name: v for name, v in given.items() if name not in left}


def _qualified_name(value: Any) -> str:
  kind = value if isinstance(value, type) or callable(value) and hasattr(value, "__qualname__") else type(value)
  return f"{kind.__module__}.{kind.__qualname__}"
