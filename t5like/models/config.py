"""The model configuration: every difference between models is a field of one dataclass."""

import dataclasses
import types
import typing

import jax.numpy as jnp

from t5like.errors import UserError, is_finite, is_number, nearest
from t5like.kernels.attention import RELATIVE_TERMS, check_backend

CHOICES = {
  "activation": ("relu", "gelu", "gelu_erf", "silu", "elu", "selu", "softplus", "sigmoid", "linear"),
  "norm": ("rms", "layer", "none"),
  "residual": ("plain", "rezero", "fixup"),
  "synthesizer": (
    "none",
    "dense",
    "dense_plus",
    "dense_plus_alpha",
    "random",
    "random_plus",
    "random_plus_alpha",
    "factorized",
  ),  # fmt: skip
  "shared_stacks": ("all", "encoder", "decoder"),
  "norm_position": ("pre", "post", "branch"),
  "positions": ("relative_bias", "learned", "sinusoidal", "rotary", "alibi", "disentangled", "transformer_xl", "none"),
  "rotary_scaling": ("default", "linear", "llama3"),
  "embedding_projection": ("sum", "tokens"),
  "initializer": ("fan_in", "normal"),
  "param_dtype": ("float32", "bfloat16", "float16"),
  "compute_dtype": ("float32", "bfloat16", "float16"),
  "logits_dtype": ("float32", "bfloat16", "float16"),
  "layer_loop": ("auto", "loop", "unrolled"),
  "remat": ("none", "elementwise", "dots", "full"),
}

