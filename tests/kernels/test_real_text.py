"""200 training steps on real text in bfloat16, with each back end that runs on CPUs, compared with float32.

cuDNN is tested in tests/gpu/test_attention_on_gpu.py.
"""

import functools

import pytest
from real_text_training import NOISE, difference, losses

from t5like.kernels import attention
from t5like.kernels.attention import splash as splash_attention
from t5like.kernels.tpu import attention as tpu_attention

_expected = functools.cache(losses)


@pytest.mark.slow
def test_xla_attention():
  expected = _expected("LM")
  assert expected[0] > 4.5 and expected[-10:].mean() < 3.0, "the model learns"
  assert difference(losses("LM", compute_dtype="bfloat16"), expected) < NOISE


@pytest.mark.slow(reason="interpreting kernels for 200 steps takes minutes")
@pytest.mark.parametrize(
  "family, backend", [("T5", "xla"), ("GPT", "xla"), ("T5", "pallas_tpu"), ("GPT", "pallas_tpu"), ("GPT", "splash_tpu")]
)
def test_every_back_end(family, backend, monkeypatch):
  kernels = {"pallas_tpu": tpu_attention.tpu_attention, "splash_tpu": splash_attention.splash_attention}
  for name, kernel in kernels.items():
    monkeypatch.setitem(attention._KERNELS, name, lambda kernel=kernel: functools.partial(kernel, interpret=True))
  expected = _expected(family)
  with attention.compile_for("cpu" if backend == "xla" else "tpu"):
    got = losses(family, compute_dtype="bfloat16", attention_backend=backend)
  assert difference(got, expected) < NOISE
