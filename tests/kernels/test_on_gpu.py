"""Fused attention of GPUs, cuDNN's and ours, against plain products on a GPU.

The suite runs without one. Where there is one:  pytest --noconftest tests/kernels/test_on_gpu.py
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # --noconftest: pytest then adds no folder by itself

from attention_cases import CASES, inputs, relative_error, value_and_gradients
from real_text_training import NOISE, difference, losses

from t5like.kernels.cudnn_attention import cudnn_attention
from t5like.kernels.gpu_attention import gpu_attention
from t5like.kernels.xla_attention import xla_attention

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs an NVIDIA GPU")

# bfloat16 has 8 bits: rounding alone puts results 2 to 4 thousandths from those of float32.
TOLERANCE = 0.012


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("kernel", [cudnn_attention, gpu_attention], ids=lambda kernel: kernel.__name__)
def test_values_and_gradients_equal_plain_products(name, width, kernel):
  given = inputs(name, jnp.bfloat16, width=width)
  got = value_and_gradients(kernel, *given)
  exact = [x.astype(jnp.float32) for x in given[:4]]
  with jax.default_matmul_precision("highest"):
    expected = value_and_gradients(xla_attention, *exact, *given[4:])
  errors = {key: relative_error(got[key], expected[key]) for key in expected}
  print(kernel.__name__, name, width, {key: f"{error:.4f}" for key, error in errors.items()})
  assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("family, backend", [("T5", "pallas_gpu"), ("T5", "cudnn"), ("GPT", "cudnn")])
def test_200_steps_on_real_text_equal_float32(family, backend):
  with jax.default_matmul_precision("highest"):
    expected = losses(family, head_dim=64, attention_backend="xla")
  got = losses(family, head_dim=64, compute_dtype="bfloat16", attention_backend=backend)
  print(family, backend, f"{difference(got, expected):.4f}")
  assert difference(got, expected) < NOISE
