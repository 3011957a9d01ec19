"""Analytic model FLOPs: matrix products only, attention in full, no rematerialization.

A product [m, k] x [k, n] is 2 m k n. With B rows, stack length L (K for keys of another stack), embed d, inner width
a = heads * head_dim (c for the heads of keys), mlp f, vocab V, a forward pass is

    self-attention    4 B L d (a + c)  +  4 B L L a    query, output, key, value; scores and mixing
      synthesizer     without 2 B L d a each for queries and keys that it lacks, and 2 B L L a for their products;
                      2 B L L a for dense scores; 2 L L h 16 for those of a factorized table, with h heads
      window          4 B L W a instead, where a query sees W < L keys
      disentangled    8 B L L a  +  4 R d a            both terms for 2 L distances; projections of a table of R rows
      transformer_xl  4 B L L a  +  4 L d a  +  4 B L a   positions of 2 L distances; their projection; segments
      convolution     2 B L w d d                      of width w
    cross-attention   4 B L d a  +  4 B K d c  +  4 B L K a
    mlp               4 B L d f   (6 B L d f when gated)
      experts         2 B L d E  +  4 B E C d f  +  4 B L E C d    router; E experts with C places in a row; dispatch
    output            2 B L E V   with embeddings of width E, which is d unless they are projected to it
      mixture         2 B L d K (d + 1)  and K outputs, for K softmaxes
      adaptive        2 B L (d h + sum of d w + w n)  for a first softmax over h, and clusters of n tokens and width w
    projection        2 B L E d   of such embeddings, and of a decoder's states back to their width, if they are tied
    BERT's heads      2 B L d E  before the output;  2 B d d + 4 B d  for the pooler and next-sentence prediction;
                      2 B L (d d + d)  for ELECTRA's discriminator
    ELECTRA           layers of both models; for the generator, of width g, 4 B L E g around its layers, and the output
    XLNet             the layers for L tokens and P predictions, whose scores are those of L queries; a memory adds its
                      keys, and its own forward pass; no head before the output
    SpanBERT          2 B L (3 d + 200) d  for the second head, with another output
    LSTM              8 B L h (i + o)  +  2 B L h o if projected, with a cell of h, input i, output o
    ELMo              both directions; for words of C characters 2 B L c sum((C - w + 1) w n) and 4 B L F F a highway

and a train step three times that: the backward pass has two products for each of the forward pass. Causal attention
and packed rows count in full, and all positions count in the output even if only masked ones are predicted: kernels
that skip some of this work show as faster.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from t5like.models import ELECTRA, SpanBERT, XLNet
from t5like.models.bert import predictions_per_row
from t5like.models.config import TransformerConfig
from t5like.models.modifications.experts import capacity
from t5like.models.modifications.outputs import cluster_width
from t5like.models.modifications.synthesizer import FACTORS, has_key, has_query
from t5like.models.recurrent import ELMoConfig, RecurrentConfig


def forward_flops_by_part(
  config: TransformerConfig, rows: int, encoder_length: int = 0, decoder_length: int = 0, has_output: bool = True
) -> dict[str, int]:
  """Returns the FLOPs of a forward pass by part; a length of 0 means that the model lacks that stack.

  has_output: whether states are projected to the vocabulary, which a model with a head for labels does not do.
  """
  # Widths: of the states, of all queries, of an MLP, and of all keys.
  d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
  c = config.kv_heads * config.head_dim
  width, parts = config.embedding_width, {}
  if config.convolution_width:
    parts["convolution"] = 2 * rows * encoder_length * config.convolution_width * d * d
  if config.embedding_dim is not None:
    back = decoder_length if has_output and projects_back(config) else 0
    parts["embedding"] = 2 * rows * (encoder_length + decoder_length + back) * width * d
  stacks = (
    ("encoder", encoder_length, config.num_encoder_layers),
    ("decoder", decoder_length, config.num_decoder_layers),
  )
  for stack, length, layers in stacks:
    tokens = rows * length * layers
    seen = min(length, config.attention_window or length)
    parts[f"{stack} attention"] = 4 * tokens * d * (a + c) + 4 * tokens * seen * a
    missing = (not has_query(config)) + (not has_key(config))
    parts[f"{stack} attention"] -= 2 * tokens * (missing * d * a + (not has_key(config)) * seen * a)
    if config.synthesizer.startswith("dense"):
      parts[f"{stack} attention"] += 2 * tokens * length * a
    if config.synthesizer == "factorized":
      parts[f"{stack} attention"] += 2 * layers * length * length * config.num_heads * FACTORS
    if config.positions == "disentangled":
      table = 2 * config.relative_buckets * layers * bool(length)
      parts[f"{stack} attention"] += 8 * tokens * length * a + 4 * table * d * a
    if config.positions == "transformer_xl":
      parts[f"{stack} attention"] += 4 * tokens * (length + 1) * a + 4 * layers * length * d * a
    if stack == "decoder" and encoder_length:
      keys = rows * encoder_length * layers
      parts["cross-attention"] = 4 * d * (tokens * a + keys * c) + 4 * tokens * encoder_length * a
    inner = (6 if config.gated_mlp else 4) * d * f
    parts[f"{stack} MLP"] = inner * tokens
    if config.num_experts and length:
      places = config.num_experts * capacity(config, length)
      parts[f"{stack} MLP"] = rows * layers * places * (inner + 4 * length * d) + 2 * tokens * d * config.num_experts
  if has_output and (decoder_length or config.mlm_head):
    products = output_products(config) if decoder_length else [(width, config.vocab_size)]
    parts["output"] = sum(2 * rows * (decoder_length or encoder_length) * k * n for k, n in products)
  transforms = config.mlm_head and not decoder_length and config.positions != "transformer_xl"
  heads = 0 if not transforms else 2 * rows * encoder_length * d * width
  heads += 2 * rows * d * d if config.pooler else 0
  heads += 2 * rows * encoder_length * (d * d + d) if config.discriminator_head else 0
  parts["heads"] = heads + (2 * rows * d * 2 if config.nsp_head else 0)
  return {part: flops for part, flops in parts.items() if flops}


def projects_back(config: TransformerConfig) -> bool:
  """Whether a decoder's states are projected to the width of the embeddings before the output."""
  return config.embedding_dim is not None and config.embedding_projection == "tokens" and config.tie_embeddings


