"""Losses of 200 steps on real text, which every attention back end and dtype must reproduce within noise.

In bfloat16 they are within 0.003 nats of float32 (means of ten steps). This tests that rounding errors do not
accumulate over steps; models of this size use little context, so attention itself is tested with attention_cases.
"""

import gzip
import json
from pathlib import Path

import jax
import numpy as np

import t5like
from t5like.models import GPT, T5, TransformerConfig
from t5like.training import optimizers
from t5like.training.state import initial_state
from t5like.training.step import LossSettings, train_step

STEPS, ROWS, INPUTS, TARGETS = 200, 4, 96, 32
NOISE = 0.01
SIZE = dict(vocab_size=128, embed_dim=32, mlp_dim=64, num_heads=2, head_dim=16)
MODELS = {
  # T5 1.1: relative positions, unscaled attention.
  "T5": dict(num_encoder_layers=1, num_decoder_layers=1, activation="gelu", gated_mlp=True, tie_embeddings=False),
  # One layer with relative positions: the fastest to compile.
  "LM": dict(num_decoder_layers=1),
  "GPT": dict(
    num_decoder_layers=2, activation="gelu", norm="layer", use_bias=True, scale_attention=True, positions="learned",
    max_positions=INPUTS + TARGETS, scale_logits=False, initializer="normal",
  ),
}  # fmt: skip


def losses(family: str, **changes) -> np.ndarray:
  """Returns the loss of each step, [200] float64. Tokens are letters; T5 reads 96 and predicts the next 32."""
  config = TransformerConfig(**SIZE | MODELS[family] | changes)
  model = (T5 if family == "T5" else GPT)(config)
  batches = _batches(family)
  # With ten times the learning rate GPT's losses are chaotic: 1% more epsilon changes them by 0.05.
  optimizer = optimizers.adamw(3e-4 if family == "GPT" else 1e-3)

  def run(batches):
    state = initial_state(model, optimizer, jax.tree.map(lambda x: x[0], batches), 0)

    def step(state, batch):
      state, metrics = train_step(model, optimizer, LossSettings(guard=False), state, batch)
      return state, metrics["loss"] / metrics["target_tokens"]

    return jax.lax.scan(step, state, batches)[1]

  with jax.default_prng_impl("rbg"):  # compiles many times faster than the default generator
    return np.asarray(jax.jit(run)(batches), np.float64)


def difference(got: np.ndarray, expected: np.ndarray) -> float:
  """Returns the largest difference of ten-step means, which average out the noise of single steps."""
  assert np.all(np.isfinite(got))
  return float(np.abs((got - expected).reshape(-1, 10).mean(axis=1)).max())


def _batches(family: str) -> dict[str, np.ndarray]:
  path = Path(t5like.__file__).parent / "tasks" / "embedded" / "novels.train.jsonl.gz"
  with gzip.open(path, "rt") as file:
    text = json.loads(file.readline())["text"]
    while len(text) < STEPS * ROWS * (INPUTS + TARGETS + 1):
      text += json.loads(file.readline())["text"]
  letters = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
  rows = letters[: STEPS * ROWS * (INPUTS + TARGETS + 1)].reshape(STEPS, ROWS, -1)
  if family == "T5":
    inputs, targets = rows[..., INPUTS:-1], rows[..., INPUTS + 1 :]
    batch = {"encoder_input_tokens": rows[..., :INPUTS]}
  else:
    inputs, targets = rows[..., :-1], rows[..., 1:]
    batch = {}
  weights = np.ones(targets.shape, np.float32)
  return batch | {"decoder_input_tokens": inputs, "decoder_target_tokens": targets, "decoder_loss_weights": weights}
