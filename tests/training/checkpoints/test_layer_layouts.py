"""SCAN_LAYERS may change between a checkpoint and the run that goes on from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_states import FINGERPRINT, bits, make_state, parameters, save

from t5like import parallel
from t5like.errors import UserError
from t5like.models import T5, TransformerConfig
from t5like.training import optimizers
from t5like.training.checkpoints import Checkpoints, check_restorable, find_episode, restore_state
from t5like.training.state import create_state, state_spec
from t5like.training.step import LossSettings, compile_train_step

SIZES = dict(vocab_size=256, embed_dim=128, mlp_dim=192, num_heads=2, head_dim=64, gated_mlp=True, dropout_rate=0.0)
BATCH = {
  "encoder_input_tokens": np.arange(2, 66, dtype=np.int32).reshape(8, 8),
  "decoder_input_tokens": np.arange(100, 132, dtype=np.int32).reshape(8, 4),
  "decoder_target_tokens": np.arange(101, 133, dtype=np.int32).reshape(8, 4),
  "decoder_loss_weights": np.ones((8, 4), np.float32),
}


def stacked(params):
  layers = params["encoder"].values()
  return params | {"encoder": {"layers": jax.tree.map(lambda *x: np.stack(x), *layers)}}


@pytest.mark.parametrize("axes", [{}, dict(fsdp=4, tensor=2)], ids=["replicated", "sharded"])
def test_layers_are_stacked_and_separated_exactly(tmp_path, axes):
  separate, stack = parameters(layers=4), stacked(parameters(layers=4))
  for name, old, new in (("stack", separate, stack), ("separate", stack, separate)):
    state, _ = make_state(old, step=4)
    save(tmp_path / name, state)
    _, spec = make_state(new, axes=axes)
    # The random moments of `state` are other numbers than those of `new`: compare them with their own conversion.
    taken = restore_state(tmp_path / name / "checkpoints/4", spec, FINGERPRINT | {"scan_layers": name == "stack"})
    assert bits(taken.params) == bits(new) and int(taken.step) == 4
    moments, expected = taken.opt_state[0].mu, state.opt_state[0].mu
    assert bits(moments) == bits(stacked(expected) if name == "stack" else moments)
    if name == "separate":
      assert bits(stacked(moments)) == bits(expected)
    assert jax.tree.map(lambda x: x.sharding, taken) == spec.shardings


@pytest.mark.parametrize("saved, wanted", [(3, 2), (2, 3)])
def test_another_number_of_layers_is_another_model(tmp_path, saved, wanted):
  for name, old, new in (
    ("stack", parameters(layers=saved), stacked(parameters(layers=wanted))),
    ("separate", stacked(parameters(layers=saved)), parameters(layers=wanted)),
  ):
    save(tmp_path / name, make_state(old)[0])
    with pytest.raises(UserError, match="another model") as error:
      check_restorable(tmp_path / name / "checkpoints/1", make_state(new)[1], FINGERPRINT)
    assert "encoder/layers" in error.value.render()


MODELS = {
  scan: T5(TransformerConfig(**SIZES, num_encoder_layers=2, num_decoder_layers=3, scan_layers=scan))
  for scan in (False, True)
}


def specs_of(optimizer, mesh):
  return {scan: state_spec(model, optimizer, BATCH, mesh) for scan, model in MODELS.items()}


def test_training_goes_on_as_without_the_change(tmp_path):
  mesh, optimizer = parallel.make_mesh(parallel.MeshAxes(fsdp=2), jax.devices()[:2]), optimizers.adafactor(0.01)
  specs, batch = specs_of(optimizer, mesh), parallel.to_global_arrays(BATCH, mesh)
  steps = {s: compile_train_step(MODELS[s], optimizer, LossSettings(), specs[s], BATCH, mesh) for s in MODELS}
  for scan in MODELS:
    state, _ = steps[scan](create_state(MODELS[scan], optimizer, BATCH, 0, specs[scan]), batch)
    folder = tmp_path / str(scan)
    checkpoints = Checkpoints(folder, 1)
    checkpoints.save(state, FINGERPRINT)
    checkpoints.close()
    taken = restore_state(folder / "checkpoints/1", specs[not scan], FINGERPRINT)
    for _ in range(2):
      state, same = steps[scan](state, batch)
      taken, other = steps[not scan](taken, batch)
      for name in ("loss", "gradient_norm", "parameter_norm"):
        assert float(same[name]) == pytest.approx(float(other[name]), rel=1e-5)


@pytest.mark.parametrize("method", ["adafactor", "adamw", "adamw_scaled", "lamb", "lion", "muon"])
def test_the_states_of_all_optimizers_convert(tmp_path, method):
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  specs = specs_of(getattr(optimizers, method)(0.01), mesh)
  for scan, spec in specs.items():
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), spec.shapes)
    save(tmp_path / str(scan), state)
    checkpoint = tmp_path / str(scan) / "checkpoints/0"
    check_restorable(checkpoint, specs[not scan], FINGERPRINT)
    assert find_episode(checkpoint, [make_state()[1], specs[not scan]]) == 1
