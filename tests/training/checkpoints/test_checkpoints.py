"""Checkpoints are restored bit for bit onto any mesh, retained by policy, and can be read during a run."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_states import AVERAGED, FINGERPRINT, bits, make_state, parameters, save

from t5like.errors import UserError
from t5like.training.checkpoints import (
  CheckpointRetention,
  Checkpoints,
  check_disk_space,
  checkpoint_bytes,
  checkpoint_steps,
  find_checkpoint,
  integrity,
  load_parameters,
  restore_state,
  save_parameters,
)
from t5like.training.checkpoints.folders import checkpoint_metrics
from t5like.training.optimizers.moving_average import averaged_parameters


def steps_in(folder):
  return sorted(int(p.name) for p in (folder / "checkpoints").iterdir())


def at_step(state, step):
  return state.replace(step=jnp.int32(step))


def test_a_state_is_restored_bit_for_bit_onto_another_mesh(tmp_path):
  state, _ = make_state(step=7, axes=dict(data=8))
  save(tmp_path, state)
  _, spec = make_state(parameters(seed=1), axes=dict(data=2, fsdp=2, tensor=2))
  restored = restore_state(find_checkpoint(tmp_path), spec, FINGERPRINT)
  assert int(restored.step) == 7
  assert bits(restored) == bits(state)
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  assert all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding == s, restored, spec.shardings)))


def test_parameters_load_without_a_mesh(tmp_path):
  state, _ = make_state(step=3, axes=dict(fsdp=4, tensor=2))
  save(tmp_path, state)
  params = load_parameters(tmp_path)
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
  assert params["scale"].dtype == jnp.bfloat16
  assert bits(params) == bits(load_parameters(tmp_path / "checkpoints/3")) == bits(state.params)


def test_parameters_alone_can_be_saved(tmp_path):
  path = save_parameters(tmp_path, parameters(), step=5, fingerprint=FINGERPRINT)
  assert path == tmp_path / "checkpoints/5" and integrity.find_damage(path) is None
  assert bits(load_parameters(tmp_path, fingerprint=FINGERPRINT)) == bits(parameters())
  with pytest.raises(UserError, match="another model or vocabulary"):
    load_parameters(tmp_path, fingerprint={"embed_dim": 17})


def test_the_moving_average_loads_without_the_optimizer(tmp_path):
  state, _ = make_state(optimizer=AVERAGED)
  save(tmp_path, state)
  average = load_parameters(tmp_path, average=True)
  assert bits(average) == bits(averaged_parameters(state.opt_state, state.params)) != bits(state.params)
  assert average["scale"].dtype == jnp.bfloat16

  save(tmp_path / "without", make_state()[0])
  with pytest.raises(UserError, match="no moving average"):
    load_parameters(tmp_path / "without", average=True)


@pytest.mark.parametrize("name", ["\u00b2", "\u0663", "007", "+7", "1_0", "notes", "-1"])
def test_folders_that_only_look_like_steps_are_not_checkpoints(tmp_path, name):
  save(tmp_path, make_state(parameters(), 3)[0])
  (tmp_path / "checkpoints" / name).mkdir()
  assert checkpoint_steps(tmp_path) == [3]
  Checkpoints(tmp_path).close()  # clears leftovers of killed saves
  assert checkpoint_steps(tmp_path) == [3] and (tmp_path / "checkpoints" / name).is_dir()


def test_a_step_is_saved_once(tmp_path):
  state, _ = make_state(step=2)
  checkpoints = Checkpoints(tmp_path)
  assert checkpoints.save(state, FINGERPRINT) is True
  assert checkpoints.save(state, FINGERPRINT) is False
  checkpoints.close()
  assert checkpoint_steps(tmp_path) == [2]


def test_a_failing_run_still_completes_its_save(tmp_path):
  with pytest.raises(ZeroDivisionError), Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(make_state(step=2)[0], FINGERPRINT)
    raise ZeroDivisionError
  assert steps_in(tmp_path) == [2] and integrity.has_checksums(tmp_path / "checkpoints/2")


@pytest.mark.slow
def test_checkpoints_are_retained_by_policy_also_after_a_restart(tmp_path):
  """Checks the remaining steps after each save, worked out by hand, for last=1 every=4 best=1."""
  state, _ = make_state()
  retention = CheckpointRetention(last=1, every=4, best=1, metric="eval/snli/accuracy")
  scores = {1: 0.5, 2: 0.9, 3: 0.7, 4: float("nan"), 5: 0.6, 6: None, 7: 0.95, 8: 0.1, 9: 0.2}
  left = {1: [1], 2: [2], 3: [2, 3], 4: [2, 4], 5: [2, 4, 5], 6: [2, 4, 6], 7: [4, 7], 8: [4, 7, 8], 9: [4, 7, 8, 9]}
  for step, score in scores.items():
    checkpoints = Checkpoints(tmp_path, retention)  # all state is on disk
    metrics = {"eval/snli/loss": 1.0} if score is None else {"eval/snli/accuracy": score}
    checkpoints.save(at_step(state, step), FINGERPRINT, metrics)
    checkpoints.close()
    assert steps_in(tmp_path) == left[step], step
  assert retention.best_steps(checkpoint_metrics(tmp_path)) == [7]
  assert checkpoint_metrics(tmp_path)[8] == {"eval/snli/accuracy": 0.1}


def test_a_checkpoint_removed_by_someone_else_is_not_an_error(tmp_path):
  state, _ = make_state()
  with Checkpoints(tmp_path, retention=1) as checkpoints:
    checkpoints.save(at_step(state, 1), FINGERPRINT)
    checkpoints.wait()
    shutil.rmtree(tmp_path / "checkpoints/1")
    checkpoints.save(at_step(state, 2), FINGERPRINT)
  assert steps_in(tmp_path) == [2]


def test_the_best_may_be_the_lowest_and_ties_go_to_the_earlier():
  retention = CheckpointRetention(last=1, best=2, metric="loss", higher_is_better=False)
  metrics = {1: {"loss": 2.0}, 2: {"loss": 1.0}, 3: {"loss": 2.0}, 4: {}, 5: {"loss": float("-inf")}}
  assert retention.best_steps(metrics) == [2, 1]
  assert retention.steps_to_keep(metrics) == {1, 2, 5}


@pytest.mark.parametrize("given", [dict(last=0), dict(every=-1), dict(best=2), dict(best=0, metric="loss")])
def test_invalid_policies_are_refused(given):
  with pytest.raises(UserError):
    CheckpointRetention(**given)


def test_a_misspelled_metric_gets_the_nearest_as_a_suggestion():
  retention = CheckpointRetention(best=1, metric="eval/snli/acuracy")
  with pytest.raises(UserError, match="eval/snli/accuracy"):
    retention.check_metric(["eval/snli/accuracy", "eval/mnli/accuracy"])
  CheckpointRetention(best=1, metric="loss").check_metric(["loss"])


def test_missing_checkpoints_are_named(tmp_path):
  with pytest.raises(UserError, match="no checkpoint found"):
    find_checkpoint(tmp_path)
  save(tmp_path, make_state(step=4)[0])
  with pytest.raises(UserError, match="no checkpoint of step 9") as error:
    find_checkpoint(tmp_path, 9)
  assert "known   4" in str(error.value)


def test_a_reader_whose_checkpoint_is_removed_reads_the_newest(tmp_path, monkeypatch):
  state, _ = make_state(step=1)
  save(tmp_path, state)
  newer = at_step(state, 2).replace(params=parameters(seed=9))
  real = integrity.verify_checksums

  def removed_meanwhile(checkpoint, items):
    if checkpoint.name == "1":
      save(tmp_path, newer, retention=1)
    return real(checkpoint, items)

  monkeypatch.setattr(integrity, "verify_checksums", removed_meanwhile)
  assert bits(load_parameters(tmp_path)) == bits(newer.params)
  with pytest.raises(UserError, match="no checkpoint of step 1"):
    load_parameters(tmp_path, step=1)


def test_a_full_disk_is_refused(tmp_path, monkeypatch):
  state, _ = make_state()
  # Each parameter and two moments in its dtype; step, seed and Adam's count, 4 bytes each.
  matrices = 4 * (2 * (16 * 32 + 32) + 64 * 16)
  assert checkpoint_bytes(state) == 3 * (matrices + 2 * 16) + 3 * 4
  free = shutil.disk_usage(tmp_path).free
  check_disk_space(tmp_path / "new/folder", free // 2)
  with pytest.raises(UserError, match="not enough disk space") as error:
    check_disk_space(tmp_path / "new/folder", 10 * free)
  assert set(error.value.lines) >= {"free", "needed"}
