"""Writes what a method has trained as a folder for Hugging Face's peft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from t5like.errors import UserError
from t5like.finetuning import read_variables
from t5like.finetuning.methods import IA3, LoRA, Method, PrefixTuning, PromptTuning
from t5like.finetuning.trainable import matching
from t5like.inference.parameters.peft_prompts import write_prefix, write_prompt
from t5like.interop.huggingface import tensor_rules
from t5like.interop.layouts import flatten, unstack_layers
from t5like.interop.mapping import Rule
from t5like.interop.peft_files import (
  HFModule,
  PeftFolder,
  check_not_tied,
  check_scaled,
  join_low_rank,
  linear_modules,
  matches,
  most_common,
  target_modules,
  write_folder,
)
from t5like.models.heads import WithHead
from t5like.models.shapes import boxed_shapes

Arrays = Mapping[str, np.ndarray]
_TASKS = {"T5": "SEQ_2_SEQ_LM", "GPT": "CAUSAL_LM"}
_HEAD_TASKS = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "tagging": "TOKEN_CLS", "spans": "QUESTION_ANS"}


def export_peft(target: Path, model: nn.Module, params: Any, method: Method, base: str) -> int:
  """Writes the folder and returns the number of its parameters; raises UserError for what peft cannot express.

  Args:
    target: a new folder.
    model: the plain model, with its head.
    params: of the tuned model.
    method: that tuned it.
    base: for base_model_name_or_path: the Hugging Face folder of the base.
  """
  writers = {LoRA: _lora, IA3: _ia3, PromptTuning: write_prompt, PrefixTuning: write_prefix}
  if type(method) not in writers:
    raise UserError(
      f"peft has no counterpart of {type(method).__name__}", expected=", ".join(kind.__name__ for kind in writers)
    )
  flat = unstack_layers(flatten(params))
  config, tensors = writers[type(method)](model, flat, method)
  head = [rule for rule in tensor_rules(model) if all(path.startswith("head/") for path in rule.ours)]
  whole = _trained_modules(model, method, config.get("target_modules"))
  tensors |= {rule.theirs: rule.join(flat) for rule in [*head, *whole]}
  config |= {
    "base_model_name_or_path": base,
    "inference_mode": True,
    "task_type": _task(model),
  }
  if head or whole:
    heads, modules = {rule.theirs.partition(".")[0] for rule in head}, {_module(rule) for rule in whole}
    config["modules_to_save"] = sorted(heads | modules)
  write_folder(target, PeftFolder(config, tensors))
  return sum(x.size for x in tensors.values())


def _trained_modules(model: nn.Module, method: Method, targets: Sequence[str] | None) -> list[Rule]:
  """Returns the tensors of all modules of the base that have a parameter of `also`: peft trains modules as a whole."""
  if not method.also:
    return []
  name = type(method).__name__
  also = matching(f"{name}.also", method.also, read_variables(nn.unbox(boxed_shapes(model))))
  rules = [rule for rule in tensor_rules(model) if not all(path.startswith("head/") for path in rule.ours)]
  modules = {_module(rule) for rule in rules if also.intersection(rule.ours)}
  if both := sorted(module for module in modules if matches(targets, module)):
    raise UserError(f"peft cannot train {both[0]} both as a whole and by {name}", try_="t5like convert merge")
  chosen = [rule for rule in rules if _module(rule) in modules]
  for rule in chosen:
    check_not_tied(rule)
  return chosen


def _module(rule: Rule) -> str:
  return rule.theirs.rpartition(".")[0]


def _task(model: nn.Module) -> str | None:
  if isinstance(model, WithHead):
    return _HEAD_TASKS.get(model.head.form)
  return _TASKS.get(type(model).__name__)


def _lora(model: nn.Module, flat: Arrays, method: LoRA) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  scales = {}
  for matrix, (_, scale) in method.targeted(model).items():
    if matrix.is_table:
      raise UserError("LoRA of the embedding is not exported to peft", try_="convert merge")
    scales |= dict.fromkeys([matrix.path, *_numbered(matrix.path, matrix.layers)], scale)
  modules, tensors, ranks, alphas = _modules(model, flat, "lora_a"), {}, {}, {}
  for module in modules:
    factors = [_factors(flat, path) for path in module.ours]
    if not any(factors):
      continue
    scale = next(scales[path] for path in module.ours if path in scales)
    parts = [f and (f[0], f[1] * (scales[path] / scale)) for path, f in zip(module.ours, factors, strict=True)]
    width = next(f[1].shape[1] for f in factors if f)
    a, b = join_low_rank(parts, width)
    b = module.in_their_order(b)
    tensors |= {f"{module.name}.lora_A.weight": a, f"{module.name}.lora_B.weight": b.astype(a.dtype)}
    ranks[module.name], alphas[module.name] = len(a), scale * len(a)
    if method.dora:
      if not all(factors):
        raise UserError("DoRA of a part of GPT-2's c_attn cannot be expressed in peft", module=module.name)
      magnitudes = [flat[f"{path}/magnitude"] for path in module.ours]
      tensors[f"{module.name}.lora_magnitude_vector"] = module.in_their_order(np.concatenate(magnitudes))
  rank, alpha = most_common(ranks), most_common(alphas)
  return {
    "peft_type": "LORA",
    "target_modules": target_modules(list(ranks), [module.name for module in modules]),
    "r": rank,
    "lora_alpha": alpha,
    "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
    "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
    "lora_dropout": method.dropout,
    "bias": "none",
    "use_rslora": False,
    "use_dora": method.dora,
    "fan_in_fan_out": any(module.fan_in_fan_out for module in modules),
    "init_lora_weights": True,
  }, tensors  # fmt: skip


def _ia3(model: nn.Module, flat: Arrays, method: IA3) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  before = {
    path
    for site, (extension,) in method.sites(model).items()
    for path in (site, *_numbered(site, model.config.num_encoder_layers + model.config.num_decoder_layers))
    if extension.before
  }
  modules, tensors, feedforward = _modules(model, flat, "ia3"), {}, []
  for module in modules:
    vectors = [flat.get(f"{path}/ia3") for path in module.ours]
    if all(vector is None for vector in vectors):
      continue
    check_scaled(module, dict(zip(module.ours, vectors, strict=True)))
    width = next(len(vector) for vector in vectors if vector is not None)
    joined = module.in_their_order(np.concatenate([np.ones(width, np.float32) if v is None else v for v in vectors]))
    is_input = module.ours[0] in before
    feedforward += [module.name] * is_input
    tensors[f"{module.name}.ia3_l"] = joined[None, :] if is_input else joined[:, None]
  chosen, every = [name.removesuffix(".ia3_l") for name in tensors], [module.name for module in modules]
  inputs = target_modules(feedforward, every)
  if any(name.endswith(tuple(inputs)) for name in chosen if name not in feedforward):
    inputs = sorted(feedforward)  # peft compares ends of names, so that `o` is also `wo`
  return {
    "peft_type": "IA3",
    "target_modules": target_modules(chosen, every),
    "feedforward_modules": inputs,
    "fan_in_fan_out": any(module.fan_in_fan_out for module in modules),
    "init_ia3_weights": True,
  }, tensors  # fmt: skip


def _modules(model: nn.Module, flat: Arrays, name: str) -> list[HFModule]:
  """Returns the linear layers of Hugging Face's class; raises UserError if a layer with `name` is not one of them."""
  modules = linear_modules(model)
  known = {path for module in modules for path in module.ours}
  tuned = [path.removesuffix(f"/{name}") for path in flat if path.endswith(f"/{name}")]
  if others := [path for path in tuned if path not in known]:
    raise UserError(
      f"peft adapts linear layers, which {others[0]} is not in Hugging Face's class",
      try_="convert merge; or train other targets: --gin.LoRA.targets=\"['.*/mlp/wi', '.*/mlp/wo']\"",
    )
  return modules


def _factors(flat: Arrays, path: str) -> tuple[np.ndarray, np.ndarray] | None:
  found = flat.get(f"{path}/lora_a")
  return None if found is None else (found, flat[f"{path}/lora_b"])


def _numbered(path: str, layers: int) -> list[str]:
  return [path.replace("/layers/", f"/layers_{i}/") for i in range(layers)]
