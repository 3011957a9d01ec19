"""Learned prompts and prefixes in peft's form: one tensor, `prompt_embeddings`, for all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from t5like.errors import UserError
from t5like.finetuning.methods import PrefixTuning, PromptTuning
from t5like.interop.peft_files import PROMPTS
from t5like.models import GPT, T5
from t5like.models.positions import rotary_frequencies, rotate

Arrays = Mapping[str, np.ndarray]
_LAYER = "decoder/layers_{}/attention/prefix"
_SHARED = "decoder/prefixes/attention"


def write_prompt(model: nn.Module, flat: Arrays, method: PromptTuning) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Returns peft's settings and the tensor [tokens, embed]."""
  _check_prompts(model)
  (site,) = method.sites(model)
  settings = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": method.length, "prompt_tuning_init": "RANDOM"}
  return settings | _sizes(model), {PROMPTS: flat[site]}


def read_prompt(config: Mapping[str, Any], tensor: np.ndarray, model: nn.Module) -> tuple[PromptTuning, Arrays]:
  """Returns the method, and its parameters by path."""
  _check_prompts(model)
  if (config.get("num_transformer_submodules") or 1) != 1:
    raise UserError(
      "this prompt of peft has a second part for the decoder",
      expected="num_transformer_submodules = 1, a prompt of the encoder alone, as in Lester et al.",
    )
  method = PromptTuning(length=_tokens(config, tensor, model.config.embed_dim), init="random")
  (site,) = method.sites(model)
  return method, {site: tensor}


def write_prefix(model: nn.Module, flat: Arrays, method: PrefixTuning) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Returns peft's settings and the tensor [tokens, layers * (keys, values) * heads * width], already projected."""
  _check_prefixes(model)
  layers = range(model.config.num_decoder_layers)
  each = [_turned(_keys_values(flat, _LAYER.format(n), model), model, method.length) for n in layers]
  keys_values = np.stack(each)  # [layers, 2, tokens, heads, width]
  tensor = np.moveaxis(keys_values, 2, 0).reshape(method.length, -1)
  settings = {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": method.length, "prefix_projection": False}
  heads, width = model.config.kv_heads, model.config.head_dim
  sizes = {"token_dim": heads * width, "num_attention_heads": heads}  # of keys and values, as peft sets them
  return settings | _sizes(model) | sizes, {PROMPTS: tensor}


def read_prefix(config: Mapping[str, Any], tensor: np.ndarray, model: nn.Module) -> tuple[PrefixTuning, Arrays]:
  """Returns the method, without projection, and its parameters by path."""
  _check_prefixes(model)
  sizes = model.config
  tokens = _tokens(config, tensor, sizes.num_decoder_layers * 2 * sizes.kv_heads * sizes.head_dim)
  layers = tensor.reshape(tokens, sizes.num_decoder_layers, 2, sizes.kv_heads, sizes.head_dim)
  arrays = {
    f"{_LAYER.format(n)}/keys_values": _turned(np.moveaxis(layers[:, n], 0, 1), model, -tokens)
    for n in range(layers.shape[1])
  }
  return PrefixTuning(length=tokens, hidden=0), arrays


def _turned(keys_values: np.ndarray, model: nn.Module, positions: int) -> np.ndarray:
  """Turns the keys of [2, tokens, heads, width] by rotary positions, if the model has them.

  In Hugging Face the first token after a prefix of n tokens is at n, here at 0. So queries there are turned by n
  positions more, and the keys of the prefix, which have no position, must be, too.
  """
  if model.config.positions != "rotary":
    return keys_values
  keys, values = keys_values
  at = np.full((1, len(keys)), positions, np.int32)
  turned = rotate(jnp.asarray(keys, jnp.float32)[None], at, rotary_frequencies(model.config))[0]
  return np.stack([np.asarray(turned, keys.dtype), values])


def _keys_values(flat: Arrays, path: str, model: nn.Module) -> np.ndarray:
  """Returns keys and values [2, tokens, heads, width] of a layer."""
  if f"{path}/keys_values" in flat:
    return flat[f"{path}/keys_values"]
  hidden = flat[f"{_SHARED}_embedding"] @ flat[f"{_SHARED}_hidden/kernel"] + flat[f"{_SHARED}_hidden/bias"]
  projected = np.tanh(hidden) @ flat[f"{path}/out/kernel"] + flat[f"{path}/out/bias"]
  shape = (len(projected), 2, model.config.kv_heads, model.config.head_dim)
  return np.moveaxis(projected.reshape(shape), 1, 0)


def _sizes(model: nn.Module) -> dict[str, Any]:
  config = model.config
  return {
    "token_dim": config.embed_dim,
    "num_layers": config.num_decoder_layers,
    "num_attention_heads": config.num_heads,
    "num_transformer_submodules": 1,
  }


def _tokens(config: Mapping[str, Any], tensor: np.ndarray, width: int) -> int:
  expected = (config.get("num_virtual_tokens"), width)
  if tensor.shape != expected:
    raise UserError(f"{PROMPTS} of the peft folder has the shape {tensor.shape}", expected=f"{expected} for this model")
  return tensor.shape[0]


def _check_prompts(model: nn.Module) -> None:
  if type(model) not in (T5, GPT):
    raise UserError(
      "prompts go to peft and back for T5 and GPT without a head",
      given=type(model).__name__,
      why="with a head, peft reads the first vector of the prompt in the place of the first token",
    )


def _check_prefixes(model: nn.Module) -> None:
  config = model.config
  if type(model) is not GPT or config.positions not in ("learned", "rotary") or config.attention_window:
    raise UserError(
      "prefixes go to peft and back for GPT only, with learned or rotary positions and without a window",
      given=f"{type(model).__name__}, positions = {config.positions!r}, window = {config.attention_window}",
      why="peft has no prefixes in encoders, and counts those of decoders as tokens, in relative positions and windows",
    )
