"""Fused attention, cuDNN's and ours, compared with XLA attention on a GPU; deterministic steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import CASES, inputs, relative_error, value_and_gradients
from real_text_training import NOISE, difference, losses

from t5like import parallel
from t5like.kernels.attention.cudnn import cudnn_attention
from t5like.kernels.attention.xla import xla_attention
from t5like.kernels.dropout import AttentionDropout
from t5like.kernels.gpu.attention import gpu_attention
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.training import optimizers
from t5like.training.state import create_state, state_spec
from t5like.training.step import LossSettings, compile_train_step

# bfloat16 has 8 bits: by rounding alone, results differ from float32 by 2 to 4 thousandths.
TOLERANCE = 0.012


# All cases with heads of 64; a few with other widths.
@pytest.mark.parametrize(
  "name, width", [(name, 64) for name in CASES] + [(n, w) for n in ("bias, packed", "causal") for w in (32, 128)]
)
@pytest.mark.parametrize("kernel", [cudnn_attention, gpu_attention], ids=lambda kernel: kernel.__name__)
def test_values_and_gradients_equal_xla_attention(name, width, kernel):
  given = inputs(name, jnp.bfloat16, width=width)
  got = value_and_gradients(kernel, *given)
  exact = [x.astype(jnp.float32) for x in given[:4]]
  with jax.default_matmul_precision("highest"):
    expected = value_and_gradients(xla_attention, *exact, *given[4:])
  errors = {key: relative_error(got[key], expected[key]) for key in expected}
  print(kernel.__name__, name, width, {key: f"{error:.4f}" for key, error in errors.items()})
  assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("name", CASES)
def test_dropout_equals_xla_attention_with_the_same_mask(name):
  given = inputs(name, jnp.bfloat16)
  mask = AttentionDropout.draw(jax.random.key(0), 0.1, given[0].shape[0], given[0].shape[2])
  got = value_and_gradients(functools.partial(gpu_attention, dropout=mask), *given)
  exact = [x.astype(jnp.float32) for x in given[:4]]
  with jax.default_matmul_precision("highest"):
    expected = value_and_gradients(functools.partial(xla_attention, dropout=mask), *exact, *given[4:])
  errors = {key: relative_error(got[key], expected[key]) for key in expected}
  assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("family, backend", [("T5", "pallas_gpu"), ("T5", "cudnn"), ("GPT", "cudnn")])
def test_200_steps_on_real_text_equal_float32(family, backend):
  with jax.default_matmul_precision("highest"):
    expected = losses(family, head_dim=64, attention_backend="xla")
  got = losses(family, head_dim=64, compute_dtype="bfloat16", attention_backend=backend)
  print(family, backend, f"{difference(got, expected):.4f}")
  assert difference(got, expected) < NOISE


SIZE = dict(vocab_size=1024, embed_dim=256, mlp_dim=1024, num_heads=4, head_dim=64, compute_dtype="bfloat16")
LEARNED = dict(
  positions="learned", max_positions=256, norm="layer", use_bias=True, scale_attention=True, scale_logits=False
)
DETERMINISTIC = {
  "T5": T5(TransformerConfig(**SIZE, num_encoder_layers=2, num_decoder_layers=2)),
  "GPT": GPT(TransformerConfig(**SIZE, **LEARNED, num_decoder_layers=2)),
  "BERT": BERT(TransformerConfig(**SIZE, **LEARNED, num_encoder_layers=2, num_token_types=2, mlm_head=True)),
  "narrow heads": GPT(TransformerConfig(**SIZE | {"head_dim": 32}, **LEARNED, num_decoder_layers=2)),
}


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_deterministic_step_is_bitwise_reproducible(name):
  """Ten steps on text-like tokens (most are of a few ids), compiled three times."""
  model, rows, length = DETERMINISTIC[name], 32, 256
  rng = np.random.default_rng(0)

  def tokens():
    return np.minimum(rng.zipf(1.2, (rows, length)), 1023).astype(np.int32)

  side = "encoder" if name == "BERT" else "decoder"
  batch = {f"{side}_input_tokens": tokens(), f"{side}_target_tokens": tokens()}
  batch |= {f"{side}_loss_weights": np.ones((rows, length), np.float32)}
  batch |= {"encoder_input_tokens": tokens()} if name == "T5" else {}
  batch |= {"encoder_token_types": tokens() % 2} if name == "BERT" else {}
  mesh, optimizer = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1]), optimizers.adafactor(1e-2)
  spec = state_spec(model, optimizer, batch, mesh)
  placed, seen = parallel.to_global_arrays(batch, mesh), set()
  for _ in range(3):
    jax.clear_caches()
    step = compile_train_step(model, optimizer, LossSettings(), spec, batch, mesh)
    state = create_state(model, optimizer, batch, 0, spec)
    for _ in range(10):
      state, metrics = step(state, placed)
    assert np.isfinite(float(metrics["loss"]))
    seen.add(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(state.params)))
  assert len(seen) == 1
