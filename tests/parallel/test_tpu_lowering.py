"""The train step of the largest model, lowered for TPU pods from a CPU."""

import math

import jax
import numpy as np
import pytest

from t5like import configuration, parallel
from t5like.experiments.reading import register_configurables
from t5like.models.config import TransformerConfig
from t5like.models.t5 import T5
from t5like.training import optimizers
from t5like.training.optimizers import schedules
from t5like.training.state import parameter_count, state_spec
from t5like.training.step import LossSettings, train_step

PRESETS = ["fsdp_tensor", "sequence"]
LOOKUPS = 2  # embedding lookup, forward and backward


def shapes_of_a_batch(rows, inputs=512, targets=114):
  lengths = {
    "encoder_input_tokens": inputs, "decoder_input_tokens": targets, "decoder_target_tokens": targets,
    "decoder_loss_weights": targets,
  }  # fmt: skip
  dtype = lambda name: np.float32 if "weights" in name else np.int32  # noqa: E731
  return {name: jax.ShapeDtypeStruct((rows, length), dtype(name)) for name, length in lengths.items()}


def trace_step(model, optimizer, batch, mesh, preset):
  """Traces the train step as in the training loop: donated state, shardings of inputs and outputs."""
  with parallel.use_preset(preset), parallel.sharding_context(mesh):
    spec = state_spec(model, optimizer, batch, mesh)
    parallel.check_sharded(spec.shapes.params, spec.shardings.params, mesh, preset)
    step = jax.jit(
      lambda state, batch: train_step(model, optimizer, LossSettings(), state, batch),
      in_shardings=(spec.shardings, parallel.batch_sharding(mesh)),
      out_shardings=(spec.shardings, parallel.replicated(mesh)),
      donate_argnums=0,
    )
    return spec, step.trace(spec.shapes, batch)


@pytest.fixture(scope="module")
def xxl():
  register_configurables()
  files = ["models/t5_1_1/xxl.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"]
  configuration.load(files, [("MODEL_DIR", "unused"), ("REMAT", "full")])
  yield configuration.build("train")
  import gin

  gin.clear_config()


@pytest.mark.parametrize("preset", PRESETS)
def test_t5_1_1_xxl_lowers_for_512_tpus(xxl, preset):
  mesh = parallel.abstract_mesh(parallel.MeshAxes(data=-1, fsdp=16, tensor=4, preset=preset), 512)
  spec, traced = trace_step(xxl.model, xxl.optimizer, shapes_of_a_batch(2048), mesh, preset)
  assert parameter_count(spec.shapes.params) == 11_135_332_352
  # Each device has a 64th of every kernel: 11.1 G parameters of 4 bytes are 0.65 GiB on each.
  leaves = zip(jax.tree.leaves(spec.shapes.params), jax.tree.leaves(spec.shardings.params), strict=True)
  local = sum(math.prod(sharding.shard_shape(leaf.shape)) for leaf, sharding in leaves)
  assert local == pytest.approx(11_135_332_352 / 64, rel=0.01)

  text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert "mhlo.num_partitions = 512" in text and '["data"=8, "fsdp"=16, "tensor"=4]' in text
  assert text.count("tf.aliasing_output") == len(jax.tree.leaves(spec.shapes))  # all of the state is donated
  # Activations [batch, length, embed]; concatenated heads have the same shape, but are sharded by their last axis.
  activations = [line for line in text.splitlines() if "sdy.sharding_constraint" in line and "2048x512x4096x" in line]
  residuals = [line for line in activations if '{"tensor"}]' not in line]
  by_position = [line for line in residuals if '[{"data", "fsdp"}, {"tensor"}, {}]' in line]
  # Looked-up embeddings are not sharded by position until they are summed; the table would be gathered otherwise.
  assert len(by_position) == (len(residuals) - LOOKUPS if preset == "sequence" else 0) and len(residuals) > LOOKUPS


def test_a_small_model_compiles_for_a_named_topology():
  pytest.importorskip("libtpu", reason="libtpu, the TPU compiler, is not installed")
  from jax.experimental import topologies

  devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
  mesh = parallel.make_mesh(parallel.MeshAxes(data=2, fsdp=2, tensor=2), devices)
  config = TransformerConfig(
    vocab_size=256, embed_dim=128, mlp_dim=256, num_heads=4, num_encoder_layers=1, num_decoder_layers=1
  )
  optimizer = optimizers.adafactor(schedules.inverse_square_root())
  _, traced = trace_step(T5(config), optimizer, shapes_of_a_batch(8, 128, 128), mesh, "fsdp_tensor")
  assert traced.lower().compile().memory_analysis() is not None
