"""The train step with the TPU's fused attentions, lowered for a pod from a CPU."""

import dataclasses

import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.kernels.attention import compile_for
from t5like.models import GPT, T5, TransformerConfig
from t5like.training import optimizers
from t5like.training.state import state_spec
from t5like.training.step import LossSettings, train_step

FEATURES = ("input_tokens", "segment_ids", "positions", "target_tokens", "loss_weights")


def lowered(model, lengths: dict[str, int]) -> str:
  """Lowers the step of packed rows for 256 devices: 128 shards of the rows, 2 of the heads."""
  optimizer = optimizers.adafactor(1e-3)
  batch = {
    f"{side}_{name}": jax.ShapeDtypeStruct((512, length), np.float32 if name == "loss_weights" else np.int32)
    for side, length in lengths.items()
    for name in FEATURES
    if side == "decoder" or name not in ("target_tokens", "loss_weights")
  }
  mesh = parallel.abstract_mesh(parallel.MeshAxes(data=8, fsdp=16, tensor=2), 256)
  with compile_for("tpu"), parallel.sharding_context(mesh):
    spec = state_spec(model, optimizer, batch, mesh)
    step = jax.jit(
      lambda state, batch: train_step(model, optimizer, LossSettings(), state, batch),
      in_shardings=(spec.shardings, parallel.batch_sharding(mesh)),
      out_shardings=(spec.shardings, parallel.replicated(mesh)),
      donate_argnums=0,
    )
    text = step.trace(spec.shapes, batch).lower(lowering_platforms=("tpu",)).as_text()
  assert "mhlo.num_partitions = 256" in text
  return text


def kernel_calls(text: str) -> list[str]:
  return [line for line in text.splitlines() if "tpu_custom_call" in line]


def test_t5_lowers_for_256_tpus_with_rows_and_heads_sharded():
  """Widths of T5 1.1 base: each device's kernels see 4 of 512 rows and 6 of 12 heads."""
  config = TransformerConfig(
    vocab_size=32128, embed_dim=768, mlp_dim=2048, num_heads=12, head_dim=64, num_encoder_layers=1,
    num_decoder_layers=1, activation="gelu", gated_mlp=True, tie_embeddings=False, compute_dtype="bfloat16",
  )  # fmt: skip
  text = lowered(T5(config), {"encoder": 512, "decoder": 128})
  calls = kernel_calls(text)
  # Three kinds of attention, each with one forward and two backward kernels; those with a bias are ours.
  assert len(calls) == 9 and all("tensor<4x6x" in call and "tensor<512x12x" not in call for call in calls)
  assert sum("t5like_attention" in call for call in calls) == 6 and sum("splash" in call for call in calls) == 3


def test_gpt2_lowers_for_256_tpus_with_splash_attention():
  """Widths of GPT-2 medium: 8 of 16 heads per device."""
  config = TransformerConfig(
    vocab_size=50304, embed_dim=1024, mlp_dim=4096, num_heads=16, num_decoder_layers=1, activation="gelu",
    norm="layer", use_bias=True, scale_attention=True, positions="learned", max_positions=1024,
    compute_dtype="bfloat16", scale_logits=False,
  )  # fmt: skip
  calls = kernel_calls(lowered(GPT(config), {"decoder": 1024}))
  assert len(calls) == 3 and all("tensor<4x8x1024x64xbf16>" in call for call in calls)
  assert all(any(f"splash_mha_{part}" in call for call in calls) for part in ("fwd", "dq", "dkv"))


@pytest.mark.slow
def test_llama_and_bloom_lower_for_256_tpus():
  """Widths of Llama 3 8B, with Mistral's window: 16 of 32 heads and 4 of 8 heads of keys per device."""
  llama = TransformerConfig(
    vocab_size=32000, embed_dim=4096, mlp_dim=14336, num_heads=32, num_kv_heads=8, num_decoder_layers=1,
    activation="silu", gated_mlp=True, scale_attention=True, positions="rotary", attention_window=512,
    compute_dtype="bfloat16", scale_logits=False,
  )  # fmt: skip
  calls = kernel_calls(lowered(GPT(llama), {"decoder": 1024}))
  assert len(calls) == 3 and all("splash" in call and "tensor<4x4x1024x128xbf16>" in call for call in calls)
  alibi = dataclasses.replace(llama, positions="alibi", attention_window=None)
  calls = kernel_calls(lowered(GPT(alibi), {"decoder": 1024}))
  assert len(calls) == 3 and all("t5like_attention" in call and "tensor<4x4x1024x128xbf16>" in call for call in calls)
