"""The whole train step with the TPU's own attention, lowered for a pod that is not here."""

import jax
import numpy as np

from t5like import parallel
from t5like.kernels.attention import compile_for
from t5like.models import T5, TransformerConfig
from t5like.training import optimizers
from t5like.training.state import state_spec
from t5like.training.step import LossSettings, train_step


def test_train_step_lowers_for_256_tpus_with_rows_and_heads_split():
  """T5 1.1 base's widths, packed rows: each device's kernels see 4 of 512 rows and 6 of 12 heads."""
  config = TransformerConfig(
    vocab_size=32128, embed_dim=768, mlp_dim=2048, num_heads=12, head_dim=64, num_encoder_layers=1,
    num_decoder_layers=1, activation="gelu", gated_mlp=True, tie_embeddings=False, compute_dtype="bfloat16",
  )  # fmt: skip
  model, optimizer = T5(config), optimizers.adafactor(1e-3)
  lengths = {"encoder": 512, "decoder": 128}
  batch = {
    f"{side}_{name}": jax.ShapeDtypeStruct((512, length), np.float32 if name == "loss_weights" else np.int32)
    for side, length in lengths.items()
    for name in ("input_tokens", "segment_ids", "positions", "target_tokens", "loss_weights")
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
  # Three kinds of attention, each with a forward kernel and two backward ones.
  assert text.count("tpu_custom_call") >= 9
  assert all(f"t5like_attention_{part}" in text for part in ("forward", "query_gradient", "key_gradient"))
  calls = [line for line in text.splitlines() if "tpu_custom_call" in line]
  assert calls and all("tensor<4x6x" in line and "tensor<512x12x" not in line for line in calls)
