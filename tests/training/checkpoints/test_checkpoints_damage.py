"""A damaged checkpoint is detected, named and set aside, and the run resumes from the previous one."""

import functools
import json
import os
import shutil

import jax.numpy as jnp
import pytest
from checkpoint_states import FINGERPRINT, bits, make_state, save
from checkpoint_states import parameters as any_parameters

from t5like.errors import UserError
from t5like.training.checkpoints import Checkpoints, checkpoint_steps, load_parameters, newest_intact, restore_state
from t5like.training.checkpoints.integrity import CHECKSUMS, find_damage, write_checksums

# Large enough for data files; smaller arrays are stored in the index.
parameters = functools.partial(any_parameters, width=256)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
  """Checkpoints of steps 1 and 2; tests work on copies."""
  folder = tmp_path_factory.mktemp("run")
  save(folder, make_state(parameters(seed=1), 1)[0], make_state(parameters(seed=2), 2)[0])
  return folder


@pytest.fixture
def run(two, tmp_path):
  shutil.copytree(two / "checkpoints", tmp_path / "checkpoints")
  return tmp_path


def largest(folder):
  """Returns the file with the arrays."""
  return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def cut(path, missing):
  os.truncate(path, path.stat().st_size - missing)


def halve(path):
  os.truncate(path, path.stat().st_size // 2)


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


# Damage to checkpoint 2, and its description.
DAMAGES = {
  "cut short": (lambda c: cut(largest(c / "params"), 100), "is 100 bytes short"),
  "grown": (lambda c: largest(c / "params").open("ab").write(b"12345"), "is 5 bytes too long"),
  "a bit of a parameter": (lambda c: flip(largest(c / "params")), "does not match its checksum"),
  "a bit of the optimizer": (lambda c: flip(largest(c / "training")), "does not match its checksum"),
  "list of arrays emptied": (lambda c: os.truncate(c / "params/_METADATA", 0), "params/_METADATA is"),
  "list of arrays removed": (lambda c: (c / "training/_METADATA").unlink(), "training/_METADATA is missing"),
  "manifest removed": (lambda c: (c / "params/manifest.ocdbt").unlink(), "params/manifest.ocdbt is missing"),
  "list of items removed": (lambda c: (c / "_CHECKPOINT_METADATA").unlink(), "_CHECKPOINT_METADATA is missing"),
  "item removed": (lambda c: shutil.rmtree(c / "training"), "training/"),
  "description emptied": (lambda c: os.truncate(c / "metadata/metadata", 0), "metadata/metadata is"),
  "checksums emptied": (lambda c: os.truncate(c / CHECKSUMS, 0), "checksums.json cannot be read"),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DAMAGES)
def test_the_run_resumes_from_the_previous_checkpoint(run, name):
  damage, description = DAMAGES[name]
  damage(run / "checkpoints/2")
  newest = newest_intact(run)
  assert newest.step == 1 and newest.checkpoint == run / "checkpoints/1"
  (message,) = newest.messages
  assert message.startswith("checkpoint 2 is damaged (its ") and description in message
  assert message.endswith("moved to checkpoints/damaged-2, resuming from step 1")
  assert checkpoint_steps(run) == [1] and (run / "checkpoints/damaged-2").is_dir()


# Without checksums, as left by a run that is killed right after the commit: checked by reading.
READABLE_DAMAGES = {
  "cut short": lambda c: halve(largest(c / "params")),
  "optimizer cut short": lambda c: halve(largest(c / "training")),
  "arrays removed": lambda c: largest(c / "params").unlink(),
  "list of arrays emptied": lambda c: os.truncate(c / "params/_METADATA", 0),
  "list of arrays removed": lambda c: (c / "training/_METADATA").unlink(),
  "manifest emptied": lambda c: os.truncate(c / "params/manifest.ocdbt", 0),
  "manifest removed": lambda c: (c / "training/manifest.ocdbt").unlink(),
  "list of items emptied": lambda c: os.truncate(c / "_CHECKPOINT_METADATA", 0),
  "item removed": lambda c: shutil.rmtree(c / "training"),
  "description removed": lambda c: (c / "metadata/metadata").unlink(),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", READABLE_DAMAGES)
def test_damage_is_detected_without_checksums(run, name):
  (run / "checkpoints/2" / CHECKSUMS).unlink()
  assert newest_intact(run).step == 2  # usable without checksums
  READABLE_DAMAGES[name](run / "checkpoints/2")
  newest = newest_intact(run)
  assert newest.step == 1 and "checkpoint 2 is damaged (its " in newest.messages[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_implausible_values_are_damage_without_checksums(run, value):
  """A changed byte in an exponent: the arrays can be read, but no step from them is finite."""
  shutil.rmtree(run / "checkpoints/2")
  tree = parameters(seed=2)
  tree["embedding"][3, 5] = value
  save(run, make_state(tree, 2)[0])
  assert newest_intact(run).step == 2  # the checksums match
  (run / "checkpoints/2" / CHECKSUMS).unlink()
  newest = newest_intact(run)
  assert newest.step == 1 and "has values that are not finite, or above" in newest.messages[0]


@pytest.mark.parametrize("place", [0, 5 * 2**20, 9 * 2**20 - 1])
def test_a_bit_anywhere_in_a_large_file_is_damage(tmp_path, place):
  content = bytearray(9 * 2**20)  # more than two of the blocks in which it is read
  (tmp_path / "arrays").write_bytes(content)
  write_checksums(tmp_path)
  assert find_damage(tmp_path) is None
  content[place] ^= 1
  (tmp_path / "arrays").write_bytes(content)
  assert find_damage(tmp_path) == "its arrays does not match its checksum"


def test_a_damaged_step_can_be_saved_again(run):
  for expected in ("damaged-2", "damaged-2-2"):
    flip(largest(run / "checkpoints/2/params"))
    assert newest_intact(run).step == 1
    assert (run / "checkpoints" / expected).is_dir()
    state, spec = make_state(parameters(seed=3), 2)
    checkpoints = Checkpoints(run, retention=1)
    assert checkpoints.save(state, FINGERPRINT)
    checkpoints.close()
    assert bits(restore_state(run / "checkpoints/2", spec, FINGERPRINT)) == bits(state)
    save(run / "again", make_state(parameters(), step=1)[0])
    shutil.move(run / "again/checkpoints/1", run / "checkpoints/1")
    shutil.rmtree(run / "again")
  assert (run / "checkpoints/damaged-2").is_dir()  # retention does not remove it


def test_a_check_without_move_moves_nothing(run):
  flip(largest(run / "checkpoints/2/params"))
  newest = newest_intact(run, move=False)
  assert newest.step == 1 and newest.messages[0].endswith("): resuming from step 1")
  assert checkpoint_steps(run) == [1, 2]


def test_if_none_is_intact_nothing_is_moved_and_no_run_starts_over(run):
  for step in (1, 2):
    cut(largest(run / f"checkpoints/{step}/params"), 10)
  with pytest.raises(UserError, match="no checkpoint of this run is intact") as error:
    newest_intact(run)
  assert "step 1: its" in str(error.value) and "step 2: its" in str(error.value)
  assert checkpoint_steps(run) == [1, 2]
  assert newest_intact(run / "elsewhere").step is None


def test_reading_a_damaged_checkpoint_is_an_error_that_names_it(run):
  checkpoint = run / "checkpoints/2"
  flip(largest(checkpoint / "params"))
  _, spec = make_state(parameters())
  for read in (lambda: load_parameters(run), lambda: restore_state(checkpoint, spec, FINGERPRINT)):
    with pytest.raises(UserError, match="damaged") as error:
      read()
    assert str(checkpoint) in str(error.value) and "does not match its checksum" in str(error.value)
  (checkpoint / CHECKSUMS).unlink()
  halve(largest(checkpoint / "params"))
  for read in (lambda: load_parameters(run), lambda: restore_state(checkpoint, spec, FINGERPRINT)):
    with pytest.raises(UserError, match="damaged"):
      read()


def test_a_damaged_optimizer_state_does_not_affect_reading_parameters(run):
  flip(largest(run / "checkpoints/2/training"))
  assert bits(load_parameters(run)) == bits(parameters(seed=2))


def test_an_incomplete_list_of_arrays_is_an_error(run):
  """Without checksums, a valid but shorter list can only be detected by what is missing."""
  checkpoint = run / "checkpoints/2"
  (checkpoint / CHECKSUMS).unlink()
  listing = json.loads((checkpoint / "params/_METADATA").read_text())
  del listing["tree_metadata"]["('embedding',)"]
  (checkpoint / "params/_METADATA").write_text(json.dumps(listing))
  _, spec = make_state(parameters())
  with pytest.raises(UserError) as error:
    restore_state(checkpoint, spec, FINGERPRINT)
  assert error.value.lines["missing"] == "embedding  float32[64,256]"


def test_leftovers_of_killed_processes_are_not_checkpoints_and_are_cleared(run):
  folder = run / "checkpoints"
  for left in ("3.orbax-checkpoint-tmp", "3.orbax-checkpoint-tmp-1794", "removing-0"):
    shutil.copytree(folder / "2", folder / left)
  assert checkpoint_steps(run) == [1, 2] and newest_intact(run).step == 2
  checkpoints = Checkpoints(run)
  assert checkpoints.save(make_state(parameters(), step=3)[0].replace(step=jnp.int32(3)), FINGERPRINT)
  checkpoints.close()
  assert sorted(p.name for p in folder.iterdir()) == ["1", "2", "3"]
  assert find_damage(folder / "3") is None
