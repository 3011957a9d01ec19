"""Presets shard what they should, and replicated parameters are reported. Results: test_compiled_graphs.py."""

import flax.linen as nn
import gin
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tiny_runs import LENGTH, MESHES, MODELS, OPTIMIZER, ROWS, batch_for

from t5like import configuration, parallel
from t5like.errors import UserError
from t5like.experiments.reading import register_configurables
from t5like.parallel.presets import COLUMNS, TABLE
from t5like.training import optimizers
from t5like.training.optimizers import schedules
from t5like.training.state import state_spec
from t5like.training.step import LossSettings, train_step


def spec_of(name, preset, optimizer=OPTIMIZER, **sizes):
  axes = parallel.MeshAxes(**(sizes or MESHES[preset]), preset=preset)
  mesh = parallel.make_mesh(axes)
  with parallel.use_preset(preset):
    return state_spec(MODELS[name], optimizer, batch_for(name), mesh), mesh


@pytest.mark.parametrize(
  ("preset", "kernel", "embedding"),
  [
    ("data_parallel", P(None, None), P(None, None)),
    ("fsdp", P("fsdp", None), P(None, "fsdp")),
    ("tensor", P(None, "tensor"), P("tensor", None)),
    ("fsdp_tensor", P("fsdp", "tensor"), P("tensor", "fsdp")),
    ("sequence", P("fsdp", "tensor"), P("tensor", "fsdp")),
  ],
)
def test_parameters_and_moments_are_sharded_as_in_the_table(preset, kernel, embedding):
  spec, _ = spec_of("t5", preset, optimizers.adamw(schedules.constant_rate(0.01)))
  params = spec.shardings.params
  assert params["encoder"]["layers_0"]["mlp"]["wi"]["kernel"].spec == kernel
  assert params["token_embedder"]["embedding"].spec == embedding
  leaves = jax.tree.leaves_with_path(spec.shardings.opt_state)
  moments = [s.spec for path, s in leaves if jax.tree_util.keystr(path).endswith("['mlp']['wi']['kernel']")]
  assert moments == 4 * [kernel]  # two moments in two layers


def constraints(preset):
  """Returns the sharding constraints of the train step, for [batch, length, embed] activations and for all arrays."""
  spec, mesh = spec_of("t5", preset)
  batch = batch_for("t5")
  step = jax.jit(lambda state, batch: train_step(MODELS["t5"], OPTIMIZER, LossSettings(), state, batch))
  with parallel.use_preset(preset), parallel.sharding_context(mesh):
    text = step.lower(spec.shapes, batch).as_text()
  lines = [line for line in text.splitlines() if "sdy.sharding_constraint" in line]
  return [line for line in lines if f"tensor<{ROWS}x{LENGTH}x32xf32>" in line], lines


@pytest.mark.slow
def test_sequence_shards_activations_by_position_between_heads_and_mlps():
  residual, every = constraints("sequence")
  unsharded = [line for line in residual if '[{"data", "fsdp"}, {"tensor"}, {}]' not in line]
  # Not sharded by length, forward and backward, are only the embeddings of encoder and decoder and the input of the
  # logits, the decoder's last hidden states.
  assert len(unsharded) == 2 * 3 and len(residual) > 2 * len(unsharded)
  heads = [line for line in every if f"tensor<{ROWS}x{LENGTH}x4x12xf32>" in line]
  assert heads and all('[{"data", "fsdp"}, {}, {"tensor"}, {}]' in line for line in heads)
  residual, _ = constraints("fsdp_tensor")
  assert residual and all('[{"data", "fsdp"}, {}, {}]' in line for line in residual)


def test_the_table_has_one_rule_for_every_logical_axis():
  assert sorted(row[0] for row in TABLE) == sorted(
    ("batch", "length", "embed", "mlp", "heads", "kv", "vocab", "layers")
  )
  assert list(parallel.PRESETS) == list(COLUMNS) and all(len(row) == len(COLUMNS) + 1 for row in TABLE)


