"""Checkpoints come back whole, onto any mesh, and never into another model."""

import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.data.layouts import Examples, encoder_decoder
from t5like.errors import UserError
from t5like.models.config import TransformerConfig
from t5like.models.t5 import T5
from t5like.objectives import Lengths
from t5like.training import optimizers, schedules
from t5like.training.checkpoints import Checkpoints, find_checkpoint, load_parameters, save_parameters
from t5like.training.state import create_state, state_spec

MODEL = T5(TransformerConfig(64, 16, 32, 2, num_encoder_layers=1, num_decoder_layers=1))
ROWS = Examples.from_padded(np.ones((8, 6), np.int32), np.ones((8, 4), np.int32))
BATCH = encoder_decoder(ROWS, Lengths(0, 6, 4))
FINGERPRINT = {"embed_dim": 16, "vocabulary": "abc"}


def make(axes=None, seed=0):
  optimizer = optimizers.adamw(schedules.constant_rate())
  spec = state_spec(MODEL, optimizer, BATCH, parallel.make_mesh(parallel.MeshAxes(**(axes or {}))))
  return create_state(MODEL, optimizer, BATCH, seed, spec), spec


def same(a, b):
  return all(jax.tree.leaves(jax.tree.map(lambda x, y: np.array_equal(np.asarray(x), np.asarray(y)), a, b)))


def save(folder, state, step):
  checkpoints = Checkpoints(folder)
  checkpoints.save(state.replace(step=jax.numpy.int32(step)), FINGERPRINT)
  checkpoints.close()


def test_a_state_is_restored_onto_another_mesh(tmp_path):
  state, _ = make(dict(data=8))
  save(tmp_path, state, 7)
  _, spec = make(dict(data=2, fsdp=2, tensor=2), seed=1)
  checkpoints = Checkpoints(tmp_path)
  restored = checkpoints.restore(spec, FINGERPRINT)
  checkpoints.close()
  assert int(restored.step) == 7
  assert same(restored.params, state.params) and same(restored.opt_state, state.opt_state)
  leaf, sharding = jax.tree.leaves(restored.params)[0], jax.tree.leaves(spec.shardings.params)[0]
  assert leaf.sharding == sharding


def test_parameters_load_without_a_mesh(tmp_path):
  state, _ = make()
  save(tmp_path, state, 3)
  params = load_parameters(tmp_path)
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
  assert same(params, state.params)
  assert same(load_parameters(tmp_path / "checkpoints/3"), state.params)


def test_parameters_alone_can_be_saved(tmp_path):
  state, _ = make()
  save_parameters(tmp_path, state.params, step=5, fingerprint=FINGERPRINT)
  assert same(load_parameters(tmp_path, fingerprint=FINGERPRINT), state.params)


def test_another_model_or_vocabulary_is_refused_with_the_difference(tmp_path):
  state, spec = make()
  save(tmp_path, state, 1)
  checkpoints = Checkpoints(tmp_path)
  with pytest.raises(UserError, match="another model or vocabulary") as error:
    checkpoints.restore(spec, {**FINGERPRINT, "vocabulary": "xyz"})
  checkpoints.close()
  assert "saved 'abc', now 'xyz'" in str(error.value) and "embed_dim" not in str(error.value)


def test_only_the_last_few_are_kept(tmp_path):
  state, _ = make()
  checkpoints = Checkpoints(tmp_path, keep=2)
  for step in (1, 2, 3):
    checkpoints.save(state.replace(step=jax.numpy.int32(step)), FINGERPRINT)
  checkpoints.close()
  assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()) == ["2", "3"]


def test_missing_and_damaged_checkpoints_are_named(tmp_path):
  with pytest.raises(UserError, match="no checkpoint here"):
    find_checkpoint(tmp_path)
  state, _ = make()
  save(tmp_path, state, 4)
  with pytest.raises(UserError, match="no checkpoint of step 9") as error:
    find_checkpoint(tmp_path, 9)
  assert "known   4" in str(error.value)
  for path in (tmp_path / "checkpoints/4/params").rglob("*"):
    if path.is_file() and path.parent.name == "d":
      path.write_bytes(path.read_bytes()[:10])
  with pytest.raises(UserError, match="cannot be read") as error:
    load_parameters(tmp_path)
  assert str(tmp_path / "checkpoints/4") in str(error.value)
