"""SpanBERT: a BERT that also predicts the tokens of a span from the two tokens next to it (Joshi et al. 2019)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5like.errors import UserError
from t5like.kernels.activation_functions import ACTIVATIONS
from t5like.kernels.cross_entropy import cross_entropy
from t5like.models.auxiliary import Auxiliary
from t5like.models.bert import BERT, Batch
from t5like.models.config import TransformerConfig
from t5like.models.layers import Norm, dense, embedding_init

LOSS = "boundary_loss"


class SpanBERT(BERT):
  """BERT with a span-boundary objective: its loss is that of the masked tokens plus that of the boundaries.

  A span is a run of predicted tokens. Its token number i is predicted from the states of the tokens before and after
  the span, and from an embedding of i. Spans at the ends of a row have no boundary and do not count.

  boundary_weight  of the span-boundary loss
  span_positions   tokens of a span that are predicted this way; later ones do not count
  position_dim     width of the embeddings of i
  """

  boundary_weight: float = 1.0
  span_positions: int = 20
  position_dim: int = 200

  def setup(self):
    super().setup()
    for field in ("boundary_weight", "span_positions", "position_dim"):
      if not getattr(self, field) > 0:
        raise UserError(f"invalid SpanBERT.{field}: {getattr(self, field)!r}", expected="a number above 0")
    if self.config.mlm_head:
      self.boundary_head = BoundaryHead(self.config, self.span_positions, self.position_dim)

  def __call__(self, batch: Batch, deterministic: bool = True) -> dict[str, jax.Array]:
    """Returns the outputs of BERT and, for a batch with targets, the span-boundary loss as "auxiliary"."""
    outputs = super().__call__(batch, deterministic)
    if not self.config.mlm_head:
      return outputs
    hidden, weights = outputs["hidden_states"], batch.get("encoder_loss_weights")
    if weights is None:
      if self.is_initializing():
        self.boundary_logits(hidden, jnp.zeros((*hidden.shape[:2], 3), jnp.int32))
      return outputs
    spans, counts = find_spans(weights, self.span_positions)
    targets = batch["encoder_target_tokens"]
    if "predicted" in outputs:
      at = outputs["predicted"]
      targets, counts = (jnp.take_along_axis(x, at, axis=1) for x in (targets, counts))
      spans = jnp.take_along_axis(spans, at[:, :, None], axis=1)
    losses, *_ = cross_entropy(self.boundary_logits(hidden, spans), targets, 0.0, 0.0)
    return outputs | {"auxiliary": {LOSS: Auxiliary(losses, counts, self.boundary_weight)}}

  def auxiliary_counts(self, batch: Batch) -> dict[str, jax.Array]:
    """Returns the divisor of the span-boundary loss."""
    return {LOSS: jnp.sum(find_spans(batch["encoder_loss_weights"], self.span_positions)[1])}

  def boundary_logits(self, hidden: jax.Array, spans: jax.Array) -> jax.Array:
    """Returns logits [batch, n, vocab] for `spans` [batch, n, (before, after, number of the token in its span)]."""
    before, after = (jnp.take_along_axis(hidden, spans[..., i, None], axis=1) for i in (0, 1))
    transformed, bias = self.boundary_head(before, after, spans[..., 2])
    return self.token_embedder.attend(transformed) + bias[None, None]


class BoundaryHead(nn.Module):
  """Two layers norm(act(x W + b)) over [state before; state after; position], then the tied embedding and a bias."""

  config: TransformerConfig
  positions: int
  position_dim: int

  @nn.compact
  def __call__(self, before: jax.Array, after: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the vectors to multiply with the embedding, and the bias [vocab] of the logits."""
    config, dtype = self.config, jnp.dtype(self.config.param_dtype)
    init = nn.with_logical_partitioning(embedding_init(config), (None, None))
    table = self.param("position_embedding", init, (self.positions, self.position_dim), dtype)
    x = jnp.concatenate([before, after, table.astype(config.dtype)[number]], axis=-1)
    for layer in (0, 1):
      axes = (None, "mlp") if layer == 0 else ("embed", "mlp")
      x = ACTIVATIONS[config.activation](dense(config, config.embed_dim, axes, name=f"dense_{layer}")(x))
      x = nn.with_logical_constraint(x, ("batch", "length", None))  # the norm needs the full width
      x = Norm(config, name=f"norm_{layer}")(x)
    init = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
    bias = self.param("bias", init, (config.vocab_size,), dtype)
    return x, bias.astype(jnp.dtype(config.logits_dtype))


def find_spans(weights: jax.Array, longest: int) -> tuple[jax.Array, jax.Array]:
  """Returns for each token [batch, length, 3] the positions before and after its span and its number in it, from 0;
  and weights [batch, length]: 0 for tokens without a span, in one at an end of the row, or beyond `longest`."""
  inside, length = weights != 0, weights.shape[1]
  places = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], weights.shape)
  # The last place before, and the first after, that is not in a span; -1 and `length` outside of the row.
  before = jax.lax.cummax(jnp.where(inside, -1, places), axis=1)
  after = jax.lax.cummin(jnp.where(inside, length, places), axis=1, reverse=True)
  number = places - before - 1
  counted = inside & (before >= 0) & (after < length) & (number < longest)
  found = jnp.stack([before, after, number], axis=-1)
  return jnp.where(counted[..., None], found, 0), jnp.where(counted, weights, 0.0)
