"""Predicted step times and memory against what was measured on an H200."""

import pytest
from train_steps import AS_BERT, AS_GPT_2, AS_T5_1_1, Step, gpt

from t5like.models import BERT, GPT, T5
from t5like.models.config import TransformerConfig
from t5like.planning import StateBytes, estimate_memory
from t5like.planning.devices import device_spec
from t5like.planning.operations import Operation, Share, layer_operations, optimizer_operations
from t5like.planning.step_time import REACHED, step_time

H200 = device_spec("NVIDIA H200")
LARGE = dict(embed_dim=1024, mlp_dim=4096, num_heads=16, compute_dtype="bfloat16")
T5_BASE = TransformerConfig(
  vocab_size=32128, embed_dim=768, mlp_dim=2048, num_heads=12, num_encoder_layers=12, num_decoder_layers=12,
  compute_dtype="bfloat16", **AS_T5_1_1,
)  # fmt: skip
T5_LARGE = TransformerConfig(
  vocab_size=32128, num_encoder_layers=24, num_decoder_layers=24, **{**LARGE, "mlp_dim": 2816}, **AS_T5_1_1
)
GPT_2_MEDIUM = TransformerConfig(vocab_size=50257, num_decoder_layers=24, **LARGE, **AS_GPT_2)
BERT_LARGE = TransformerConfig(vocab_size=30522, num_encoder_layers=24, nsp_head=True, **LARGE, **AS_BERT)

# `t5like bench train` with Adafactor on one H200 (jax 0.10, cuDNN attention), in milliseconds. Parameters: the
# published counts; variables: nine an encoder layer and fourteen a decoder layer of T5, sixteen of the others.
MEASURED = {
  "T5 1.1 base": (T5(T5_BASE), 128, (512, 114), 247_577_856, 12 * 23 + 6, 151.2),
  "T5 1.1 large": (T5(T5_LARGE), 64, (512, 114), 783_150_080, 24 * 23 + 6, 272.0),
  "GPT-2 medium": (GPT(GPT_2_MEDIUM), 32, (0, 1024), 354_823_168, 24 * 16 + 4, 170.6),
  "BERT large": (BERT(BERT_LARGE, predicted_share=0.16), 64, (512, 0), 335_141_888, 24 * 16 + 14, 145.4),
}


@pytest.mark.parametrize("name", MEASURED)
def test_steps_on_an_h200(name):
  model, rows, lengths, parameters, variables, milliseconds = MEASURED[name]
  operations = [*layer_operations(model, Share(rows, *lengths)), *optimizer_operations(4 * parameters, 0, variables)]
  predicted = step_time(operations, [], H200, "gpu", float32=False)
  assert 1e3 * predicted.seconds == pytest.approx(milliseconds, rel=0.2)
  assert predicted.bound == "products"
  assert sum(predicted.spent.values()) == pytest.approx(predicted.seconds)
  assert sum(predicted.by_part.values()) == pytest.approx(predicted.seconds)


def test_memory_of_gpt_2_medium_on_an_h200():
  # The compiled step took 44.0 GiB, cuDNN's attention writing no scores, when layers still kept the tanh of a gelu.
  tanh = 24 * 32 * 1024 * 4096 * 2
  state = StateBytes(4 * 354_823_168, 1 << 20, 2 * 354_823_168, 0, 388)
  batch = Step(gpt(1), rows=32).batch()
  batch = {name: x.repeat(8, axis=1) for name, x in batch.items()}  # 1,024 tokens a row
  mesh = {"data": 1, "fsdp": 1, "tensor": 1}
  planned = estimate_memory(GPT(GPT_2_MEDIUM), batch, state, mesh, platform="gpu")
  assert planned.total + tanh == pytest.approx(44.0 * 2**30, rel=0.05)
  # By hand, a layer and token: stream, norm, query, key, value, attention, stream, norm: 8 x 1,024; what goes into the
  # MLP's activation and comes out of it: 2 x 4,096. All in bfloat16.
  layers = 24 * 32 * 1024 * 2 * (8 * 1024 + 2 * 4096)
  assert planned.activations == pytest.approx(layers, rel=0.02)
  on_a_cpu = estimate_memory(GPT(GPT_2_MEDIUM), batch, state, mesh, platform="cpu")
  # Plain attention keeps the softmax in float32 and its result in bfloat16; a CPU puts off the gradients of weights.
  scores, put_off = 24 * 32 * 16 * 1024 * 1024 * (4 + 2), tanh
  assert on_a_cpu.activations - planned.activations == pytest.approx(scores + put_off, rel=0.05)


def test_a_roofline_by_hand():
  reached = REACHED["gpu"]
  product = Operation("a", "product", flops=1e12, bytes=1e6, inner=1_000_000)
  traffic = Operation("b", "memory", flops=0, bytes=4.8e9)
  time = step_time([product, traffic], [], H200, "gpu", float32=False)
  by_hand = 1e12 / (989.4e12 * reached.product * (1_000_000 / 1_000_256)) + 1e-3 / reached.bandwidth
  assert time.seconds == pytest.approx(by_hand + 2 * reached.launch, rel=1e-6)
  assert step_time([product], [], H200, "gpu", float32=True).seconds > 1.9 * time.by_part["a"]
  # A product of the same work with a short inner axis is slower, one of little work is bound by memory.
  short = Operation("a", "product", flops=1e12, bytes=1e6, inner=64)
  assert step_time([short], [], H200, "gpu", False).seconds > 4 * time.by_part["a"]
  thin = Operation("a", "product", flops=1e9, bytes=4.8e9, inner=4096)
  assert step_time([thin], [], H200, "gpu", False).bound == "memory traffic"
