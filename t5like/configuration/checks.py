"""Checks a configuration before anything is built."""

import collections
import dataclasses
import functools
import inspect
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import gin

from t5like.configuration.search_path import shipped_folder
from t5like.configuration.statements import REQUIRED, Binding, ConfigurableReference, MacroReference, Statement
from t5like.configuration.t5x_errors import explain_configurable, explain_name
from t5like.errors import UserError, in_columns, nearest
from t5like.files.module_files import is_inside


def registered() -> dict[str, object]:
  """Returns configurables by the shortest name that a gin file can use."""
  registry = gin.config._REGISTRY  # gin has no public listing
  return {
    registry.minimal_selector(selector): configurable.wrapped
    for selector, configurable in registry.items()
    if not selector.startswith("gin.")
  }


def names_by_target() -> dict[Any, str]:
  """Returns the gin name of each registered function and class."""
  return {target: name for name, target in registered().items() if isinstance(target, Hashable)}


def _parameters(target: Any) -> Mapping[str, inspect.Parameter] | None:
  """Returns the parameters of a configurable; None if it is not known."""
  if target is None:
    return None
  return _inspected(target) if isinstance(target, Hashable) else inspect.signature(target).parameters


@functools.cache  # a process reads many configurations
def _inspected(target: Any) -> Mapping[str, inspect.Parameter]:
  return inspect.signature(target).parameters


def with_short_names(statements: Sequence[Statement]) -> list[Statement]:
  """Returns statements whose configurables have their shortest names: `train`, not `experiment.train`."""
  registry = gin.config._REGISTRY

  def shortened(binding: Binding) -> Binding:
    matching = [] if binding.is_macro else registry.matching_selectors(binding.selector)
    if len(matching) != 1:
      return binding
    return dataclasses.replace(binding, selector=registry.minimal_selector(*matching))

  return [shortened(s) if isinstance(s, Binding) else s for s in statements]


def check_scopes(bindings: Sequence[Binding]) -> None:
  """Checks that the scope of every setting of the user's is used, as `big` in big/adafactor is by @big/adafactor().

  A macro is the scope of what it refers to.
  """
  references = [r for b in bindings for r in b.references() if isinstance(r, ConfigurableReference)]
  used = {scope for reference in references for scope in reference.source.strip("@()").split("/")[:-1]}
  used |= {scope for b in bindings if b.is_macro for scope in b.macro_name.split("/")}
  for binding in bindings:
    unused = [scope for scope in binding.scope.split("/") if scope and scope not in used]
    if unused and not binding.is_macro and not binding.shipped:
      raise UserError(
        f"{binding.name} has no effect: nothing uses @{binding.scope}/...",
        file=binding.where,
        nearest=nearest(unused[0], used),
        try_=f"{binding.selector}.{binding.parameter}, without the scope",
      )


def check_names(bindings: Sequence[Binding]) -> None:
  """Checks that every `name.parameter` and every `@name` exists."""
  known = registered()
  for binding in bindings:
    if not binding.is_macro:
      _check_configurable(binding.selector, binding.where, known, binding.parameter)
      _check_parameter(binding, _parameters(known.get(binding.selector)))
    for reference in binding.references():
      if isinstance(reference, ConfigurableReference):
        _check_configurable(reference.name, binding.where, known)


def check_own_names(bindings: Sequence[Binding], modules: Sequence[str]) -> None:
  """Checks that a model directory only uses configurables of t5like, or of modules that the user named."""
  trusted = {"t5like", *modules}
  for binding in bindings:
    names = [r.name for r in binding.references() if isinstance(r, ConfigurableReference)]
    for name in names if binding.is_macro else [binding.selector, *names]:
      for selector in gin.config._REGISTRY.matching_selectors(name):
        module = getattr(gin.config._REGISTRY[selector].wrapped, "__module__", "")
        if not is_inside(module, trusted):
          raise UserError(
            f"the model directory's configuration uses {name!r}, which is not part of t5like",
            file=binding.where,
            defined=module,
            try_=f"--task_modules={module}, if you trust that module",
          )


def _check_configurable(name: str, where: str, known: dict[str, object], parameter: str = "") -> None:
  matching = [] if name in known else gin.config._REGISTRY.matching_selectors(name)
  if name in known or len(matching) == 1:
    return
  if matching:
    raise UserError(f"ambiguous configurable: {name!r}", file=where, known=", ".join(sorted(matching)))
  raise (
    explain_name(f"{name}.{parameter}", where)
    or explain_configurable(name, where)
    or UserError(
      f"unknown configurable: {name!r}",
      file=where,
      nearest=nearest(name, known),
      known=", ".join(sorted(known)),
    )
  )


def _check_parameter(binding: Binding, parameters: Mapping[str, inspect.Parameter] | None) -> None:
  if parameters is None or binding.parameter in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
    return
  raise explain_name(f"{binding.selector}.{binding.parameter}", binding.where) or UserError(
    f"{binding.selector!r} has no parameter {binding.parameter!r}",
    file=binding.where,
    nearest=nearest(binding.parameter, parameters),
    known=", ".join(parameters),
  )


