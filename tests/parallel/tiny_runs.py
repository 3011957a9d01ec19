"""The smallest T5, BERT and GPT, and the losses of their first steps on a mesh."""

import dataclasses
import functools

import jax
import numpy as np
import optax

from t5like import parallel
from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.gpt import GPT
from t5like.models.t5 import T5
from t5like.training import optimizers, schedules
from t5like.training.state import TrainState, initial_state, state_spec
from t5like.training.step import LossSettings, compile_train_step

ROWS, LENGTH, VOCAB = 8, 13, 128  # the length divides over no mesh axis
_SIZES = dict(vocab_size=VOCAB, embed_dim=32, mlp_dim=64, num_heads=4)
_BERT = dict(
  use_bias=True, norm="layer", norm_position="post", positions="learned", max_positions=16, activation="gelu_erf",
  embedding_norm=True, scale_logits=False, scale_attention=True, num_token_types=2, pooler=True, mlm_head=True,
  nsp_head=True, initializer="normal",
)  # fmt: skip
_GPT = dict(
  use_bias=True, norm="layer", positions="learned", max_positions=16, activation="gelu", scale_logits=False,
  scale_attention=True, initializer="normal",
)  # fmt: skip
MODELS = {
  "t5": T5(TransformerConfig(**_SIZES, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.1)),
  "bert": BERT(TransformerConfig(**_SIZES, **_BERT, num_encoder_layers=1)),
  "gpt": GPT(TransformerConfig(**_SIZES, **_GPT, num_decoder_layers=1)),
}
# Plain gradient descent: it has no state, so that a step compiles faster. How the state of other optimizers is
# split, and that it makes no difference, is tested with the optimizers.
OPTIMIZER = dataclasses.replace(optimizers.adamw(schedules.constant_rate(0.5)), transformation=optax.sgd(0.5))


def batch_for(name: str) -> dict[str, np.ndarray]:
  """Random tokens in the model's layout, some of them padding."""
  rng = np.random.default_rng(0)

  def tokens() -> np.ndarray:
    return rng.integers(2, VOCAB, (ROWS, LENGTH)).astype(np.int32)

  weights = (rng.random((ROWS, LENGTH)) < 0.7).astype(np.float32)
  if name == "bert":
    return {
      "encoder_input_tokens": tokens(),
      "encoder_target_tokens": tokens(),
      "encoder_loss_weights": weights,
      "encoder_token_types": rng.integers(0, 2, (ROWS, LENGTH)).astype(np.int32),
      "labels": rng.integers(0, 2, (ROWS,)).astype(np.int32),
    }
  decoder = {"decoder_input_tokens": tokens(), "decoder_target_tokens": tokens(), "decoder_loss_weights": weights}
  return decoder | ({"encoder_input_tokens": tokens()} if name == "t5" else {})


@functools.cache
def first_state(name: str) -> TrainState:
  """The state that all runs of a model begin with, in this machine's memory."""
  batch = batch_for(name)
  return jax.device_get(jax.jit(lambda: initial_state(MODELS[name], OPTIMIZER, batch, seed=0))())


def losses(name: str, axes: parallel.MeshAxes, devices: list | None = None, steps: int = 4) -> list[float]:
  """The mean loss of each step. Every host trains on its share of the rows."""
  model, batch = MODELS[name], batch_for(name)
  mesh = parallel.make_mesh(axes, devices)
  with parallel.use_preset(axes.preset):
    spec = state_spec(model, OPTIMIZER, batch, mesh)
    step = compile_train_step(model, OPTIMIZER, LossSettings(), spec, batch, mesh)
  state = jax.device_put(first_state(name), spec.shardings)
  share = ROWS // jax.process_count()
  mine = slice(jax.process_index() * share, (jax.process_index() + 1) * share)
  rows = parallel.batch_sharding(mesh)
  placed = {k: jax.make_array_from_process_local_data(rows, v[mine]) for k, v in batch.items()}
  values = []
  for _ in range(steps):
    state, metrics = step(state, placed)
    values.append(float(metrics["loss"]) / float(metrics["target_tokens"]))
  return values
