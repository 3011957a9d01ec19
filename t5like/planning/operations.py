"""The operations of one device in a train step: matrix products, attention, memory traffic.

Each weight has three products: forward, and backward for its input and for the weight. Everything else is bound by
memory: each operation below counts the arrays that it reads and writes after XLA's fusion. Rematerialization computes
norms and activations twice, "dots" attention too, and "full" everything in a layer except its last product, which no
gradient needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import flax.linen as nn
import jax.numpy as jnp

from t5like.kernels.attention import RELATIVE_TERMS
from t5like.models import ELECTRA, SpanBERT, XLNet
from t5like.models.config import TransformerConfig
from t5like.models.modifications.experts import capacity
from t5like.models.modifications.synthesizer import has_key, has_query
from t5like.planning.activations import predicted_positions, writes_scores
from t5like.planning.flops import output_products, projects_back


@dataclasses.dataclass(frozen=True)
class Operation:
  """An operation that is repeated `count` times.

  kind     "product", "attention" or "memory"
  inner    length of the axis that a product sums over, or that attention iterates over
  entries  of a product's result; 0: too many to matter
  kernels  number of kernel launches
  """

  part: str
  kind: str
  flops: float
  bytes: float
  inner: float = 0
  entries: float = 0
  count: float = 1
  kernels: int = 1


@dataclasses.dataclass(frozen=True)
class DeviceShare:
  """A device's share of the work: rows of one microbatch, and a part of every layer's width.

  fsdp         devices that each weight is split over; weights are converted before they are gathered
  score_bytes  per attention score, if attention materializes them: ours are float32
  """

  rows: float
  encoder_length: int
  decoder_length: int
  tensor: int = 1
  fsdp: int = 1
  by_position: bool = False
  platform: str = "gpu"
  score_bytes: int = 4


def layer_operations(model: nn.Module, share: DeviceShare) -> Iterator[Operation]:
  """Yields the operations of all layers, the embedding and the output, forward and backward."""
  config = model.config
  if isinstance(model, ELECTRA) and config.mlm_head:
    yield from _generator(model, share)
  stacks = (
    ("encoder", share.encoder_length, config.num_encoder_layers),
    ("decoder", share.decoder_length, config.num_decoder_layers),
  )
  for stack, length, layers in stacks:
    if not length:
      continue
    for operation in _layer(config, share, stack, length):
      yield dataclasses.replace(operation, count=operation.count * layers)
    if isinstance(model, XLNet) and config.mlm_head:
      yield from _query_stream(model, share)
    tokens, width = share.rows * length, config.dtype.itemsize
    yield Operation(
      "embedding", "memory", 0, 8 * tokens * config.embedding_width * width, kernels=4
    )  # look up; add up the gradient
    if config.embedding_dim is not None:
      yield from _product(config, share, "embedding", tokens, config.embedding_dim, config.embed_dim)
      if stack == "decoder" and projects_back(config):
        yield from _product(config, share, "embedding", tokens, config.embed_dim, config.embedding_dim)
  if config.convolution_width:
    tokens, d = share.rows * share.encoder_length, config.embed_dim
    yield from _product(config, share, "convolution", tokens, config.convolution_width * d, d)
  yield from _output(model, share)
  if isinstance(model, SpanBERT) and config.mlm_head:  # a second head for the same tokens
    yield from _output(model, share)
    tokens = share.rows * predicted_positions(model, share.encoder_length)
    yield from _product(config, share, "heads", tokens, 2 * config.embed_dim + model.position_dim, config.embed_dim)


def _generator(model: ELECTRA, share: DeviceShare) -> Iterator[Operation]:
  """Yields the operations of ELECTRA's generator and of the discriminator's head; `_output` has the generator's.

  Samples read the logits once more, with noise that is computed on the way.
  """
  config, discriminator = model.generator_config, model.config
  for operation in _layer(config, share, "encoder", share.encoder_length):
    yield dataclasses.replace(operation, part="generator", count=operation.count * config.num_encoder_layers)
  tokens, d = share.rows * share.encoder_length, discriminator.embed_dim
  yield from _product(config, share, "generator", tokens, discriminator.embedding_width, config.embed_dim)
  yield from _product(discriminator, share, "heads", tokens, d, d)
  predicted = share.rows * predicted_positions(model, share.encoder_length)
  size = jnp.dtype(discriminator.logits_dtype).itemsize
  yield Operation("generator", "memory", 0, predicted * discriminator.vocab_size / share.tensor * size)


def _query_stream(model: XLNet, share: DeviceShare) -> Iterator[Operation]:
  """Yields the operations of XLNet's predictions in all layers; their scores are those of all positions.

  The memory counts as other tokens do: its backward pass, which it does not have, as the price of its keys.
  """
  config, length = model.config, share.encoder_length
  d, a, f = config.embed_dim, config.num_heads * config.head_dim // share.tensor, config.mlp_dim // share.tensor
  tokens, part = share.rows * predicted_positions(model, length), "encoder attention"
  operations = [
    *_product(config, share, part, tokens, d, a),
    *_product(config, share, part, tokens, a, d),
    *_attention(config, share, part, length, length, False, False),
    *_residual(config, share, part, tokens),
    *_product(config, share, "encoder MLP", tokens, d, f),
    *_product(config, share, "encoder MLP", tokens, f, d),
    _activation(config, "encoder MLP", tokens * f),
    *_residual(config, share, "encoder MLP", tokens),
  ]
  for operation in operations:
    yield dataclasses.replace(operation, count=operation.count * config.num_encoder_layers)


def _layer(config: TransformerConfig, share: DeviceShare, stack: str, length: int) -> Iterator[Operation]:
  d, a, f = config.embed_dim, config.num_heads * config.head_dim // share.tensor, config.mlp_dim // share.tensor
  c = config.kv_heads * config.head_dim // share.tensor
  tokens, part = share.rows * length, f"{stack} attention"
  for width, is_present in ((a, has_query(config)), (c, has_key(config)), (c, True)):
    if is_present:
      yield from _product(config, share, part, tokens, d, width)
  yield from _product(config, share, part, tokens, a, d)
  is_causal = stack == "decoder" and not config.prefix_lm
  yield from _attention(config, share, part, length, length, config.positions == "relative_bias", is_causal)
  yield from _residual(config, share, part, tokens)
  if stack == "decoder" and share.encoder_length:
    part, keys = "cross-attention", share.rows * share.encoder_length
    yield from _product(config, share, part, tokens, d, a)
    for _ in range(2):
      yield from _product(config, share, part, keys, d, c)
    yield from _product(config, share, part, tokens, a, d)
    yield from _attention(config, share, part, length, share.encoder_length, False, False)
    yield from _residual(config, share, part, tokens)
    yield _memory(config, part, keys * d * 2)  # the encoder's gradient is summed over all layers
  part = f"{stack} MLP"
  if config.num_experts:
    places = config.num_experts * capacity(config, length)
    for inner, width in ((d, config.num_experts), (length, d), (places, d)):  # router; to the experts and back
      yield from _product(config, share, part, tokens if inner != length else share.rows * places, inner, width)
    tokens = share.rows * places
  for _ in range(2 if config.gated_mlp else 1):
    yield from _product(config, share, part, tokens, d, f)
  yield from _product(config, share, part, tokens, f, d, is_last=config.norm_position == "pre")
  yield _activation(config, part, tokens * f)
  yield from _residual(config, share, part, share.rows * length)


def _product(
  config: TransformerConfig, share: DeviceShare, part: str, m: float, k: int, n: int, is_last: bool = False
) -> Iterator[Operation]:
  """Yields [m, k] x [k, n] and its two backward products; the weight's gradient is summed over the m tokens.

  is_last  in its layer: its result is added to the residual stream, and XLA does not recompute it
  """
  width = config.dtype.itemsize
  flops, read = 2.0 * m * k * n, width * (m * k + k * n + m * n)
  forward = 2 if config.remat == "full" and not is_last else 1
  yield Operation(part, "product", flops, read, k, m * n, forward)
  yield Operation(part, "product", flops, read, n, m * k)
  yield Operation(part, "product", flops, read, m, k * n)
  if config.param_dtype != config.compute_dtype:  # converts the weight forward, its gradient backward
    both = width + jnp.dtype(config.param_dtype).itemsize
    yield Operation(part, "memory", 0, 2 * k * n * both / share.fsdp, kernels=2)
  if config.use_bias:
    yield _memory(config, part, m * n)  # the sum for the bias's gradient


def _attention(
  config: TransformerConfig, share: DeviceShare, part: str, queries: int, keys: int, has_bias: bool, is_causal: bool
) -> Iterator[Operation]:
  heads = config.num_heads / share.tensor
  pairs = share.rows * heads * queries * keys
  width = config.dtype.itemsize
  ends = share.rows / share.tensor * config.head_dim * (config.num_heads * queries + config.kv_heads * keys) * width
  again = config.remat in ("dots", "full")
  is_cross = part == "cross-attention"
  if not writes_scores(config, queries, keys, share.platform, is_cross):
    # Two products forward, along the keys; five backward, along the queries. Causal attention skips half of them.
    seen = 0.5 if is_causal else 1.0
    if config.attention_window and not is_cross:
      seen = min(seen, config.attention_window / keys)
    products = 4.0 * pairs * config.head_dim * seen
    yield Operation(part, "attention", products, 2 * ends, keys * seen, count=1 + again)
    yield Operation(part, "attention", 2.5 * products, 4 * ends, queries * seen, kernels=3)
    if has_bias:  # computed in the kernel, like its gradient; costs as much as the forward products
      yield Operation(part, "attention", products, 0, queries * seen, kernels=5)
    return
  products = [keys]  # mixing; then the scores
  products += [config.head_dim] * (is_cross or has_key(config))
  products += [config.head_dim] * (not is_cross and config.synthesizer.startswith("dense"))
  for size in products:
    moved = ends + share.score_bytes * pairs
    yield Operation(part, "product", 2.0 * pairs * config.head_dim, moved, size, count=3 + again)
  if config.positions in RELATIVE_TERMS:  # for 2 keys distances; written, then shifted; DeBERTa has two such terms
    moved, terms = ends + 4 * share.score_bytes * pairs, 2 if config.positions == "disentangled" else 1
    yield Operation(part, "product", 4.0 * pairs * config.head_dim, moved, config.head_dim, count=terms * (3 + again))
  # Adds bias and mask, takes maximum, sum and quotient; the same backward.
  dropped = config.attention_dropout > 0
  moved = pairs * (4 * share.score_bytes + 2 * width + 5 * dropped)
  yield Operation(part, "memory", 0, moved, count=2 + again, kernels=3)


def _residual(config: TransformerConfig, share: DeviceShare, part: str, tokens: float) -> Iterator[Operation]:
  """Yields x + f(norm(x)) around a sublayer.

  Forward is one fusion: it reads the stream and f, writes the stream and its norm. Backward has three: row sums and the
  gradient of the stream (six arrays), and the scale's gradient (two).
  Our GPU kernels read less but stream more slowly: on an H200 they take as long, 8 ms of T5 base's step.
  """
  split = share.tensor if share.by_position else 1
  size = tokens * config.embed_dim / split
  again = config.remat != "none"
  arrays = 12 + 4 * again + (2 if config.dropout_rate else 0)
  yield Operation(part, "memory", 0, arrays * size * config.dtype.itemsize, kernels=4 + again)


def _activation(config: TransformerConfig, part: str, size: float) -> Operation:
  """Returns the memory traffic of an MLP's activation.

  Forward reads one or two arrays and writes the result; backward reads them and its gradient and writes theirs.
  """
  forward, backward = (3, 5) if config.gated_mlp else (2, 3)
  forward *= 2 if config.remat != "none" else 1
  dropped = 1 if config.mlp_dropout else 0
  return _memory(config, part, (forward + backward + dropped) * size, kernels=2)


def _memory(config: TransformerConfig, part: str, numbers: float, kernels: int = 1) -> Operation:
  return Operation(part, "memory", 0, numbers * config.dtype.itemsize, kernels=kernels)


def _output(model: nn.Module, share: DeviceShare) -> Iterator[Operation]:
  """Yields the operations of logits and cross entropy."""
  config = model.config
  if not share.decoder_length and not config.mlm_head:
    return
  positions = share.decoder_length or predicted_positions(model, share.encoder_length)
  tokens, vocab = share.rows * positions, -(-config.vocab_size // share.tensor)
  plain = dataclasses.replace(config, remat="none", use_bias=False)
  products = output_products(config) if share.decoder_length else [(config.embedding_width, config.vocab_size)]
  for k, n in products:
    yield from _product(plain, share, "output", tokens, k, -(-n // share.tensor))
  if not share.decoder_length and not isinstance(model, XLNet):
    width = model.generator_config.embed_dim if isinstance(model, ELECTRA) else config.embed_dim
    yield from _product(config, share, "heads", tokens, width, config.embedding_width)
  size = jnp.dtype(config.logits_dtype).itemsize
  # Logits are written; read for maximum, sum, accuracy and gradient. The gradient is written in the compute dtype, and
  # copied to a padded array for products on a GPU.
  gradient = config.dtype.itemsize * (3 if config.vocab_size % 8 else 1)
  softmaxes = max(config.softmax_mixtures, 1)
  yield Operation("output", "memory", 0, softmaxes * tokens * vocab * (5 * size + gradient), kernels=6)


def optimizer_operations(
  parameter_bytes: float, optimizer_bytes: float, variables: int, microbatches: int = 1
) -> Iterator[Operation]:
  """Yields the memory traffic of an update on one device.

  Gradients are written, read for their norm and read for the update; parameters are read, written, and read for their
  norm. The optimizer state is read and written. The RMS of an update or a parameter reads gradient and parameter once
  more. Each variable has separate sums and updates: small ones cost six kernel launches. Microbatches accumulate
  gradients.
  """
  yield Operation("optimizer", "memory", 0, 8 * parameter_bytes + 2 * optimizer_bytes, kernels=6 * variables)
  if microbatches > 1:
    yield Operation("optimizer", "memory", 0, 3 * parameter_bytes, count=microbatches, kernels=variables)
