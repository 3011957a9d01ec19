"""Gradient accumulation: the same loss and gradients as the full batch, and as rows one by one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_parameters import random_parameters

from t5like import parallel
from t5like.errors import UserError
from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.gpt import GPT
from t5like.models.t5 import T5
from t5like.training.losses import LossSettings
from t5like.training.microbatches import check_microbatches, split_rows, sum_cached_gradients, sum_gradients
from t5like.training.state import TrainState
from t5like.training.step import eval_step, loss_and_gradients

ROWS, LENGTH = 8, 6
SIZES = dict(vocab_size=24, embed_dim=8, mlp_dim=16, num_heads=2)
MODELS = {
  "packed T5": T5(TransformerConfig(**SIZES, num_encoder_layers=1, num_decoder_layers=1)),
  "BERT with labels": BERT(
    TransformerConfig(**SIZES, num_encoder_layers=1, pooler=True, mlm_head=True, nsp_head=True, tie_embeddings=True)
  ),
  "prefix LM": GPT(TransformerConfig(**SIZES, num_decoder_layers=1, prefix_lm=True)),
}


def batch_for(name):
  """Targets are spread unevenly: the first row has all of them, the last rows none."""
  rng = np.random.default_rng(0)
  tokens = lambda: rng.integers(2, 24, (ROWS, LENGTH)).astype(np.int32)  # noqa: E731
  weights = (np.arange(LENGTH)[None, :] < (LENGTH - np.arange(ROWS))[:, None]).astype(np.float32)
  if name == "BERT with labels":
    labels = rng.integers(0, 2, (ROWS,)).astype(np.int32)
    inputs = tokens()
    inputs[3] = 0  # a padding row: neither its tokens nor its label count
    weights[3] = 0
    return {
      "encoder_input_tokens": inputs, "encoder_target_tokens": tokens(), "encoder_loss_weights": weights,
      "labels": labels,
    }  # fmt: skip
  batch = {"decoder_input_tokens": tokens(), "decoder_target_tokens": tokens(), "decoder_loss_weights": weights}
  segments = (1 + (np.arange(LENGTH)[None, :] >= rng.integers(1, LENGTH, (ROWS, 1)))).astype(np.int32)
  if name == "prefix LM":
    return batch | {"decoder_causal_attention": (segments == 1).astype(np.int32)}
  return batch | {"encoder_input_tokens": tokens(), "encoder_segment_ids": segments, "decoder_segment_ids": segments}


def state_for(model, batch):
  params = random_parameters(model, batch)
  return TrainState(step=jnp.int32(5), params=params, opt_state=None, seed=jnp.uint32(0))


def gradients(model, settings, state, batch):
  return jax.jit(lambda s, b: loss_and_gradients(model, settings, s, b))(state, batch)


def by_rows(model, params, batch, z_loss):
  """Computes loss and gradients row by row with a plain softmax, summed and divided at the end, in Python."""
  side = "decoder" if "decoder_target_tokens" in batch else "encoder"

  def row_loss(params, row):
    outputs = model.apply({"params": params}, row)
    logits = outputs["logits"][0]
    log_z = jnp.log(jnp.sum(jnp.exp(logits), axis=-1))
    chosen = logits[jnp.arange(LENGTH), row[f"{side}_target_tokens"][0]]
    tokens = jnp.sum((log_z - chosen + z_loss * log_z**2) * row[f"{side}_loss_weights"][0])
    if "labels" not in row:
      return tokens / total
    verdict = jax.nn.softmax(outputs["nsp_logits"][0])[row["labels"][0]]
    return tokens / total - jnp.where(jnp.any(row["encoder_input_tokens"] > 0), jnp.log(verdict), 0.0) / real_rows

  total = batch[f"{side}_loss_weights"].sum()
  real_rows = (batch[f"{side}_input_tokens"] > 0).any(axis=1).sum().astype(np.float32)
  one = jax.jit(jax.value_and_grad(row_loss))
  parts = [one(params, {k: v[i : i + 1] for k, v in batch.items()}) for i in range(ROWS)]
  return sum(float(loss) for loss, _ in parts), jax.tree.map(lambda *g: sum(g), *(g for _, g in parts))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_microbatches_equal_the_full_batch_and_its_rows(name):
  model, batch = MODELS[name], batch_for(name)
  state = state_for(model, batch)
  settings = LossSettings(z_loss=1e-2)
  loss, metrics, full = gradients(model, settings, state, batch)
  parts_loss, parts_metrics, parts = gradients(model, dataclasses.replace(settings, microbatches=4), state, batch)
  rows_loss, rows = by_rows(model, state.params, batch, 1e-2)
  assert float(parts_loss) == pytest.approx(float(loss), rel=1e-6) == pytest.approx(rows_loss, rel=1e-6)
  for other in (parts, rows):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-6), other, full)
  assert parts_metrics.keys() == metrics.keys()
  for key, value in metrics.items():
    assert float(parts_metrics[key]) == pytest.approx(float(value), rel=1e-5, abs=1e-7), key


@pytest.mark.slow
def test_every_microbatch_draws_its_own_dropout():
  """All rows are equal: with one mask for all microbatches, two of them would have the mean loss of four."""
  config = dataclasses.replace(MODELS["prefix LM"].config, dropout_rate=0.5, prefix_lm=False)
  model = GPT(config)
  row = {k: v[:1] for k, v in batch_for("prefix LM").items() if k != "decoder_causal_attention"}
  batch = {k: np.repeat(v, 4, axis=0) for k, v in row.items()}
  state = state_for(model, batch)
  run = jax.jit(lambda step, n: loss_and_gradients(
    model, LossSettings(microbatches=n), state.replace(step=step), {k: v[:n] for k, v in batch.items()}
  )[0], static_argnums=1)  # fmt: skip
  assert run(jnp.int32(1), 4) == run(jnp.int32(1), 4) != run(jnp.int32(2), 4)
  assert abs(float(run(jnp.int32(1), 2)) - float(run(jnp.int32(1), 4))) > 1e-4


def test_rows_are_interleaved():
  np.testing.assert_array_equal(split_rows({"x": np.arange(8)}, 2)["x"], [[0, 2, 4, 6], [1, 3, 5, 7]])


def test_gradients_are_added_in_float32():
  """In bfloat16, 256 + 1 is 256."""
  params = {"w": jnp.zeros((), jnp.bfloat16)}
  total, count = sum_gradients(
    lambda i, x: ({"w": x[0].astype(jnp.bfloat16)}, jnp.float32(1)), np.ones(512, np.float32), 512, params
  )
  assert total["w"].dtype == jnp.bfloat16 and float(total["w"]) == 512 == float(count)
  ones = jnp.ones(512, jnp.bfloat16)
  cached, _ = sum_cached_gradients(
    lambda params, index, x: params["w"] * x, lambda outputs: (jnp.sum(outputs.astype(jnp.float32)), {}), ones, 512,
    params,
  )  # fmt: skip
  assert cached["w"].dtype == jnp.bfloat16 and float(cached["w"]) == 512


def test_outputs_that_are_computed_again_have_the_same_dropout():
  """Outputs w * x * (1 + microbatch) of x = 1, 2, 3, 4 at w = 1, in two microbatches: 1, 4, 3, 8."""
  gradients, (loss, _) = sum_cached_gradients(
    lambda params, index, x: params["w"] * x * (1.0 + index.astype(jnp.float32)),
    lambda outputs: (jnp.sum(outputs) ** 2, {}),
    jnp.arange(1.0, 5.0),
    2,
    {"w": jnp.float32(1.0)},
  )
  assert float(loss) == 16**2 and float(gradients["w"]) == 2 * 16 * 16


def test_evaluation_sums_do_not_depend_on_microbatches():
  model, batch = MODELS["BERT with labels"], batch_for("BERT with labels")
  params = state_for(model, batch).params
  full, parts = (jax.jit(lambda p, b, n=n: eval_step(model, LossSettings(microbatches=n), p, b))(params, batch)
                  for n in (1, 2))  # fmt: skip
  assert float(full["sentences"]) == ROWS - 1  # one row is empty
  assert {k: float(v) for k, v in parts.items()} == pytest.approx({k: float(v) for k, v in full.items()}, rel=1e-5)


@pytest.mark.parametrize(
  ("rows", "count", "suggestions"),
  [
    (32, 3, "--gin.MICROBATCHES=1 or --gin.MICROBATCHES=2 or --gin.MICROBATCHES=4 or --gin.BATCH_SIZE=24 or "
     "--gin.BATCH_SIZE=48"),
    (32, 0, "--gin.MICROBATCHES=1 or --gin.MICROBATCHES=2 or --gin.MICROBATCHES=4"),
    (12, 2, "--gin.BATCH_SIZE=16"),
  ],
)  # fmt: skip
def test_invalid_microbatches_come_with_valid_suggestions(rows, count, suggestions):
  mesh = parallel.make_mesh(parallel.MeshAxes(data=4, fsdp=2))
  with pytest.raises(UserError, match=f"a batch of {rows} cannot be split into {count}") as error:
    check_microbatches(rows, count, mesh)
  assert error.value.lines["try"] == suggestions
  for remedy in suggestions.split(" or "):
    option, value = remedy.split("=")
    fits = (rows, int(value)) if "MICRO" in option else (int(value), count)
    check_microbatches(*fits, mesh)