@functools.cache
def shipped_macros() -> set[str]:
  """Returns the macros that shipped files use."""
  return {name for path in shipped_folder().rglob("*.gin") for name in re.findall(r"%(\w+)", path.read_text("utf-8"))}


def drop_unset_macros(statements: Sequence[Statement]) -> list[Statement]:
  """Drops `name.parameter = %MACRO` if nothing sets the macro and the parameter has a default.

  This lets a shipped file, or a copy, offer a macro without repeating the default in the code. A macro with several
  uses must be set, as their parameters may have different defaults; so must one that no shipped file has, as it may be
  misspelled.
  """
  bindings = [s for s in statements if isinstance(s, Binding)]
  known, settings = registered(), {b.macro_name for b in bindings if b.is_macro}
  users = collections.defaultdict(set)  # a file may be included twice
  for b in bindings:
    for reference in b.references():
      users[reference.name].add(b.target)

  def is_unset(binding: Statement) -> bool:
    if not isinstance(binding, Binding) or binding.is_macro or not isinstance(binding.value, MacroReference):
      return False
    name, parameters = binding.value.name, _parameters(known.get(binding.selector))
    if name == REQUIRED or name in settings or len(users[name]) > 1 or parameters is None:
      return False
    if not binding.shipped and name not in shipped_macros():
      return False
    parameter = parameters.get(binding.parameter)
    return parameter is not None and parameter.default is not parameter.empty

  return [statement for statement in statements if not is_unset(statement)]


def check_macros(bindings: Sequence[Binding]) -> None:
  """Checks that every macro that is set is used and vice versa, and that all required ones are set."""
  settings = {b.macro_name: b for b in bindings if b.is_macro}
  uses: dict[str, str] = {}
  for binding in bindings:
    for reference in binding.references():
      if isinstance(reference, MacroReference) and reference.name != REQUIRED:
        uses.setdefault(reference.name, binding.where)

  has_run_file = any(binding.selector == "train" for binding in bindings if not binding.is_macro)
  for name, binding in settings.items():
    # A shipped run file may set a macro that a converted model does not use, such as DROPOUT_RATE.
    if name not in uses and not (binding.shipped and has_run_file):
      raise explain_name(name, binding.where) or UserError(
        f"unused macro: {name}",
        file=binding.where,
        nearest=(close := nearest(name, uses)),
        in_use="" if close else in_columns(sorted(uses)),
        hint=_missing_file(uses, settings),
      )
  _check_effects(settings, bindings)

  constants = gin.config._CONSTANTS  # of gin.constant, in a module of the user's
  missing = {n: where for n, where in uses.items() if n not in settings and not constants.matching_selectors(n)}
  for binding in bindings:
    current = settings[binding.macro_name] if binding.is_macro else binding
    if current is binding and MacroReference(REQUIRED) in binding.references():
      missing[binding.name] = binding.where
  if missing:
    width = max(map(len, missing))
    raise UserError(
      "missing required values: " + ", ".join(missing),
      required="\n".join(f"{name:<{width}}  used in {where}" for name, where in missing.items()),
      try_=" ".join(f"--gin.{name}=..." for name in missing),
    )


def _missing_file(uses: Mapping[str, str], settings: Mapping[str, Binding]) -> str:
  """Returns a hint if the file of the run or of the model is missing: one sets MODEL, the other reads it."""
  if not uses or ("MODEL" in settings and "MODEL" not in uses):
    return "no run file: add --gin_file=runs/pretrain.gin or another one"
  if "MODEL" in uses and "MODEL" not in settings:
    return "no model file: add --gin_file=models/t5/tiny.gin or another one"
  return ""


def _check_effects(settings: Mapping[str, Binding], bindings: Sequence[Binding]) -> None:
  """Checks that no value of the user is lost because an earlier line or a shipped file replaces what reads it."""
  last, readers = {b.target: b for b in bindings}, collections.defaultdict(list)
  order = {id(b): number for number, b in enumerate(bindings)}
  for binding in bindings:
    for reference in binding.references():
      readers[reference.name].append(binding)
  for name, given in settings.items():
    if given.shipped or not readers[name] or any(last[b.target] is b or not b.shipped for b in readers[name]):
      continue
    reader = readers[name][-1]
    by = last[reader.target]
    # Of two options of a command, the last one counts.
    is_earlier_line = order[id(by)] < order[id(given)] and not by.where.startswith("--gin.")
    if by.shipped or is_earlier_line:
      reordered = ", or the files in another order (that of the model comes first)" if by.shipped else ""
      raise UserError(
        f"{name} has no effect: {by.where} replaces {by.name}, which read it",
        file=given.where,
        read=reader.where,
        try_=f"--gin.{by.name}=... instead{reordered}",
      )
