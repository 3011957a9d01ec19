"""Prefix tuning: learned keys and values in every layer (Li and Liang 2021)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.finetuning.methods.base import Method, Sites, layer_sites, positive
from t5like.finetuning.variables import BACKBONE, Variables
from t5like.models.config import TransformerConfig
from t5like.models.heads import WithHead

PLACES = ("encoder", "decoder", "cross")


class Prefix(nn.Module):
  """Keys and values [2, tokens, kv_heads, kv] of one attention: parameters, or projected from its stack's."""

  config: TransformerConfig
  tokens: int
  hidden: int

  @nn.compact
  def __call__(self, shared: jax.Array | None) -> jax.Array:
    heads, width = self.config.kv_heads, self.config.head_dim
    shape = (2, self.tokens, heads, width)
    if not self.hidden:
      init = nn.with_logical_partitioning(nn.initializers.normal(0.02), (None, None, "heads", "kv"))
      return self.param("keys_values", init, shape, jnp.float32)
    out = _dense(2 * heads * width, "out")
    return jnp.moveaxis(out(shared).reshape(self.tokens, 2, heads, width), 1, 0)


class SharedPrefixes(nn.Module):
  """tanh(E W + b) [tokens, hidden] for each kind of attention of a stack, which its layers project."""

  config: TransformerConfig
  tokens: int
  hidden: int
  attentions: tuple[str, ...]

  @nn.compact
  def __call__(self) -> dict[str, jax.Array]:
    found = {}
    for name in self.attentions:
      init = nn.with_logical_partitioning(nn.initializers.normal(1.0), (None, None))
      shape = (self.tokens, self.config.embed_dim)
      embedding = self.param(f"{name}_embedding", init, shape, jnp.float32)
      found[name] = jnp.tanh(_dense(self.hidden, f"{name}_hidden")(embedding))
    return found


def _dense(width: int, name: str) -> nn.Dense:
  init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), (None, None))
  zeros = nn.with_logical_partitioning(nn.initializers.zeros, (None,))
  return nn.Dense(width, param_dtype=jnp.float32, kernel_init=init, bias_init=zeros, name=name)


@dataclasses.dataclass(frozen=True)
class PrefixExtension:
  """Builds the prefix of an attention."""

  tokens: int
  hidden: int

  def __call__(self, config: TransformerConfig) -> nn.Module:
    return Prefix(config, self.tokens, self.hidden)


@dataclasses.dataclass(frozen=True)
class SharedExtension:
  """Builds what the prefixes of a stack's layers share."""

  tokens: int
  hidden: int
  attentions: tuple[str, ...]

  def __call__(self, config: TransformerConfig, name: str) -> nn.Module:
    return SharedPrefixes(config, self.tokens, self.hidden, self.attentions, name=name)


@dataclasses.dataclass(frozen=True)
class Shift:
  """Learned positions that the prefix of a decoder takes, as in Hugging Face: its first token is at `tokens`."""

  tokens: int


@dataclasses.dataclass(frozen=True)
class PrefixTuning(Method):
  """Trains `length` keys and values per layer that every query sees; masks and relative positions ignore them.

  hidden  width of the MLP that computes them from an embedding (the reparameterization of the paper, which is more
          stable): 512 for table-to-text, 800 for summaries; 0 trains them directly
  places  "encoder" and "decoder" self-attention, and "cross" attention of an encoder-decoder; () for all of the model
  """

  length: int = 10
  hidden: int = 512
  places: Sequence[str] = ()

  OWN = "prefix/.*|prefixes/.*"

  def __post_init__(self):
    super().__post_init__()
    positive("PrefixTuning.length", self.length)
    if not isinstance(self.hidden, int) or self.hidden < 0:
      raise UserError(f"invalid PrefixTuning.hidden: {self.hidden!r}", expected="an integer of at least 0")
    for place in self.places:
      if place not in PLACES:
        raise UserError(f"invalid PrefixTuning.places: {place!r}", expected=", ".join(PLACES))

  def sites(self, model: nn.Module) -> Sites:
    if getattr(model.config, "synthesizer", "none") != "none":
      raise UserError(
        "a Synthesizer has no scores for the keys of a prefix",
        field=f"TransformerConfig.synthesizer = {model.config.synthesizer!r}",
        try_="LoRA, adapters or a learned prompt",
      )
    found = {
      "encoder": [site for site in layer_sites(model, "attention") if "encoder" in site.split("/")],
      "decoder": [site for site in layer_sites(model, "attention") if "encoder" not in site.split("/")],
      "cross": layer_sites(model, "cross_attention"),
    }
    for place in self.places:
      if not found[place]:
        raise UserError(f"PrefixTuning.places has {place!r}, but the model has no attention there")
    chosen = {place: sites for place, sites in found.items() if place in (self.places or PLACES)}
    attentions: dict[str, dict[str, bool]] = {}
    sites: Sites = {}
    for site in (site for sites in chosen.values() for site in sites):
      sites[f"{site}/prefix"] = (PrefixExtension(self.length, self.hidden),)
      stack, _, name = site.rsplit("/", 2)
      attentions.setdefault(stack, {})[name] = True
    if self.hidden:
      for stack, names in attentions.items():
        sites[f"{stack}/prefixes"] = (SharedExtension(self.length, self.hidden, tuple(names)),)
    if model.config.positions == "learned" and not found["encoder"]:
      prefix = f"{BACKBONE}/" if isinstance(model, WithHead) else ""
      sites[f"{prefix}token_embedder/shift"] = (Shift(self.length),)
    return sites

  def check_rows(self, model: nn.Module, lengths: Mapping[str, int], packed: bool) -> None:
    config, tokens = model.config, max(lengths.values())
    decoder = not lengths.get("encoder_length") and config.positions == "learned"
    if decoder and self.length + tokens > config.max_positions:
      raise UserError(
        f"a prefix of {self.length} and {tokens} tokens exceed the model's {config.max_positions} positions",
        try_=f"--gin.LENGTHS with at most {config.max_positions - self.length} tokens",
      )

  def title(self, variables: Variables) -> str:
    where = ", ".join(self.places) if self.places else "all"
    return f"a prefix of {self.length} keys and values per layer ({where} attention)"
