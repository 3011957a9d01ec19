"""Reads a T5X gin file as data, without importing or building anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gin import config_parser

from t5like.configuration.statements import (
  REQUIRED,
  Binding,
  ConfigurableReference,
  MacroReference,
  binding_source,
  file_text,
  parse_override_value,
  parsed,
)
from t5like.configuration.t5x_defaults import RUN_VALUES, is_in_t5x, model_file, model_values, run_kind

_MISSING = object()


class _Unset(Exception):
  """A macro without a value."""


@dataclasses.dataclass(frozen=True)
class Setting:
  """A value, and the binding that set it (None for a default of T5X's run and model files)."""

  value: Any
  binding: Binding | None = None

  def source(self) -> str:
    return " ".join(binding_source(self.binding).split())


@dataclasses.dataclass
class T5XConfiguration:
  """The values of a T5X gin file by `scope/Configurable.parameter` or `MACRO`; the last one wins."""

  settings: dict[str, Setting] = dataclasses.field(default_factory=dict)
  model: str | None = None  # our model file
  run: str | None = None  # 'pretrain', 'finetune', 'eval' or 'infer'
  is_decoder: bool = False  # a DecoderOnlyModel; its settings have the names of an encoder-decoder's
  imported: dict[str, str] = dataclasses.field(default_factory=dict)  # modules, by their name in the file
  unread: list[str] = dataclasses.field(default_factory=list)  # includes that were not found
  used: set[str] = dataclasses.field(default_factory=set)

  @property
  def modules(self) -> list[str]:
    return list(dict.fromkeys(self.imported.values()))

  def has(self, name: str) -> bool:
    """Returns whether a value is set, by the file or by T5X's defaults."""
    return self.get(name, _MISSING) is not _MISSING

  def get(self, name: str, default: Any = None) -> Any:
    """Returns the value with macros resolved, or `default`, and marks the line as translated."""
    key = name if name in self.settings else name.split("/")[-1]  # without a scope, it applies to all
    if key not in self.settings:
      return default
    self.used.add(key)
    try:
      return self._resolved(self.settings[key].value, ())
    except _Unset:
      return default

  def first(self, *names: str, default: Any = None) -> Any:
    """Returns the value of the first name that is set; marks the lines of all as translated."""
    values = [self.get(name, _MISSING) for name in names]
    return next((value for value in values if value is not _MISSING), default)

  def mark(self, *names: str) -> None:
    """Marks lines as translated whose values change nothing."""
    for name in names:
      self.get(name)

  def ignore_if_any(self, name: str, *values: Any) -> None:
    """Marks a line as translated if its value is one of these: it then changes nothing."""
    used = set(self.used)
    if self.get(name, values[0]) not in values:
      self.used = used

  def left(self) -> Iterator[tuple[str, Setting]]:
    """Yields the settings of the file that have not been read."""
    return ((key, s) for key, s in self.settings.items() if s.binding is not None and key not in self.used)

  def _resolved(self, value: Any, passed: tuple[str, ...]) -> Any:
    if isinstance(value, MacroReference):
      if value.name == REQUIRED or value.name not in self.settings or value.name in passed:
        raise _Unset
      self.used.add(value.name)
      return self._resolved(self.settings[value.name].value, (*passed, value.name))
    if isinstance(value, dict):
      return {k: self._resolved(v, passed) for k, v in value.items()}
    if isinstance(value, list | tuple):
      return type(value)(self._resolved(v, passed) for v in value)
    return value


def read_t5x_file(
  path: Path, overrides: Sequence[tuple[str, str]] = (), folders: Sequence[Path] = ()
) -> T5XConfiguration:
  """Reads the file with its includes, then `overrides`, pairs of T5X's name and text.

  T5X's own model and run files are known and not read. Others are searched in `folders` and in the folders above the
  file, as in a checkout of T5X.
  """
  configuration = T5XConfiguration()
  _read(file_text(path), str(path), configuration, [*folders, *path.absolute().parents], ())
  for name, text in overrides:
    _read(f"{name} = {parse_override_value(text)}", f"--gin.{name}", configuration, [], ())
  _name_as_encoder_decoder(configuration)
  return configuration


def _name_as_encoder_decoder(configuration: T5XConfiguration) -> None:
  """Renames the settings of T5X's decoder-only example to those of its T5, which are the same but for the names.

  What a model has in the place of a macro is named as the macro.
  """
  settings = configuration.settings
  model = settings.get("MODEL", Setting(None)).value
  named = getattr(model, "name", "").endswith("DecoderOnlyModel")
  configuration.is_decoder = named or (model is None and any(key.startswith("DecoderOnlyModel.") for key in settings))
  if configuration.is_decoder:
    renamed = {"TransformerConfig.num_layers": "T5Config.num_decoder_layers"}
    classes = {"TransformerConfig": "T5Config", "DecoderOnlyModel": "EncoderDecoderModel"}
    for key in list(settings):
      of, _, parameter = key.partition(".")
      configuration.settings[renamed.get(key) or f"{classes.get(of, of)}.{parameter}".rstrip(".")] = settings.pop(key)
  for parameter, macro in (("optimizer_def", "OPTIMIZER"), ("vocabulary", "VOCABULARY")):
    given = settings.get(f"EncoderDecoderModel.{parameter}", Setting(None)).value
    if isinstance(given, ConfigurableReference):
      settings[macro] = settings.pop(f"EncoderDecoderModel.{parameter}")


def _read(text: str, where: str, into: T5XConfiguration, folders: list[Path], seen: tuple[str, ...]) -> None:
  for statement, line in parsed(text, where):
    if isinstance(statement, config_parser.BindingStatement):
      scope, selector, parameter, value, _ = statement
      key = f"{selector.split('.')[-1]}.{parameter}" if parameter else selector
      setting = Setting(value, Binding(selector, parameter, value, line, scope))
      into.settings[f"{scope}/{key}" if scope else key] = setting
    elif isinstance(statement, config_parser.IncludeStatement):
      _include(statement.filename, line, into, folders, seen)
    elif isinstance(statement, config_parser.ImportStatement):
      parts = statement.module.split(".")
      into.imported[statement.alias or (parts[-1] if statement.is_from else statement.module)] = statement.module


def _include(name: str, line: str, into: T5XConfiguration, folders: list[Path], seen: tuple[str, ...]) -> None:
  plain = name.endswith(".gin") and not Path(name).is_absolute() and ".." not in Path(name).parts
  found = next((f / name for f in folders if (f / name).is_file()), None) if plain else None
  ours, kind = model_file(name), run_kind(name)
  if (ours or kind) and (is_in_t5x(name) if found is None else "t5x" in found.parts):
    into.model, into.run = ours or into.model, kind or into.run
    values = model_values(name) if ours else RUN_VALUES[kind]
    into.settings |= {key: Setting(value) for key, value in values.items()}
  elif found is None or str(found) in seen:
    into.unread.append(f"include {name!r}  ({line})")
  else:
    _read(file_text(found), name, into, folders, (*seen, str(found)))
