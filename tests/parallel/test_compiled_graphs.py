"""Compiled programs of each preset: same losses as one device, no needless communication, donated state."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tiny_runs import LENGTH, MESHES, MODELS, ONE_DEVICE, ROWS, axes_of, compiled_step, compiler_warnings, losses

from t5like import parallel
from t5like.training.state import parameter_count

# The mesh axes over which a preset may gather parameters: fsdp gathers the weights of each layer when it runs. Over
# `tensor`, only activations are communicated; without either, nothing is gathered.
GATHERED_OVER = {
  "data_parallel": set(),
  "fsdp": {"fsdp"},
  "tensor": set(),
  "fsdp_tensor": {"fsdp"},
  "sequence": {"fsdp"},
}
# T5 has an encoder and a decoder; the other models are tested with fsdp_tensor. `tensor` is half of fsdp_tensor.
SLOW = pytest.mark.slow(reason="one program each; T5 covers the presets, the other models fsdp_tensor")
EVERY = [
  pytest.param(name, preset, marks=[] if (name == "t5" and preset != "tensor") or preset == "fsdp_tensor" else [SLOW])
  for name in MODELS
  for preset in MESHES
]
INVOLUNTARY = "Involuntary full rematerialization"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_the_losses_equal_those_of_one_device(name, preset):
  expected = losses(name, parallel.MeshAxes(), ONE_DEVICE)
  assert expected[-1] < expected[0] - 0.05  # the model learns, so that updates are tested too
  np.testing.assert_allclose(losses(name, axes_of(preset)), expected, rtol=0, atol=1e-5)


SLOW_MICROBATCHES = pytest.mark.slow(reason="fourteen more programs; the default preset without dropout is enough")


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "preset"),
  [
    pytest.param(name, preset, marks=[] if preset == "fsdp_tensor" and name != "t5" else [SLOW_MICROBATCHES])
    for name in MODELS
    for preset in MESHES
  ],
)
def test_microbatches_have_the_losses_of_one_device(name, preset):
  # T5 has dropout, which depends on the microbatch; the others have none and must also match the full batch.
  microbatches = 2 if name == "t5" else 1
  expected = losses(name, parallel.MeshAxes(), ONE_DEVICE, microbatches=microbatches)
  np.testing.assert_allclose(losses(name, axes_of(preset), microbatches=2), expected, rtol=0, atol=1e-5)
  run = compiled_step(name, axes_of(preset), microbatches=2)
  assert INVOLUNTARY not in run.warnings and not parameters_gathered(run, preset)
  assert not rows_moved(run)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_parameters_are_gathered_only_as_the_preset_allows(name, preset):
  run = compiled_step(name, axes_of(preset))
  assert not parameters_gathered(run, preset)
  assert ("all-gather" in run.step.as_text()) == (preset != "data_parallel")


@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_no_activation_is_replicated_involuntarily(name, preset):
  assert INVOLUNTARY not in compiled_step(name, axes_of(preset)).warnings


@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_all_memory_of_the_donated_state_is_reused(name, preset):
  run = compiled_step(name, axes_of(preset))
  leaves = jax.tree.leaves(run.spec.shapes)
  shards = [s.shard_shape(x.shape) for x, s in zip(leaves, jax.tree.leaves(run.spec.shardings), strict=True)]
  header = run.step.as_text().splitlines()[0]
  assert len(re.findall(r"\{\d+\}: \(\d+, \{\}, m\w+-alias\)", header)) == len(leaves)
  assert run.step.memory_analysis().alias_size_in_bytes == sum(4 * int(np.prod(shape)) for shape in shards)
  if preset == "fsdp":  # each device has a quarter of the state
    assert run.step.memory_analysis().alias_size_in_bytes < 4 * parameter_count(run.spec.shapes.params) * 0.3


def gathers(run) -> list[tuple[int, ...]]:
  """Returns the shapes of all-gather results, without axes of length 1."""
  shapes = []
  for line in run.step.as_text().splitlines():
    found = re.match(r"\s*(?:ROOT )?%?\S+ = (.*?) all-gather(?:-start)?\(", line)
    for dims in re.findall(r"\w+\[([\d,]*)\]", found[1] if found else ""):
      shapes.append(tuple(int(d) for d in dims.split(",") if d not in ("", "1")))
  return shapes


def parameters_gathered(run, preset) -> set[tuple[int, ...]]:
  """Returns the full shapes of matrices that are gathered although the preset keeps them sharded."""

  def expected(sharding: NamedSharding) -> bool:
    axes = {axis for axis in sharding.spec if axis is not None and run.mesh.shape[axis] > 1}
    return bool(axes) and axes <= GATHERED_OVER[preset]

  params = zip(jax.tree.leaves(run.spec.shapes.params), jax.tree.leaves(run.spec.shardings.params), strict=True)
  sharded = {tuple(sorted(leaf.shape)) for leaf, sharding in params if leaf.ndim == 2 and not expected(sharding)}
  return {shape for shape in gathers(run) if tuple(sorted(shape)) in sharded}


def rows_moved(run) -> list[str]:
  """Returns collectives on tokens of a batch, the only integer arrays with the length of rows."""
  ops = "all-gather|all-to-all|collective-permute|all-reduce"
  token_rows = rf"s32\[(\d+,)*{LENGTH}\]"
  return [line for line in run.step.as_text().splitlines() if re.search(rf"= \(?{token_rows}.*? (?:{ops})", line)]


def test_the_warning_can_be_captured():
  """A lookup in a table sharded by width with a result sharded by rows, which the models avoid."""
  mesh = parallel.make_mesh(axes_of("fsdp"))
  rows = NamedSharding(mesh, P(("data", "fsdp")))

  def gradient(table, ids):
    look_up = lambda t: jnp.sum(jax.lax.with_sharding_constraint(jnp.take(t, ids, axis=0), rows) ** 2)  # noqa: E731
    return jax.grad(look_up)(table)

  by_width = NamedSharding(mesh, P(None, "fsdp"))
  step = jax.jit(gradient, in_shardings=(by_width, rows), out_shardings=by_width)
  with compiler_warnings() as warnings:
    step.lower(jax.ShapeDtypeStruct((112, 32), np.float32), jax.ShapeDtypeStruct((ROWS, LENGTH), np.int32)).compile()
  if INVOLUNTARY not in warnings[0] and jax.__version_info__ >= (0, 11):
    pytest.skip("this compiler avoids the rematerialization")
  assert INVOLUNTARY in warnings[0]