def output_products(config: TransformerConfig) -> list[tuple[int, int]]:
  """Returns (k, n) of the products [tokens, k] x [k, n] from a decoder's states, or their projection, to logits."""
  d, vocab = config.embed_dim, config.vocab_size
  if config.softmax_clusters:
    first, *others = config.clusters
    widths = [cluster_width(config, number) for number in range(1, len(others) + 1)]
    pairs = zip(widths, others, strict=True)
    return [(d, first + len(others)), *(shape for w, size in pairs for shape in ((d, w), (w, size)))]
  output = (config.embedding_width if config.tie_embeddings else d, vocab)
  count = config.softmax_mixtures
  return [(d, count), (d, count * d), *[output] * count] if count else [output]


def forward_flops(config: TransformerConfig, rows: int, encoder_length: int = 0, decoder_length: int = 0) -> int:
  return sum(forward_flops_by_part(config, rows, encoder_length, decoder_length).values())


def model_flops_by_part(
  model: nn.Module, rows: int, encoder_length: int = 0, decoder_length: int = 0, has_output: bool = True
) -> dict[str, int]:
  """Returns the FLOPs of a model's forward pass by part, those of ELECTRA's generator included."""
  config = model.config
  if isinstance(config, RecurrentConfig):
    return recurrent_flops_by_part(config, rows * decoder_length, has_output)
  if isinstance(model, SpanBERT) and config.mlm_head:
    parts, tokens = forward_flops_by_part(config, rows, encoder_length), rows * encoder_length
    second = 2 * tokens * (3 * config.embed_dim + model.position_dim) * config.embed_dim
    return parts | {"heads": parts["heads"] + second, "output": 2 * parts["output"]}
  if isinstance(model, XLNet) and config.mlm_head and has_output:
    return _two_stream_flops(model, rows, encoder_length)
  if not isinstance(model, ELECTRA) or not config.mlm_head:
    return forward_flops_by_part(config, rows, encoder_length, decoder_length, has_output)
  headless = dataclasses.replace(config, mlm_head=False, discriminator_head=False)
  generator = dataclasses.replace(model.generator_config, mlm_head=False, discriminator_head=False, embedding_dim=None)
  tokens, d, embedded = rows * encoder_length, config.embed_dim, config.embedding_width
  inside = forward_flops_by_part(generator, rows, encoder_length)
  return forward_flops_by_part(headless, rows, encoder_length) | {
    "heads": 2 * tokens * d * (d + 1),
    "generator": sum(inside.values()) + 2 * 2 * tokens * embedded * generator.embed_dim,
    "output": 2 * tokens * embedded * config.vocab_size,
  }


