"""What is compiled for each preset: the losses of one device, no needless traffic, the old state's memory reused."""

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

# The mesh axes over which a preset may gather parameters: each layer's own weights when it is their turn, which is
# what fsdp is. Over `tensor`, activations travel and weights never do; without either, nothing is gathered at all.
GATHERED_OVER = {
  "data_parallel": set(),
  "fsdp": {"fsdp"},
  "tensor": set(),
  "fsdp_tensor": {"fsdp"},
  "sequence": {"fsdp"},
}
# T5 has an encoder and a decoder; what the others have besides is split over both axes by one preset.
SLOW = pytest.mark.slow(reason="a program each; T5 has every preset, the others that of both axes")
EVERY = [
  pytest.param(name, preset, marks=[] if name == "t5" or preset == "fsdp_tensor" else [SLOW])
  for name in MODELS
  for preset in MESHES
]
INVOLUNTARY = "Involuntary full rematerialization"


@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_the_losses_are_those_of_one_device(name, preset):
  expected = losses(name, parallel.MeshAxes(), ONE_DEVICE)
  assert expected[-1] < expected[0] - 0.05  # something is learned, so that updates matter too
  np.testing.assert_allclose(losses(name, axes_of(preset)), expected, rtol=0, atol=1e-5)


SLOW_PARTS = pytest.mark.slow(reason="another fourteen programs; the default preset stands for them, and no dropout")


@pytest.mark.parametrize(
  ("name", "preset"),
  [
    pytest.param(name, preset, marks=[] if preset == "fsdp_tensor" and name != "t5" else [SLOW_PARTS])
    for name in MODELS
    for preset in MESHES
  ],
)
def test_microbatches_have_the_losses_of_one_device(name, preset):
  # T5 has dropout, and microbatches draw their own; the others have none and must agree with the whole batch too.
  parts = 2 if name == "t5" else 1
  expected = losses(name, parallel.MeshAxes(), ONE_DEVICE, microbatches=parts)
  np.testing.assert_allclose(losses(name, axes_of(preset), microbatches=2), expected, rtol=0, atol=1e-5)
  run = compiled_step(name, axes_of(preset), microbatches=2)
  assert INVOLUNTARY not in run.said and not parameters_gathered(run, preset)
  assert not rows_moved(run)


@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_no_parameter_is_gathered_but_as_the_preset_says(name, preset):
  run = compiled_step(name, axes_of(preset))
  assert not parameters_gathered(run, preset)
  assert ("all-gather" in run.step.as_text()) == (preset != "data_parallel")


@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_no_activation_is_made_whole_for_want_of_a_way(name, preset):
  assert INVOLUNTARY not in compiled_step(name, axes_of(preset)).said


@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_all_of_the_old_state_is_reused(name, preset):
  run = compiled_step(name, axes_of(preset))
  leaves = jax.tree.leaves(run.spec.shapes)
  shards = [s.shard_shape(x.shape) for x, s in zip(leaves, jax.tree.leaves(run.spec.shardings), strict=True)]
  header = run.step.as_text().splitlines()[0]
  assert len(re.findall(r"\{\d+\}: \(\d+, \{\}, m\w+-alias\)", header)) == len(leaves)
  assert run.step.memory_analysis().alias_size_in_bytes == sum(4 * int(np.prod(shape)) for shape in shards)
  if preset == "fsdp":  # and the state is a quarter on each device
    assert run.step.memory_analysis().alias_size_in_bytes < 4 * parameter_count(run.spec.shapes.params) * 0.3


def gathers(run) -> list[tuple[int, ...]]:
  """Shapes of the results of all-gathers, axes of length 1 left out."""
  shapes = []
  for line in run.step.as_text().splitlines():
    found = re.match(r"\s*(?:ROOT )?%?\S+ = (.*?) all-gather(?:-start)?\(", line)
    for dims in re.findall(r"\w+\[([\d,]*)\]", found[1] if found else ""):
      shapes.append(tuple(int(d) for d in dims.split(",") if d not in ("", "1")))
  return shapes


def parameters_gathered(run, preset) -> set[tuple[int, ...]]:
  """Full shapes of matrices that come out of a gather although the preset keeps them split."""

  def expected(sharding: NamedSharding) -> bool:
    axes = {axis for axis in sharding.spec if axis is not None and run.mesh.shape[axis] > 1}
    return bool(axes) and axes <= GATHERED_OVER[preset]

  params = zip(jax.tree.leaves(run.spec.shapes.params), jax.tree.leaves(run.spec.shardings.params), strict=True)
  kept = {tuple(sorted(leaf.shape)) for leaf, sharding in params if leaf.ndim == 2 and not expected(sharding)}
  return {shape for shape in gathers(run) if tuple(sorted(shape)) in kept}


def rows_moved(run) -> list[str]:
  """Operations between devices on tokens of a batch, which are the only integers that are as long as rows."""
  ops = "all-gather|all-to-all|collective-permute|all-reduce"
  whole_rows = rf"s32\[(\d+,)*{LENGTH}\]"
  return [line for line in run.step.as_text().splitlines() if re.search(rf"= \(?{whole_rows}.*? (?:{ops})", line)]


def test_the_warning_would_be_seen():
  """Rows looked up in a table that is split by width, then held to be split by row: what the models avoid."""
  mesh = parallel.make_mesh(axes_of("fsdp"))
  rows = NamedSharding(mesh, P(("data", "fsdp")))

  def gradient(table, ids):
    look_up = lambda t: jnp.sum(jax.lax.with_sharding_constraint(jnp.take(t, ids, axis=0), rows) ** 2)  # noqa: E731
    return jax.grad(look_up)(table)

  by_width = NamedSharding(mesh, P(None, "fsdp"))
  step = jax.jit(gradient, in_shardings=(by_width, rows), out_shardings=by_width)
  with compiler_warnings() as said:
    step.lower(jax.ShapeDtypeStruct((112, 32), np.float32), jax.ShapeDtypeStruct((ROWS, LENGTH), np.int32)).compile()
  if INVOLUNTARY not in said[0] and jax.__version_info__ >= (0, 11):
    pytest.skip("this compiler finds a way")
  assert INVOLUNTARY in said[0]
