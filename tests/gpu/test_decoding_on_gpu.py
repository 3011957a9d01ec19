"""Greedy and beam search with fused kernels on a GPU, against plain products in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like import parallel
from t5like.decoding import DecodeSettings
from t5like.inference.generation import Generator
from t5like.models import GPT, T5, TransformerConfig

SIZE = dict(vocab_size=512, embed_dim=128, mlp_dim=256, num_heads=2, head_dim=64)
MODELS = {
  "T5": (T5, dict(num_encoder_layers=2, num_decoder_layers=2)),
  "GPT": (GPT, dict(num_decoder_layers=2, positions="learned", max_positions=128, norm="layer", use_bias=True)),
}


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("beams", [1, 4])
def test_decoding_equals_plain_products(family, scan, beams):
  make, fields = MODELS[family]
  rng = np.random.default_rng(0)
  side = "encoder" if family == "T5" else "decoder"
  prompts = {f"{side}_input_tokens": rng.integers(2, 512, (6, 40)).astype(np.int32)}
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  settings = DecodeSettings(max_length=24, **({"method": "beam", "beams": beams} if beams > 1 else {}))
  results = {}
  for backend in ("xla", "auto"):
    model = make(TransformerConfig(**SIZE, **fields, scan_layers=scan, attention_backend=backend))
    token = jnp.ones((1, 1), jnp.int32)
    batch = {f"{s}_input_tokens": token for s in (("encoder", "decoder") if family == "T5" else ("decoder",))}
    params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
    params = jax.tree.map(lambda x: 3.0 * x, params)  # confident predictions: no ties
    with jax.default_matmul_precision("highest"):
      results[backend] = Generator(model, mesh, eos_id=1)(params, prompts, settings)
  np.testing.assert_array_equal(results["auto"].tokens, results["xla"].tokens)
  np.testing.assert_allclose(results["auto"].scores, results["xla"].scores, rtol=1e-3, atol=1e-3)