def _two_stream_flops(model: XLNet, rows: int, encoder_length: int) -> dict[str, int]:
  """Returns the FLOPs of XLNet's forward pass in pre-training; its memory, without backward pass, counts a third."""
  config = dataclasses.replace(model.config, mlm_head=False)
  memory = model.memory_length
  length, layers, a = encoder_length - memory, config.num_encoder_layers, config.num_heads * config.head_dim
  predictions = predictions_per_row(model.predicted_share, length) if model.predicted_share < 1.0 else length
  keys, tokens = length + memory, rows * layers * (length + predictions)
  products = 2 * config.embed_dim * a * (2 * tokens + 2 * rows * layers * keys + layers * (length + keys))
  scores = 2 * 2 * rows * layers * length * a * (3 * keys + length + 2)  # contents, distances, segments, mixing
  moved = 4 * rows * layers * predictions * length * a if model.predicted_share < 1.0 else 0
  parts = {
    "encoder attention": products + scores + moved,
    "encoder MLP": (6 if config.gated_mlp else 4) * tokens * config.embed_dim * config.mlp_dim,
    "output": 2 * rows * predictions * config.embed_dim * config.vocab_size,
  }
  read = sum(forward_flops_by_part(config, rows, memory).values()) if memory else 0
  return parts | ({"memory": read // 3} if read else {})


def recurrent_flops_by_part(config: RecurrentConfig, tokens: int, has_output: bool = True) -> dict[str, int]:
  """Returns the FLOPs of an LSTM model's forward pass by part."""
  d, h, layers = config.embed_dim, config.hidden_dim, config.num_layers
  if isinstance(config, ELMoConfig):
    n = config.num_filters
    convolved = sum((config.chars_per_word - w + 1) * w * count for w, count in config.filters) * config.char_dim
    parts = {
      "characters": 2 * tokens * (convolved + config.num_highways * 2 * n * n + n * d),
      "LSTMs": 2 * tokens * layers * (8 * h * 2 * d + 2 * h * d),
      "output": 2 * 2 * tokens * d * config.vocab_size if has_output and config.has_output else 0,
    }
  else:
    widths = [d, *[h] * (layers - 1), d]
    products = sum(8 * tokens * width * (before + width) for before, width in itertools.pairwise(widths))
    parts = {"LSTMs": products, "output": 2 * tokens * d * config.vocab_size if has_output else 0}
  return {part: flops for part, flops in parts.items() if flops}


def step_flops_by_part(
  model: nn.Module, rows: int, encoder_length: int = 0, decoder_length: int = 0, has_output: bool = True
) -> dict[str, int]:
  """Returns the FLOPs of a model's train step by part."""
  parts = model_flops_by_part(model, rows, encoder_length, decoder_length, has_output)
  return {part: 3 * flops for part, flops in parts.items()}


def train_step_flops(
  model: nn.Module, rows: int, encoder_length: int = 0, decoder_length: int = 0, has_output: bool = True
) -> int:
  return sum(step_flops_by_part(model, rows, encoder_length, decoder_length, has_output).values())


def traced_flops(function: Callable[..., Any], *arguments: Any) -> int:
  """Returns the FLOPs of the matrix products in a function of arrays or shapes, such as an optimizer's update."""
  with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
    return _product_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _product_flops(jaxpr: Any) -> int:
  total = 0
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == "dot_general":
      (contracted, _), _ = eqn.params["dimension_numbers"]
      inner = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
      total += 2 * inner * math.prod(eqn.outvars[0].aval.shape)
    repeats = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
    for value in eqn.params.values():
      inner_jaxpr = getattr(value, "jaxpr", value)
      if hasattr(inner_jaxpr, "eqns"):
        total += repeats * _product_flops(inner_jaxpr)
  return total
