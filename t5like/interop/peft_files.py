"""Folders of Hugging Face's peft: adapter_config.json and adapter_model.safetensors, as plain data."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from t5like.errors import UserError, is_finite
from t5like.interop import tensor_folders
from t5like.interop.huggingface import tensor_rules
from t5like.interop.mapping import Rule, check_tensor
from t5like.interop.tensor_folders import Tensors, read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
PROMPTS = "prompt_embeddings"  # the only tensor without the prefix
_NUMBERS = ("lora_alpha", "lora_dropout")
_BY_PATTERN = ("rank_pattern", "alpha_pattern")
_AT_END = r"(.*\.)?({})$"  # how peft compares an expression with a name
_MOST_REPEATS, _LONGEST = 4, 500  # of an expression: matching takes exponential time, or the power of their number


@dataclasses.dataclass(frozen=True)
class PeftFolder:
  """The settings of a peft adapter, and its tensors by name, without the common prefix."""

  config: Mapping[str, Any]
  tensors: Mapping[str, np.ndarray]

  @property
  def kind(self) -> str:
    return self.config["peft_type"]


@dataclasses.dataclass(frozen=True)
class HFModule:
  """A linear layer of Hugging Face's class, and the dense layers of ours that it holds: c_attn holds three.

  name   'encoder.block.0.layer.0.SelfAttention.q'
  ours   paths of our modules, with layer numbers
  fan_in_fan_out   whether its weight is [in, out], as in GPT-2's Conv1D
  heads            its outputs are ordered by head, and each has those of all of ours (BLOOM, DeBERTa); 1: by ours
  """

  name: str
  ours: tuple[str, ...]
  fan_in_fan_out: bool
  heads: int = 1

  def in_their_order(self, outputs: np.ndarray) -> np.ndarray:
    """Orders the outputs [parts * width, ...] of our layers, one after the other, as theirs."""
    return self._reordered(outputs, len(self.ours), self.heads)

  def in_our_order(self, outputs: np.ndarray) -> np.ndarray:
    return self._reordered(outputs, self.heads, len(self.ours))

  def _reordered(self, outputs: np.ndarray, outer: int, inner: int) -> np.ndarray:
    if self.heads == 1:
      return outputs
    return outputs.reshape(outer, inner, -1, *outputs.shape[1:]).swapaxes(0, 1).reshape(outputs.shape)


def linear_modules(model: nn.Module) -> list[HFModule]:
  """Returns the linear layers of a model's class in Hugging Face's library, without the head's.

  XLNet's attention has plain parameters there, not layers.
  """
  found = []
  for rule in tensor_rules(model):
    is_dense = all(path.endswith("/kernel") and not path.startswith("head/") for path in rule.ours)
    if is_dense and rule.theirs.endswith(".weight"):
      paths = tuple(path.removesuffix("/kernel") for path in rule.ours)
      found.append(HFModule(rule.theirs.removesuffix(".weight"), paths, not rule.transpose, rule.heads))
  return found


def check_scaled(module: HFModule, vectors: Mapping[str, np.ndarray | None]) -> None:
  """Raises UserError for vectors of (IA)3, by path, that peft multiplies before a bias is added and we after it."""
  wrong = [path for path, x in vectors.items() if x is not None and np.any(x != 1) and not path.endswith("/key")]
  if wrong and module.name.endswith(".in_proj"):
    raise UserError(
      "(IA)3 of DeBERTa's in_proj scales queries and values before their biases are added, here after it",
      try_="a plain model: merge_and_unload of peft, t5like convert merge",
    )


def check_not_tied(rule: Rule) -> None:
  """Raises UserError for the input embedding of a model whose output is tied to it: peft trains a copy of its own."""
  if rule.copies and any(path.endswith("token_embedder/embedding") for path in rule.ours):
    raise UserError(
      f"peft's modules_to_save unties {rule.theirs} from the matrices that share it; here they stay one",
      try_="merge it into the base, with peft's merge_and_unload or t5like convert merge",
    )


def read_folder(folder: Path) -> PeftFolder:
  """Reads a folder that peft has written."""
  for file in (CONFIG, WEIGHTS):
    if not (folder / file).is_file():
      raise UserError(f"no {file} in {folder}", expected="a folder that peft's save_pretrained has written")
  config = read_json(folder / CONFIG)
  if not isinstance(config.get("peft_type"), str):
    raise UserError(f"{folder / CONFIG} has no peft_type")
  _check_values(folder / CONFIG, config)
  saved, tensors = Tensors(folder, [folder / WEIGHTS]), {}
  for name in saved.names():
    tensors[name.removeprefix(_PREFIX)] = tensor = saved.read(name)
    check_tensor(name, tensor, str(folder / WEIGHTS))
  return PeftFolder(config, tensors)


def _check_values(path: Path, config: Mapping[str, Any]) -> None:
  """Raises UserError for settings that would fail later, or never end."""
  found = {name: config.get(name) or {} for name in _BY_PATTERN}
  for name, patterns in found.items():
    if not isinstance(patterns, dict):
      raise UserError(f"invalid {name} in {path}: {str(patterns)[:60]}", expected="numbers by module")
  given = [(name, config[name]) for name in _NUMBERS if config.get(name) is not None]
  given += [(f"{name}[{key[:60]!r}]", value) for name, patterns in found.items() for key, value in patterns.items()]
  for name, value in given:
    if not is_finite(value):
      raise UserError(f"invalid {name} in {path}: {str(value)[:60]}", expected="a finite number")
  if not isinstance(config.get("task_type"), str | None):
    raise UserError(f"invalid task_type in {path}: {str(config['task_type'])[:60]}", expected="a text, or null")
  feedforward = config.get("feedforward_modules") or []
  if not isinstance(feedforward, str | list):
    raise UserError(f"invalid feedforward_modules in {path}: {str(feedforward)[:60]}", expected="names of modules")
  expressions = [*found["rank_pattern"], *found["alpha_pattern"]]
  for expression in [*expressions, feedforward] if isinstance(feedforward, str) else expressions:
    _check_expression(path, expression)


def _check_expression(path: Path, pattern: str) -> None:
  wrong = "it is too long" if len(pattern) > _LONGEST else ""
  if re.search(r"\)[*+{]", pattern) or len(re.findall("[*+{]", pattern)) > _MOST_REPEATS:
    wrong = f"it repeats a group, or more than {_MOST_REPEATS} parts, which can take forever"
  try:
    re.compile(_AT_END.format(pattern))
  except (re.error, RecursionError, OverflowError) as error:
    wrong = str(error)
  if wrong:
    raise UserError(
      f"unsupported expression in {path}: {pattern[:60]!r}", because=wrong, try_="in its place, the names of modules"
    )


def write_folder(folder: Path, adapter: PeftFolder) -> None:
  named = {name if name == PROMPTS else _PREFIX + name: np.ascontiguousarray(x) for name, x in adapter.tensors.items()}
  tensor_folders.write(folder, named, WEIGHTS)
  (folder / CONFIG).write_text(json.dumps(dict(sorted(adapter.config.items())), indent=2) + "\n")


def target_modules(chosen: Sequence[str], every: Iterable[str]) -> list[str]:
  """Returns names for peft: the last part of a name where all modules that end so are chosen, else the whole name."""
  ends = lambda name: name.rpartition(".")[2]  # noqa: E731
  others = {ends(name) for name in every if name not in set(chosen)}
  return sorted({name if ends(name) in others else ends(name) for name in chosen})


def matches(patterns: str | Sequence[str] | None, name: str) -> bool:
  """Returns whether a module is one of peft's targets: a regular expression, or names of modules or their ends."""
  if isinstance(patterns, str):
    return re.fullmatch(patterns, name) is not None
  return any(name == each or name.endswith(f".{each}") for each in patterns or ())


