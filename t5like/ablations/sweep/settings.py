"""The settings of a sweep: those of a command, completed by the sweep that it resumes, and stored in sweep.json."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from t5like.ablations.sweep.results import SWEEP, check_types, has_results, write_json
from t5like.ablations.tables import RECIPES, TABLES, find_tables, recipes_of
from t5like.errors import UserError
from t5like.files import storage
from t5like.files.module_files import file_hash, module_file

SCALES = ("paper", "small", "midi", "mini", "smoke")
# Fixed when a sweep is created: results would not be comparable otherwise.
_FIXED = ("scale", "tasks", "corpus", "task_modules", "gin")
_KEYS = {"custom_recipes": "own"}  # fields with a different key in sweep.json


@dataclasses.dataclass(frozen=True)
class SweepSettings:
  """The settings of a sweep. In those of a command, empty (or 0) means not given."""

  tables: list[int | str]
  recipes: list[str]
  scale: str
  seeds: int  # runs of each recipe
  tasks: list[str]  # to fine-tune on: tasks, benchmarks, or several joined by +
  corpus: list[str]  # files of training text, and of held-out text; []: the scale's corpus task
  custom_recipes: dict[str, str] = dataclasses.field(default_factory=dict)  # gin files by name
  task_modules: list[str] = dataclasses.field(default_factory=list)
  gin: list[list[str]] = dataclasses.field(default_factory=list)  # overrides: pairs of name and text
  created: str = ""
  recipe_digests: dict[str, str] = dataclasses.field(default_factory=dict)  # of custom recipes, by name

  @property
  def heads(self) -> bool:
    """Whether models are fine-tuned with heads, as BERT's; custom recipes follow the others."""
    return any(RECIPES[recipe].heads for recipe in self.recipes if recipe in RECIPES)


def complete_settings(sweep_dir: Path, given: SweepSettings, rows: Sequence[str] = ()) -> SweepSettings:
  """Completes a command's settings with those of an existing sweep in the directory.

  rows: names of rows or recipes, of the given tables or of the sweep's; []: all. Seeds and tasks that nobody gave stay
  empty: the scale has defaults.
  """
  started = (sweep_dir / SWEEP).is_file()
  previous = read_settings(sweep_dir) if started else SweepSettings([], [], "paper", 0, [], [])
  if not (started or given.tables or given.custom_recipes):
    raise UserError("no table to reproduce", known=", ".join(map(str, TABLES)), try_="--table=7")
  tables = find_tables(given.tables or (previous.tables if rows else []))
  files = previous.custom_recipes | given.custom_recipes
  custom, others = [row for row in rows if row in files], [row for row in rows if row not in files]
  of_tables = recipes_of(tables, others) if others or (tables and not rows) else []
  recipes = [*of_tables, *(custom or given.custom_recipes)]
  _check_alike([*recipes, *previous.recipes])
  return SweepSettings(
    tables=[table.number for table in tables] or previous.tables,
    recipes=recipes or previous.recipes,
    scale=given.scale or previous.scale,
    seeds=given.seeds or previous.seeds,
    tasks=given.tasks or previous.tasks,
    corpus=given.corpus or previous.corpus,
    custom_recipes=files,
    recipe_digests={name: digest for name, file in files.items() if (digest := _recipe_digest(file))},
    task_modules=given.task_modules or previous.task_modules,
    gin=given.gin or previous.gin,
  )


def _check_alike(recipes: Sequence[str]) -> None:
  """Raises UserError if some recipes are fine-tuned with heads and others text to text: tasks are those of a sweep."""
  with_heads = {RECIPES[recipe].heads: recipe for recipe in recipes if recipe in RECIPES}
  if len(with_heads) > 1:
    raise UserError(
      "a sweep is fine-tuned either with heads or text to text",
      heads=with_heads[True],
      text=with_heads[False],
      try_="a --sweep_dir for BERT's tables, and another for the others",
    )


def merge_settings(sweep_dir: Path, requested: SweepSettings) -> SweepSettings:
  """Returns the sweep's settings with `requested` added: only recipes and seeds may be added."""
  if not (sweep_dir / SWEEP).is_file():
    return dataclasses.replace(requested, created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
  found = read_settings(sweep_dir)
  for name in _FIXED:
    if getattr(found, name) != getattr(requested, name):
      raise UserError(
        f"{sweep_dir} contains a sweep with a different {name}",
        found=getattr(found, name),
        requested=getattr(requested, name),
        try_="another --sweep_dir, or the original options",
      )
  for name, digest in requested.recipe_digests.items():
    if found.recipe_digests.get(name, digest) != digest and has_results(sweep_dir, name, found.seeds):
      raise UserError(
        f"the recipe {name} has changed, and {sweep_dir} has results of it",
        file=requested.custom_recipes[name],
        try_="another name for the file, or another --sweep_dir",
      )
  return dataclasses.replace(
    found,
    recipe_digests=found.recipe_digests | requested.recipe_digests,
    tables=sorted({*found.tables, *requested.tables}, key=list(TABLES).index),
    recipes=list(dict.fromkeys([*found.recipes, *requested.recipes])),
    custom_recipes=found.custom_recipes | requested.custom_recipes,
    seeds=max(found.seeds, requested.seeds),
  )


def _recipe_digest(file: str) -> str:
  """Returns a hash of a recipe's file and of the modules that it imports; '' if the file is not on this machine."""
  path = Path(file)
  if not path.is_file():
    return ""
  imported = re.findall(
    r"^\s*(?:import|from)\s+([\w.]+)", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
  )
  files = [path, *filter(None, map(module_file, imported))]
  return hashlib.sha256("".join(map(file_hash, files)).encode()).hexdigest()[:16]


def record_settings(sweep_dir: Path, requested: SweepSettings) -> None:
  """Adds `requested` to the sweep in the directory."""
  merged, path = merge_settings(sweep_dir, requested), sweep_dir / SWEEP
  if not path.is_file() or merged != read_settings(sweep_dir):
    values = dataclasses.asdict(merged)
    if not merged.recipe_digests:
      del values["recipe_digests"]
    write_json(path, {_KEYS.get(name, name): value for name, value in values.items()})


def read_settings(sweep_dir: Path) -> SweepSettings:
  path = sweep_dir / SWEEP
  fields = {key: field for field, key in _KEYS.items()}
  try:
    settings = SweepSettings(**{fields.get(key, key): value for key, value in dict(storage.read_json(path)).items()})
    _check_fields(settings)
  except (OSError, ValueError, TypeError) as error:
    raise UserError(f"not a sweep directory: {sweep_dir}", file=path, because=error) from None
  return settings


def _check_fields(settings: SweepSettings) -> None:
  """Raises if a hand-edited file does not match the annotations of `SweepSettings`."""
  check_types(settings, _KEYS)
  unknown = [recipe for recipe in settings.recipes if recipe not in RECIPES and recipe not in settings.custom_recipes]
  if unknown or not settings.recipes:
    raise ValueError(f"unknown recipe {unknown[0]!r}" if unknown else "no recipes")


def custom_recipes(files: Sequence[str]) -> dict[str, str]:
  """Returns the gin files of custom recipes by name: own/NAME for NAME.gin."""
  found: dict[str, str] = {}
  for file in files:
    name = f"own/{Path(file).stem}"
    if name in found:
      raise UserError(f"two recipes are named {name}", files=f"{found[name]}\n{file}")
    found[name] = str(Path(file).expanduser().absolute()) if Path(file).expanduser().is_file() else file
  return found