_TYPE_NAMES = {
  int: "a whole number", float: "a number", str: "a string", bool: "True or False", types.NoneType: "None",
}  # fmt: skip
_SIZES = (
  "vocab_size", "embed_dim", "mlp_dim", "num_heads", "head_dim", "relative_buckets", "relative_max_distance",
  "max_positions", "num_token_types", "position_offset", "padding_id",
  "embedding_dim", "start_id", "opening_id", "num_kv_heads", "attention_window", "rotary_original_length",
)  # fmt: skip
# Switches of Narang et al. 2021 that no published family has.
MODIFICATIONS = (
  "shared_stacks",
  "layer_signal",
  "residual",
  "synthesizer",
  "tie_inputs",
  "softmax_mixtures",
  "softmax_clusters",
  "num_experts",
)
_MAX_SIZE, _MAX_LAYERS = 2**31 - 1, 4096


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """The architecture of a model. Defaults are those of T5 1.0; see gin/models for other models."""

  # Size.
  vocab_size: int
  embed_dim: int
  mlp_dim: int
  num_heads: int
  num_kv_heads: int | None = None  # Llama: heads of keys and values, each read by a group of queries; None: num_heads
  head_dim: int | None = None  # None: embed_dim / num_heads
  num_encoder_layers: int = 0
  num_decoder_layers: int = 0

  # Blocks.
  activation: str = "relu"  # "gelu" is the tanh approximation of BERT and GPT-2, "gelu_erf" the exact form
  gated_mlp: bool = False  # act(x W0) * (x W1) instead of act(x W) (Shazeer 2020); "linear" is for these only
  # Mixture of experts in every layer: MLPs from which a router selects for each token; see modifications/experts.py.
  num_experts: int = 0  # 0: one MLP
  experts_per_token: int = 1  # 1: Switch
  expert_capacity: float = 1.25  # tokens of a row that an expert takes at most, as a multiple of an even share
  balance_loss: float = 0.01  # weight of the loss that spreads tokens over experts
  router_z_loss: float = 0.001  # weight of the loss that keeps the router's logits small
  norm: str = "rms"
  norm_epsilon: float = 1e-6
  norm_position: str = "pre"  # "pre": x + f(norm(x)); "post": norm(x + f(x)); "branch": x + norm(f(x)) (OLMo-2)
  use_bias: bool = False  # in dense layers
  use_key_bias: bool = True  # also in keys; DeBERTa's first version has none
  scale_attention: bool = False  # divide scores by sqrt(head_dim); T5 folds this into the initializer
  qk_norm: bool = False  # OLMo-2: an RMS norm of all queries and one of all keys, before rotary positions
  attention_window: int | None = None  # Mistral: a token sees this number of tokens, itself included; None: all
  share_encoder_decoder: bool = False  # T5 paper, table 2: both stacks share one set of layers
  layer_groups: int | None = None  # ALBERT: different layers of a stack, each run several times; None: all differ
  shared_stacks: str = "all"  # whose layers are in groups: of "all" stacks, only the "encoder" or the "decoder"
  # Universal Transformer: adds sinusoids of the position and of the number of the layer to the input of every layer.
  layer_signal: bool = False
  # Residual branches: "rezero": x + a f(x), a learned from 0 (Bachlechner et al. 2020); "fixup": x + a f(x + b), a from
  # 1, b from 0, f from 0 with its inner kernels initialized smaller (Zhang et al. 2019); often with norm = "none".
  residual: str = "plain"
  # Where the scores of self-attention come from, other than or next to products: see modifications/synthesizer.py.
  synthesizer: str = "none"
  prefix_lm: bool = False  # decoder-only models: bidirectional attention within the inputs

  # Positions.
  positions: str = "relative_bias"
  relative_buckets: int = 32
  relative_max_distance: int = 128
  share_relative_bias: bool = True  # one table for all layers of a stack; False: one per layer (T5X's scalable models)
  # Positions that a row can use, learned or of a Synthesizer; else the length that it was trained with.
  max_positions: int | None = None
  position_offset: int = 0  # RoBERTa: position 0 reads this row of the learned table, and padding the row before it
  positions_per_stack: bool = False  # BART: the decoder has its own learned positions and norm of its embeddings
  rotary_base: float = 10_000.0
  rotary_scaling: str = "default"  # of frequencies, for longer rows: "linear" divides all, "llama3" the low ones
  rotary_factor: float = 1.0  # divides them
  rotary_low_factor: float = 1.0  # "llama3": frequencies with wavelengths above rotary_original_length / this, ...
  rotary_high_factor: float = 4.0  # ... not those with wavelengths below rotary_original_length / this, others partly
  rotary_original_length: int = 8192  # the rows of the first pre-training
  # DeBERTa ("disentangled"): a table of 2 relative_buckets rows; see kernels/attention/disentangled.py.
  convolution_width: int = 0  # of a convolution over the embeddings, added after layer 0 (version 2 xlarge: 3); 0: none
  relative_norm: bool = False  # normalize the table (version 3)
  share_position_projections: bool = False  # project it with the layer's query and key (versions 2 and 3)

  # Embeddings and heads.
  embedding_dim: int | None = None  # ALBERT: width of the tables, projected to embed_dim; None: embed_dim
  # "sum": the sum of all tables is projected (ALBERT); "tokens": only the table of tokens is, without bias, and the
  # last states are projected back before the output (OPT-350m).
  embedding_projection: str = "sum"
  padding_id: int = 0  # marks padding in a batch with neither segment ids nor lengths; RoBERTa: 1, since <s> is 0
  start_id: int | None = None  # the decoder's first input; None: the vocabulary's padding if it is 0, else its end
  opening_id: int | None = None  # BART: precedes the text of inputs and of targets, <s>; None: nothing does
  tie_embeddings: bool = True  # output projection = token embedding (the decoder's)
  tie_inputs: bool = True  # encoder and decoder share the token embedding
  softmax_mixtures: int = 0  # output = a mixture of this number of softmaxes (Yang et al. 2018); 0: one softmax
  # Adaptive softmax (Grave et al. 2017): the sizes of all clusters of tokens but the last, "2500,6000", the frequent
  # tokens first; states of each further cluster are projected to a quarter of the width. "": one softmax.
  softmax_clusters: str = ""
  scale_embeddings: bool = False  # multiply embeddings by sqrt(embed_dim) (Vaswani et al. 2017)
  scale_logits: bool = True  # T5 1.0 multiplies by embed_dim**-0.5 before its tied output projection
  logits_bias: bool = False  # BART: adds a constant to each token's logit, which is not trained
  embedding_norm: bool = False  # BERT normalizes the sum of its embeddings
  num_token_types: int = 0  # BERT's sentence A / sentence B
  pooler: bool = False  # BERT: tanh(W h_0), input of the sentence heads
  mlm_head: bool = False  # BERT: predicts masked tokens
  discriminator_head: bool = False  # ELECTRA: predicts for each token whether it was replaced
  nsp_head: bool = False  # BERT: predicts whether sentence B follows A

  # Dropout on embeddings and on every residual branch. Elements are dropped independently, as in the papers and in
  # Hugging Face; T5X draws one mask for all positions of a row ("broadcast along length"), which is slightly cheaper
  # and drops the same fraction.
  dropout_rate: float = 0.0
  attention_dropout_rate: float | None = None  # on attention weights; None: dropout_rate
  mlp_dropout_rate: float | None = None  # between the two products of an MLP; None: dropout_rate
  final_dropout: bool = True  # dropout after the final norm, as in T5

  # Initialization: "fan_in" as in T5 (with stddev 1 for embeddings), "normal" as in BERT and GPT.
  initializer: str = "fan_in"
  initializer_stddev: float = 0.02  # for "normal"
  scale_residual_init: bool = False  # GPT-2: initialize residual projections smaller by 1/sqrt(2 layers)

  # Numerics and memory. bfloat16 compute halves activation memory and doubles speed on
  # TPU and recent GPUs; norms, softmax and logits stay float32.
  param_dtype: str = "float32"
  compute_dtype: str = "float32"
  logits_dtype: str = "float32"
  scan_layers: bool = False  # stack the parameters of all layers along a leading `layers` axis
  # How stacked layers run: "loop" compiles one layer for all, "unrolled" every layer; "auto": see stack.py.
  layer_loop: str = "auto"
  # What the backward pass does not recompute: "elementwise": matrix products and attention; "dots": only products with
  # weights; "full": only block inputs.
  remat: str = "none"
  attention_backend: str = "auto"

  def __post_init__(self):
    self._check_types()
    self._check_sizes()
    for field, choices in CHOICES.items():
      value = getattr(self, field)
      if value not in choices:
        raise _invalid(field, value, f"one of {', '.join(choices)}", nearest=nearest(str(value), choices))
    check_backend(self.attention_backend)
    if self.head_dim is None:
      if self.embed_dim % self.num_heads:
        raise _invalid("num_heads", self.num_heads, f"a divisor of embed_dim = {self.embed_dim}, or set head_dim")
      object.__setattr__(self, "head_dim", self.embed_dim // self.num_heads)
    if self.num_heads % self.kv_heads:
      raise _invalid("num_kv_heads", self.num_kv_heads, f"a divisor of num_heads = {self.num_heads}")
    self._check_positions()
    self._check_shared_layers()
    self._check_modifications()
    if self.convolution_width and (self.layer_groups or self.num_decoder_layers or self.convolution_width % 2 == 0):
      raise _invalid("convolution_width", self.convolution_width, "an odd number, without layer_groups and decoder")
    if self.nsp_head and not self.pooler:
      raise _invalid("nsp_head", True, "pooler = True as well: the head reads the pooled state")
    if self.share_encoder_decoder and self.num_encoder_layers != self.num_decoder_layers:
      raise _invalid(
        "num_encoder_layers", self.num_encoder_layers,
        f"num_decoder_layers = {self.num_decoder_layers}: share_encoder_decoder needs equal stacks",
      )  # fmt: skip

  def _check_types(self):
    """Checks the types of all fields, because values from a checkpoint's config file can be anything."""
    for field in dataclasses.fields(self):
      value, allowed = getattr(self, field.name), typing.get_args(field.type) or (field.type,)
      matches = type(value) in allowed or (float in allowed and type(value) is int)
      if not matches or (float in allowed and is_number(value) and not is_finite(value)):
        raise _invalid(field.name, value, " or ".join(_TYPE_NAMES[kind] for kind in allowed))
      if type(value) not in allowed:  # XLA computes with integers of 32 bits
        object.__setattr__(self, field.name, float(value))

  def _check_sizes(self):
    for field in _SIZES:
      if (getattr(self, field) or 0) > _MAX_SIZE:
        raise _invalid(field, getattr(self, field), f"at most {_MAX_SIZE:,}: array indices have 32 bits")
    for field in ("num_encoder_layers", "num_decoder_layers"):
      if getattr(self, field) > _MAX_LAYERS:
        raise _invalid(field, getattr(self, field), f"at most {_MAX_LAYERS:,} layers")
    for field in ("vocab_size", "embed_dim", "mlp_dim", "num_heads", "relative_buckets"):
      if getattr(self, field) < 1:
        raise _invalid(field, getattr(self, field), "a positive number")
    for field in ("head_dim", "max_positions", "embedding_dim", "layer_groups", "num_kv_heads", "attention_window"):
      value = getattr(self, field)
      if value is not None and value < 1:
        raise _invalid(field, value, "a positive number or None")
    for field in (
      "num_encoder_layers",
      "num_decoder_layers",
      "num_token_types",
      "position_offset",
      "convolution_width",
    ):
      if getattr(self, field) < 0:
        raise _invalid(field, getattr(self, field), "at least 0")
    if self.padding_id and self.num_decoder_layers and not self.num_encoder_layers:
      raise _invalid("padding_id", self.padding_id, "0 for a model without encoder")
    for field in ("padding_id", "start_id", "opening_id"):
      if not 0 <= (getattr(self, field) or 0) < self.vocab_size:
        raise _invalid(field, getattr(self, field), f"an id of the vocabulary, 0 to {self.vocab_size - 1}")
    for field in ("dropout_rate", "attention_dropout_rate", "mlp_dropout_rate"):
      value = getattr(self, field)
      if value is not None and not 0.0 <= value < 1.0:
        raise _invalid(field, value, "0 <= rate < 1")

  def _check_positions(self):
    if self.positions == "learned" and self.max_positions is None:
      raise _invalid("max_positions", None, "the number of learned positions, for example 512")
    if self.positions_per_stack and (self.positions != "learned" or self.share_encoder_decoder):
      raise _invalid("positions_per_stack", True, "positions = 'learned', and stacks that are not shared")
    if self.positions == "rotary" and self.head_dim % 2:
      raise _invalid("head_dim", self.head_dim, "an even number: rotary positions rotate pairs of features")
    for field in ("rotary_base", "rotary_factor", "rotary_low_factor", "rotary_high_factor", "rotary_original_length"):
      if getattr(self, field) <= 0:
        raise _invalid(field, getattr(self, field), "a positive number")
    if self.rotary_scaling == "llama3" and self.rotary_high_factor <= self.rotary_low_factor:
      raise _invalid("rotary_high_factor", self.rotary_high_factor, f"more than {self.rotary_low_factor}")
    if self.positions in ("sinusoidal", "transformer_xl") and self.embed_dim % 2:
      raise _invalid("embed_dim", self.embed_dim, "an even number: half sines, half cosines")
    if self.positions == "disentangled" and self.relative_max_distance < self.relative_buckets:
      raise _invalid("relative_max_distance", self.relative_max_distance, f"at least {self.relative_buckets}")
    if self.positions in RELATIVE_TERMS and self.num_decoder_layers:
      raise _invalid("positions", self.positions, "a model without decoder")
    if self.positions in RELATIVE_TERMS and (self.kv_heads != self.num_heads or self.qk_norm or self.attention_window):
      raise _invalid("positions", self.positions, "neither num_kv_heads, qk_norm nor attention_window")
    if self.positions == "relative_bias":
      if self.relative_buckets < 4:
        raise _invalid("relative_buckets", self.relative_buckets, "at least 4: near and far, past and future")
      if self.relative_max_distance <= self.relative_buckets // 2:
        raise _invalid("relative_max_distance", self.relative_max_distance, f"more than {self.relative_buckets // 2}")

  def _check_shared_layers(self):
    for stack, layers in self._stacks.items():
      if layers and layers % self.groups_of(stack):
        raise _invalid("layer_groups", self.layer_groups, f"a divisor of num_{stack}_layers = {layers}")
    if self.layer_signal and (not self.layer_groups or self.embed_dim % 2):
      raise _invalid("layer_signal", True, "layer_groups, such as 1, and an even embed_dim")
    if self.share_encoder_decoder and self.shared_stacks != "all":
      raise _invalid("shared_stacks", self.shared_stacks, "'all' with share_encoder_decoder")

  def _check_modifications(self):
    if self.activation == "linear" and not self.gated_mlp:
      raise _invalid("activation", self.activation, "gated_mlp = True: otherwise the MLP is one linear layer")
    if not self.tie_inputs and (not all(self._stacks.values()) or self.positions_per_stack):
      raise _invalid("tie_inputs", False, "an encoder and a decoder, without positions_per_stack")
    if self.embedding_dim and self.num_decoder_layers and self.tie_embeddings and self.embedding_projection == "sum":
      raise _invalid("embedding_projection", "sum", "'tokens' for a decoder: its output reads the same table")
    if self.num_experts < 0 or (self.num_experts and not self.num_decoder_layers):
      raise _invalid("num_experts", self.num_experts, "0 or more, and a decoder")
    if not 1 <= self.experts_per_token <= max(self.num_experts, 1):
      raise _invalid("experts_per_token", self.experts_per_token, f"1 to num_experts = {self.num_experts}")
    if self.num_experts and (self.use_bias or self.expert_capacity <= 0):
      raise _invalid("num_experts", self.num_experts, "use_bias = False and expert_capacity above 0")
    if self.synthesizer != "none":
      if self.max_positions is None:
        raise _invalid("max_positions", None, "the length of the longest rows, such as 512: a Synthesizer's positions")
      if self.kv_heads != self.num_heads or self.qk_norm or self.positions in ("rotary", *RELATIVE_TERMS):
        expected = f"neither num_kv_heads, qk_norm nor positions = {self.positions!r}"
        raise _invalid("synthesizer", self.synthesizer, expected)
    if self.softmax_mixtures < 0:
      raise _invalid("softmax_mixtures", self.softmax_mixtures, "0 or more")
    if (self.softmax_mixtures or self.softmax_clusters) and not self.num_decoder_layers:
      raise _invalid("num_decoder_layers", 0, "a decoder: softmax_mixtures and softmax_clusters change its output")
    if self.softmax_clusters:
      if self.tie_embeddings or self.softmax_mixtures or self.logits_bias:
        raise _invalid("softmax_clusters", self.softmax_clusters, "tie_embeddings = False, one softmax, no logits_bias")
      given = self.softmax_clusters.split(",")
      if not all(size.isdecimal() and int(size) for size in given) or sum(map(int, given)) >= self.vocab_size:
        raise _invalid(
          "softmax_clusters",
          self.softmax_clusters,
          f"'2500,6000': sizes with a sum below vocab_size = {self.vocab_size}",
        )

  def require_layers(self, model: str, *fields: str) -> None:
    """Raises UserError unless the config has layers in each of the stacks `fields` of `model`."""
    for field in fields:
      if getattr(self, field) < 1:
        raise _invalid(field, getattr(self, field), f"at least 1: {model} has no other layers")

  @property
  def attention_dropout(self) -> float:
    """The dropout rate of attention weights."""
    return self.dropout_rate if self.attention_dropout_rate is None else self.attention_dropout_rate

  @property
  def mlp_dropout(self) -> float:
    """The dropout rate between the two products of an MLP."""
    return self.dropout_rate if self.mlp_dropout_rate is None else self.mlp_dropout_rate

  @property
  def kv_heads(self) -> int:
    """The number of heads of keys and values."""
    return self.num_kv_heads or self.num_heads

  @property
  def position_limit(self) -> int | None:
    """The length of the longest row; None: there is no limit."""
    return self.max_positions if self.positions == "learned" or self.synthesizer != "none" else None

  @property
  def embedding_width(self) -> int:
    """The width of the embedding tables."""
    return self.embedding_dim or self.embed_dim

  @property
  def stored_layers(self) -> dict[str, int]:
    """The number of layers with parameters of their own in each stack."""
    return {stack: self.groups_of(stack) for stack in self._stacks}

  @property
  def _stacks(self) -> dict[str, int]:
    return {"encoder": self.num_encoder_layers, "decoder": self.num_decoder_layers}

  def groups_of(self, stack: str) -> int:
    """Returns the number of different layers of "encoder", "decoder" or "shared"."""
    layers = self._stacks.get(stack, self.num_decoder_layers)
    return self.layer_groups if layers and self.repeats_layers(stack) else layers

  def repeats_layers(self, stack: str) -> bool:
    """Whether the layers of a stack are in groups that share parameters."""
    return self.layer_groups is not None and self.shared_stacks in ("all", stack)

  @property
  def clusters(self) -> tuple[int, ...]:
    """The sizes of all clusters of the adaptive softmax."""
    sizes = tuple(map(int, self.softmax_clusters.split(",")))
    return (*sizes, self.vocab_size - sum(sizes))

  @property
  def dtype(self) -> jnp.dtype:
    """The dtype of activations."""
    return jnp.dtype(self.compute_dtype)


def _invalid(field: str, value: object, expected: str, **lines: str) -> UserError:
  return UserError(
    f"invalid TransformerConfig.{field}: {value!r}",
    expected=expected,
    **lines,
    try_=f"--gin.TransformerConfig.{field}=VALUE",
  )