def test_a_preset_ends_with_its_context():
  with parallel.use_preset("sequence"):
    assert parallel.active_rules() == parallel.PRESETS["sequence"]
  assert parallel.active_rules() == parallel.LOGICAL_AXIS_RULES == parallel.PRESETS["fsdp_tensor"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", ["t5_1_1/base", "bert/base", "bert/tiny", "gpt2/small"])
def test_98_percent_of_our_models_are_sharded(model):
  register_configurables()
  files = [f"models/{model}.gin", "objectives/causal_lm.gin", "runs/pretrain.gin"]
  configuration.load(files, [("MODEL_DIR", "unused"), ("TASK", "unused")])
  built = configuration.build("train").model
  gin.clear_config()
  names = ("encoder_input_tokens", "encoder_segment_ids", "decoder_input_tokens", "decoder_segment_ids")
  batch = {name: np.zeros((1, 8), np.int32) for name in names}
  boxed = jax.eval_shape(built.init, jax.random.key(0), batch)["params"]
  for preset in ("fsdp", "tensor", "fsdp_tensor", "sequence"):
    mesh = parallel.make_mesh(parallel.MeshAxes(**MESHES[preset], preset=preset))
    with parallel.use_preset(preset):
      shardings = parallel.parameter_shardings(boxed, mesh)
    parallel.check_sharded(nn.meta.unbox(boxed), shardings, mesh, preset)


def kernels(**shapes):
  return {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}


def test_replicated_parameters_are_listed_largest_first():
  mesh = parallel.make_mesh(parallel.MeshAxes(data=1, fsdp=8))
  params = kernels(split=(96, 100), scale=(100,), bias=(120,), table=(10, 18))
  shardings = {name: jax.NamedSharding(mesh, P("fsdp") if name == "split" else P()) for name in params}
  with pytest.raises(UserError) as error:
    parallel.check_sharded(params, shardings, mesh, "fsdp")
  message = str(error.value)
  # 100 + 120 + 180 of 10,000 is 4%.
  assert "4.0% of the parameters (400 of 10,000)" in message and "fsdp=8" in message
  positions = [message.index(name) for name in ("table  (10, 18)  180 (1.8%)", "bias", "scale")]
  assert positions == sorted(positions) and "split  (" not in message
  # 2% exactly is allowed: 200 of 10,000.
  params = kernels(split=(98, 100), table=(10, 20))
  parallel.check_sharded(params, {k: shardings[k] for k in params}, mesh, "fsdp")
  params = kernels(split=(98, 100), table=(3, 67))
  with pytest.raises(UserError, match="2.0% of the parameters"):
    parallel.check_sharded(params, {k: shardings[k] for k in params}, mesh, "fsdp")


def test_a_preset_on_a_mesh_without_its_axis_is_rejected_with_a_suggestion():
  spec, mesh = spec_of("t5", "fsdp", data=8)
  with pytest.raises(UserError, match="100.0% of the parameters") as error:
    parallel.check_sharded(spec.shapes.params, spec.shardings.params, mesh, "fsdp")
  assert "MESH.data=1 MESH.fsdp=-1 MESH.tensor=1" in str(error.value)


def test_nothing_has_to_be_sharded_on_one_device_or_with_data_parallelism():
  for preset, devices in ((None, 8), ("data_parallel", 8), ("fsdp", 1), (None, 1)):
    mesh = parallel.make_mesh(parallel.MeshAxes(preset=preset), jax.devices()[:devices])
    params = kernels(kernel=(8, 8))
    parallel.check_sharded(params, {"kernel": jax.NamedSharding(mesh, P())}, mesh, preset)


def test_an_unknown_preset_is_rejected_with_the_nearest_name():
  with pytest.raises(UserError, match="unknown sharding preset") as error:
    parallel.MeshAxes(preset="sequense")
  assert "nearest  sequence" in str(error.value)


def test_an_unused_axis_is_rejected():
  with pytest.raises(UserError, match="does not use the 'tensor' axis of size 2") as error:
    parallel.make_mesh(parallel.MeshAxes(fsdp=4, tensor=2, preset="fsdp"))
  assert "one of tensor, fsdp_tensor, sequence" in str(error.value)
