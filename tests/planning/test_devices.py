"""Peaks of devices against data sheets and JAX's table; FLOPs per token against measured speeds."""

import jax
import pytest

from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.planning import train_step_flops
from t5like.planning.devices import device_spec, peak_flops


# Names reported by drivers and JAX; dense bfloat16 TFLOP/s and memory in GB from the data sheets.
@pytest.mark.parametrize(
  "kind, teraflops, gigabytes",
  [
    ("NVIDIA H200", 989.4, 141),
    ("NVIDIA H100 80GB HBM3", 989.4, 80),
    ("NVIDIA H100 PCIe", 756, 80),
    ("NVIDIA A100-SXM4-40GB", 312, 40),
    ("NVIDIA A100-SXM4-80GB", 312, 80),
    ("NVIDIA A100 80GB PCIe", 312, 80),
    ("A100-SXM4-40GB", 312, 40),
    ("NVIDIA L4", 121, 24),
    ("NVIDIA L40S", 362, 48),
    ("Tesla V100-SXM2-16GB", 125, 16),
    ("Tesla T4", 65, 16),
    ("NVIDIA B200", 2250, 180),
    ("TPU v4", 275, 34.4),
    ("TPU v5 lite", 197, 17.2),
    ("TPU v5e", 197, 17.2),
    ("TPU v5", 459, 102),
    ("TPU v5p", 459, 102),
    ("TPU v6 lite", 918, 34.4),
    ("TPU v3", 123 / 2, 34.4 / 2),
    ("TPU7x", 2307 / 2, 206 / 2),
  ],
)
def test_peaks_of_one_device(kind, teraflops, gigabytes):
  assert peak_flops(kind) == pytest.approx(teraflops * 1e12, rel=1e-3)
  assert device_spec(kind).memory == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_unknown_devices_have_no_peak():
  assert peak_flops(jax.devices("cpu")[0].device_kind) is None
  for kind in ("", "NVIDIA H9000", "TPU v99", "NVIDIA GeForce RTX 4090 Laptop GPU"):
    assert peak_flops(kind) is None


@pytest.mark.parametrize("kind", ["TPU v2", "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e", "TPU7x"])
def test_tpus_agree_with_jaxs_own_table(kind):
  table = pytest.importorskip("jax._src.pallas.mosaic.tpu_info")
  if not hasattr(table, "_get_tpu_info_impl"):
    pytest.skip("this JAX keeps its table elsewhere")
  version = table.chip_version_from_device_kind(kind)
  cores = 2 if version.supports_megacore else 1  # per device; the table is per core
  info = table._get_tpu_info_impl(version, cores)
  assert peak_flops(kind) == pytest.approx(info.bf16_ops_per_second * cores, rel=0.03)
  assert device_spec(kind).memory == pytest.approx(info.hbm_capacity_bytes * cores, rel=0.08)


SIZES = {
  "T5-1.1 base": dict(vocab_size=32128, embed_dim=768, mlp_dim=2048, num_heads=12, num_encoder_layers=12,
                      num_decoder_layers=12, gated_mlp=True, tie_embeddings=False),
  "T5-1.1 large": dict(vocab_size=32128, embed_dim=1024, mlp_dim=2816, num_heads=16, num_encoder_layers=24,
                       num_decoder_layers=24, gated_mlp=True, tie_embeddings=False),
  "GPT-2 medium": dict(vocab_size=50257, embed_dim=1024, mlp_dim=4096, num_heads=16, num_decoder_layers=24),
  "BERT large": dict(vocab_size=30522, embed_dim=1024, mlp_dim=4096, num_heads=16, num_encoder_layers=24,
                     mlm_head=True, pooler=True, nsp_head=True),
}  # fmt: skip


# Tokens per second and TFLOP/s, measured together on an H200 and rounded to three digits.
def model_of(name, **changes):
  return {"T5": T5, "GP": GPT, "BE": BERT}[name[:2]](TransformerConfig(**SIZES[name] | changes))


@pytest.mark.parametrize(
  "name, rows, encoder_length, decoder_length, tokens_per_second, teraflops",
  [
    ("T5-1.1 base", 128, 512, 114, 551_000, 375),
    ("T5-1.1 large", 64, 512, 114, 171_000, 401),
    ("GPT-2 medium", 32, 0, 1024, 177_000, 429),
    ("BERT large", 64, 512, 0, 190_400, 411),
  ],
)
def test_flops_per_token(name, rows, encoder_length, decoder_length, tokens_per_second, teraflops):
  flops = train_step_flops(model_of(name), rows, encoder_length, decoder_length)
  per_token = flops / (rows * (encoder_length + decoder_length))
  assert per_token == pytest.approx(teraflops * 1e12 / tokens_per_second, rel=0.003)


def test_gpt_2_medium_by_hand():
  # 24 layers: 4 products of 1024 x 1024 and 2 of 1024 x 4096 per token, scores and mixing over 1,024 positions.
  layer = 2 * (4 * 1024 * 1024 + 2 * 1024 * 4096) + 2 * 2 * 1024 * 1024
  per_token = 3 * (24 * layer + 2 * 1024 * 50257)
  assert train_step_flops(model_of("GPT-2 medium"), 32, 0, 1024) == 32 * 1024 * per_token


def test_berts_heads_by_hand():
  with_heads = model_of("BERT large")
  without = model_of("BERT large", mlm_head=False, pooler=False, nsp_head=False)
  # The transform and the output at 512 positions; the pooler and two classes once per row.
  per_row = 512 * 2 * 1024 * (1024 + 30522) + 2 * 1024 * 1024 + 2 * 1024 * 2
  difference = train_step_flops(with_heads, 64, 512, 0) - train_step_flops(without, 64, 512, 0)
  assert difference == 3 * 64 * per_row
