"""Small programs initialize the values of one large program, on any mesh, and few of them are compiled."""

import dataclasses

import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.models.config import TransformerConfig
from t5like.models.gpt import GPT
from t5like.models.t5 import T5
from t5like.training import initialization, optimizers
from t5like.training.state import create_state, initial_state, state_spec

CONFIG = TransformerConfig(
  vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, num_encoder_layers=2, num_decoder_layers=1
)
TOKENS = np.zeros((8, 8), np.int32)
BATCH = {"encoder_input_tokens": TOKENS, "decoder_input_tokens": TOKENS}
MODELS = {
  "unrolled": T5(dataclasses.replace(CONFIG, remat="full")),
  "scanned": T5(dataclasses.replace(CONFIG, scan_layers=True, remat="dots")),
}


def created(model, optimizer, axes, devices=None, seed=3):
  mesh = parallel.make_mesh(axes, devices)
  spec = state_spec(model, optimizer, BATCH, mesh)
  return create_state(model, optimizer, BATCH, seed, spec), spec


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_the_values_are_those_of_one_program_on_any_mesh(name):
  optimizer = optimizers.adafactor(0.01, ema_decay=0.9, min_dim_size_to_factor=8)
  expected = jax.jit(lambda: initial_state(MODELS[name], optimizer, BATCH, 3))()
  for axes, devices in (
    (parallel.MeshAxes(), jax.devices()[:1]),
    (parallel.MeshAxes(data=2, fsdp=2, tensor=2), None),
  ):
    state, spec = created(MODELS[name], optimizer, axes, devices)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    jax.tree.map(lambda x, e, s: _check_sharding(x, e, s), state, expected, spec.shardings)


def _check_sharding(array, expected, sharding):
  assert array.dtype == expected.dtype and array.sharding.is_equivalent_to(sharding, array.ndim)


def test_identical_layers_share_programs_but_not_values(caplog):
  """A model of 3 layers compiles no more programs than one of 1 layer, and its second run none."""
  optimizer = optimizers.adamw(0.01)

  def programs(layers):
    config = dataclasses.replace(CONFIG, num_encoder_layers=0, num_decoder_layers=layers, vocab_size=67 + layers)
    caplog.clear()
    with jax.log_compiles():
      state, _ = created(GPT(config), optimizer, parallel.MeshAxes())
    return sum("compilation of jit(initialize_piece)" in line for line in caplog.messages), state.params

  initialization._program.cache_clear()
  few, _ = programs(1)
  initialization._program.cache_clear()
  count, params = programs(3)
  assert 0 < count <= few
  again, same = programs(3)
  assert again == 0
  jax.tree.map(np.testing.assert_array_equal, same, params)
  kernels = [params["decoder"][f"layers_{i}"]["mlp"]["wi"]["kernel"] for i in range(3)]
  assert not np.array_equal(kernels[0], kernels[1]) and not np.array_equal(kernels[1], kernels[2])
  assert np.std(kernels) == pytest.approx(16**-0.5, rel=0.05)  # fan in: 16
