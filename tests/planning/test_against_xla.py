"""Planned memory and FLOPs against XLA's analysis of the compiled train step, on fake CPU devices.

In float32, as CPUs widen bfloat16 products, unlike accelerators. State within 10%, activations within 25%, FLOPs
within 2%.
"""

import pytest
from train_steps import AS_T5_1_1, Step, bert, gpt, t5

from t5like.planning import train_step_flops
from t5like.planning.operations import DeviceShare, layer_operations


def check(step: Step) -> None:
  compiled, state, planned = step.compiled_and_planned()
  analysis = compiled.memory_analysis()
  # Arguments are the state and this device's rows of the batch.
  batch = sum(x.nbytes for x in step.batch().values()) / (step.mesh[0] * step.mesh[1])
  assert state.parameters + state.optimizer == pytest.approx(analysis.argument_size_in_bytes - batch, rel=0.1)
  assert planned.peak == pytest.approx(analysis.temp_size_in_bytes, rel=0.25)
  config, (data, fsdp, tensor) = step.model.config, step.mesh
  if config.scan_layers or config.remat != "none":
    return  # XLA counts the body of a loop once
  flops = train_step_flops(step.model, step.rows, **step.lengths)
  if tensor == 1:
    assert flops / (data * fsdp) == pytest.approx(compiled.cost_analysis()["flops"], rel=0.02)


@pytest.mark.slow
def test_gpt_unrolled_on_one_device():
  check(Step(gpt(2), rows=16))


def test_gpt_scanned_and_rematerialized_over_fsdp_and_tensor():
  check(Step(gpt(4, scan_layers=True, remat="dots"), rows=32, mesh=(1, 4, 2), optimizer="adamw"))


@pytest.mark.slow
def test_xla_does_not_recompute_the_last_product_of_a_layer():
  step = Step(gpt(2, remat="full"), rows=8)
  planned = sum(o.count * o.flops for o in layer_operations(step.model, DeviceShare(8, **step.lengths, platform="cpu")))
  assert step.compiled_and_planned()[0].cost_analysis()["flops"] == pytest.approx(planned, rel=0.02)


SLOW = {
  "t5 unrolled": Step(t5(3), rows=16),
  "t5 1.1 unrolled, tensor": Step(t5(3, **AS_T5_1_1), rows=32, mesh=(2, 1, 4)),
  "t5 1.1 scanned, full, by position": Step(
    t5(3, **AS_T5_1_1, scan_layers=True, remat="full"), rows=32, mesh=(1, 2, 4), preset="sequence"
  ),
  "t5 scanned, dropout": Step(t5(3, scan_layers=True, dropout_rate=0.1), rows=16),
  "t5 scanned, full, data and fsdp": Step(t5(4, scan_layers=True, remat="full"), rows=32, mesh=(2, 4, 1)),
  "gpt scanned, elementwise": Step(gpt(4, scan_layers=True, remat="elementwise"), rows=32, mesh=(2, 1, 1)),
  "gpt unrolled, data": Step(gpt(4), rows=64, mesh=(8, 1, 1)),
  "gpt scanned, microbatches": Step(gpt(3, scan_layers=True), rows=64, mesh=(2, 1, 1), microbatches=4),
  "bert scanned, all axes": Step(bert(4, scan_layers=True), rows=32, mesh=(2, 2, 2), optimizer="adamw"),
  "bert unrolled, fsdp": Step(bert(3), rows=64, mesh=(1, 8, 1), optimizer="adamw"),
}


@pytest.mark.slow  # ten seconds of compilation each
@pytest.mark.parametrize("name", SLOW)
def test_more_models_meshes_and_policies(name):
  check(SLOW[name])
