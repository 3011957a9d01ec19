"""Model FLOPs by formula: matrix products only, attention in full, no rematerialisation.

A product [m, k] x [k, n] is 2 m k n. With B rows, stack length L (K where keys come from another
stack), embed d, inner width a = heads * head_dim, mlp f, vocab V, a forward pass is

    self-attention    8 B L d a  +  4 B L L a          query, key, value, output; scores and mixing
    cross-attention   4 B L d a  +  4 B K d a  +  4 B L K a
    mlp               4 B L d f   (6 B L d f when gated)
    output            2 B L d V
    BERT's heads      2 B L d d  before the output;  2 B d d + 4 B d  for the pooler and next-sentence prediction

and a train step three times that: the backward pass has two products for each of the forward pass. Attention counts
in full where it is causal or rows are packed, and every position counts in the output where only masked ones are
predicted: it is the model's work, not a kernel's, so that kernels which skip some of it show as faster.
"""

from t5like.models.config import TransformerConfig


def _stack(config: TransformerConfig, rows: int, length: int, layers: int, encoder_length: int = 0) -> int:
  d, a, f = config.embed_dim, config.num_heads * config.head_dim, config.mlp_dim
  self_attention = 8 * rows * length * d * a + 4 * rows * length * length * a
  cross = 4 * rows * (length + encoder_length) * d * a + 4 * rows * length * encoder_length * a if encoder_length else 0
  mlp = (6 if config.gated_mlp else 4) * rows * length * d * f
  return layers * (self_attention + cross + mlp)


def forward_flops(config: TransformerConfig, rows: int, encoder_length: int = 0, decoder_length: int = 0) -> int:
  """One forward pass; a length of 0 means that the model has no such stack."""
  d, vocab = config.embed_dim, config.vocab_size
  total = 0
  if encoder_length:
    total += _stack(config, rows, encoder_length, config.num_encoder_layers)
  if decoder_length:
    total += _stack(config, rows, decoder_length, config.num_decoder_layers, encoder_length)
    total += 2 * rows * decoder_length * d * vocab
  elif config.mlm_head:
    total += 2 * rows * encoder_length * d * (d + vocab)
  if config.pooler:
    total += 2 * rows * d * d
  if config.nsp_head:
    total += 2 * rows * d * 2
  return total


def train_step_flops(config: TransformerConfig, rows: int, encoder_length: int = 0, decoder_length: int = 0) -> int:
  return 3 * forward_flops(config, rows, encoder_length, decoder_length)