def pattern_value(patterns: Mapping[str, Any], name: str, default: Any) -> Any:
  """Returns the value of rank_pattern or alpha_pattern for a module."""
  return next((value for key, value in patterns.items() if re.match(_AT_END.format(key), name)), default)


def most_common(values: Mapping[str, Any]) -> Any:
  """Returns the value that most modules have: peft's default, from which patterns differ; of equals the first."""
  given = list(values.values())
  return max(dict.fromkeys(given), key=given.count)


def join_low_rank(parts: Sequence[tuple[np.ndarray, np.ndarray] | None], width: int) -> tuple[np.ndarray, np.ndarray]:
  """Joins the updates of several of our layers into one of theirs: three into GPT-2's c_attn.

  Returns A [rank, in] and B [parts * width, rank] for updates (A [in, rank], B [rank, width]); None: no update.
  Parts with the same A share it; otherwise ranks add up.
  """
  given = [part for part in parts if part is not None]
  if len(given) == len(parts) and all(np.array_equal(a, given[0][0]) for a, _ in given):
    return given[0][0].T, np.concatenate([b.T for _, b in given])
  rank = sum(a.shape[1] for a, _ in given)
  joined, start = np.zeros((len(parts) * width, rank), given[0][1].dtype), 0
  for number, part in enumerate(parts):
    if part is not None:
      end = start + part[0].shape[1]
      joined[number * width : (number + 1) * width, start:end] = part[1].T
      start = end
  return np.concatenate([a.T for a, _ in given]), joined
