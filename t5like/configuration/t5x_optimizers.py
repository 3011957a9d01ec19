"""Translates T5X's optax optimizers, and its schedules beyond `rsqrt_decay`; unsupported ones become required."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from t5like.configuration.statements import REQUIRED, ConfigurableReference, MacroReference
from t5like.configuration.t5x_files import T5XConfiguration
from t5like.errors import is_number

if TYPE_CHECKING:
  from t5like.configuration.t5x_translation import Translation

_MISSING = object()
# By optax's optimizer: ours, its default weight decay, and the parameters that are the same.
_OPTIMIZERS = {
  "adamw": ("adamw", 1e-4, ("b1", "b2", "eps")),
  "adam": ("adamw", 0.0, ("b1", "b2", "eps")),
  "lion": ("lion", 1e-3, ("b1", "b2")),
}
# By optax's schedule: ours, our names of its parameters, and parameters that must have their defaults.
_SCHEDULES = {
  "constant_schedule": ("constant_rate", {"value": "value"}, {}),
  "linear_schedule": (
    "linear",
    {"init_value": "start", "end_value": "end", "transition_steps": "steps"},
    {"transition_begin": 0},
  ),
  "cosine_decay_schedule": ("cosine", {"init_value": "peak", "decay_steps": "steps"}, {"exponent": 1.0, "alpha": 0.0}),
  "warmup_cosine_decay_schedule": (
    "warmup_cosine",
    {
      "init_value": "start", "peak_value": "peak", "warmup_steps": "warmup_steps", "decay_steps": "total_steps",
      "end_value": "final",
    },
    {"exponent": 1.0},
  ),
}  # fmt: skip
_OPTIONAL = {"end_value": 0.0}


def call(name: str) -> ConfigurableReference:
  return ConfigurableReference(name, f"@{name}()")


def translate_optimizer(source: T5XConfiguration, result: Translation) -> Any:
  """Sets OPTIMIZER and its parameters; returns its learning rate, or None if it has none.

  Adafactor, T5X's default, uses `create_learning_rate_scheduler`; an optax optimizer has its own learning rate.
  """
  given = source.settings.get("OPTIMIZER")
  if given is None or "Adafactor" in _last_name(source.get("OPTIMIZER")):
    return None
  theirs, clipping = _parts(source)
  if theirs is None:
    comment = "add --gin_file=optimizers/adamw.gin, or another file in gin/optimizers, after this one"
    result.set("OPTIMIZER", MacroReference(REQUIRED), comment)
    result.untranslated.append(f"{given.source()}  (OPTIMIZER is required)")
    return None
  ours, decay, same = _OPTIMIZERS[theirs]
  result.set("OPTIMIZER", call(ours))
  result.set(f"{ours}.learning_rate", MacroReference("LEARNING_RATE"))
  for name in same:
    if (value := _number(source, result, f"{theirs}.{name}")) is not None:
      result.set(f"{ours}.{name}", value)
  given_decay = _number(source, result, f"{theirs}.weight_decay")
  result.set(f"{ours}.weight_decay", decay if given_decay is None else given_decay)
  norm = "clip_by_global_norm" in clipping
  result.set(f"{ours}.clip_norm", _number(source, result, "clip_by_global_norm.max_norm") if norm else None)
  if "clip" in clipping:
    delta = source.get("clip.max_delta")
    result.untranslated.append(f"optax.clip.max_delta = {delta}  ({ours}.clip_norm clips gradients by their norm)")
  dtype = source.get(f"{theirs}.mu_dtype")
  if dtype is not None:
    result.set(f"{ours}.momentum_dtype", getattr(dtype, "name", str(dtype)).split(".")[-1])
  return source.get(f"{theirs}.learning_rate", MacroReference(REQUIRED))


def _parts(source: T5XConfiguration) -> tuple[str | None, list[str]]:
  """Returns the optimizer and the gradient clipping before it; None if it is not supported."""
  given = source.get("OPTIMIZER")
  name = _last_name(given)
  if name == "chain":
    given = source.get("chain.transformations")
  elif name == "OptaxWrapper":
    given = source.get("OptaxWrapper.optax_optimizer")
  *before, last = [_last_name(part) for part in (given if isinstance(given, list | tuple) and given else [given])]
  known = last in _OPTIMIZERS and set(before) <= {"clip", "clip_by_global_norm"}
  return (last, before) if known else (None, [])


def _last_name(value: Any) -> str:
  return value.name.split(".")[-1] if isinstance(value, ConfigurableReference) else ""


def _number(source: T5XConfiguration, result: Translation, key: str) -> float | None:
  """Returns a number from the file; anything else is listed as not translated."""
  value = source.get(key)
  if value is None or is_number(value):
    return value
  result.untranslated.append(f"{source.settings[key].source()}  (a number here)")
  return None


def translate_own_rate(rate: Any, source: T5XConfiguration, result: Translation, finetune: bool) -> None:
  """Sets LEARNING_RATE from that of an optax optimizer: a number, or an optax schedule."""
  name = _last_name(rate)
  if isinstance(rate, int | float):
    set_constant(result, rate, finetune)
    result.set("LEARNING_RATE", call("constant_rate"))
  elif name not in _SCHEDULES or (values := _schedule_values(source, name)) is None:
    result.set("LEARNING_RATE", MacroReference(REQUIRED), "choose a t5like schedule: " + SCHEDULE_NAMES)
    result.untranslated.append(f"learning_rate = {getattr(rate, 'source', rate)}  (LEARNING_RATE is required)")
  else:
    result.set("LEARNING_RATE", call(_SCHEDULES[name][0]))
    for parameter, value in values.items():
      result.set(parameter, value)


SCHEDULE_NAMES = "warmup_linear, warmup_cosine, linear, cosine, chain"


def _schedule_values(source: T5XConfiguration, theirs: str) -> dict[str, Any] | None:
  """Returns our parameters of an optax schedule; None if one is missing or not supported."""
  ours, names, fixed = _SCHEDULES[theirs]
  values = {}
  for name, our_name in names.items():
    value = source.get(f"{theirs}.{name}", _OPTIONAL.get(name, _MISSING))
    if not isinstance(value, int | float):
      return None
    values[f"{ours}.{our_name}"] = value
  found = {name: source.get(f"{theirs}.{name}", default) for name, default in fixed.items()}
  if theirs == "cosine_decay_schedule" and isinstance(found["alpha"], int | float):
    values["cosine.final"] = found.pop("alpha") * values["cosine.peak"]
    fixed = {"exponent": 1.0}
  return values if found == fixed else None


def set_constant(result: Translation, rate: float, finetune: bool) -> None:
  result.set("FINETUNE_LEARNING_RATE" if finetune else "constant_rate.value", rate)


def translate_decay(
  kinds: list[str], rate: float, warmup: int, source: T5XConfiguration, result: Translation, finetune: bool
) -> bool:
  """Sets LEARNING_RATE for `linear_decay` and `cosine_decay`; returns False if the result would differ from T5X."""
  name = "create_learning_rate_scheduler"
  if kinds in (["linear_decay"], ["constant", "linear_decay"]):  # it includes the warmup and the base rate
    slope = source.get(f"{name}.decay_factor", 0.5)
    if not isinstance(slope, int | float) or slope <= 0:
      return False
    comment = "T5X: the square of base_learning_rate, which linear_decay already includes" if len(kinds) == 2 else ""
    result.set("LEARNING_RATE", call("warmup_linear"))
    result.set("warmup_linear.peak", rate ** len(kinds), comment)
    result.set("warmup_linear.warmup_steps", warmup)
    result.set("warmup_linear.total_steps", round(warmup + 1 / slope))
    return True
  if "cosine_decay" not in kinds or set(kinds) - {"constant", "cosine_decay", "linear_warmup"}:
    return False
  cycle = source.get(f"{name}.steps_per_cycle", 100_000)
  steps = result.values.get("TRAIN_STEPS")
  if isinstance(steps, int) and steps > warmup + cycle:  # the cosine would restart before the end
    return False
  _cosine(rate if "constant" in kinds else 1.0, warmup, cycle, "linear_warmup" in kinds, result, finetune)
  return True


def _cosine(rate: float, warmup: int, cycle: int, warm: bool, result: Translation, finetune: bool) -> None:
  comment = f"T5X restarts the cosine every {cycle} steps, here it stays at its final value"
  if warm:
    result.set("LEARNING_RATE", call("warmup_cosine"), comment)
    result.set("warmup_cosine.peak", rate)
    result.set("warmup_cosine.warmup_steps", warmup)
    result.set("warmup_cosine.total_steps", warmup + cycle)
    return
  result.set("LEARNING_RATE", call("chain" if warmup else "cosine"), comment)
  if warmup:  # constant until then
    set_constant(result, rate, finetune)
    result.set("chain.schedules", [call("constant_rate"), call("cosine")])
    result.set("chain.boundaries", [warmup])
  result.set("cosine.peak", rate)
  result.set("cosine.steps", cycle)
