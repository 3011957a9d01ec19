"""DeBERTa's scores of positions: the rows of distances, and the shift instead of gathers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels.attention import AttentionSpec, choose_backend
from t5like.kernels.attention.disentangled import Disentangled, disentangled_scores, table_rows


def test_rows_of_distances_by_hand():
  """Near distances have a row each, far ones share rows, as in the published versions 1 (512) and 3 (256 buckets)."""
  assert table_rows(np.array([-600, -512, -1, 0, 7, 511, 600]), 512, 512).tolist() == [0, 0, 511, 512, 519, 1023, 1023]
  # 256 + 128 + ceil(log(d / 128) / log(511 / 128) * 127)
  distances, expected = [0, 1, -1, 127, 128, 129, 256, -256, 510, 511, 700], []
  for d in distances:
    size = abs(d) if abs(d) <= 128 else 128 + int(np.ceil(np.log(abs(d) / 128) / np.log(511 / 128) * 127 - 1e-9))
    expected.append(min(256 + int(np.sign(d)) * size, 511))
  assert table_rows(np.array(distances), 256, 512).tolist() == expected
  assert table_rows(np.array([511]), 256, 512) == [511]  # 256 + 255: the last row


@pytest.mark.parametrize("buckets, max_distance, length", [(4, 9, 7), (6, 6, 9), (3, 3, 1)])
def test_scores_are_those_of_a_gather(buckets, max_distance, length):
  rng = np.random.default_rng(0)
  query, key = (jnp.asarray(rng.normal(size=(2, length, 3, 4)), jnp.float32) for _ in range(2))
  tables = [jnp.asarray(rng.normal(size=(2 * buckets, 3, 4)), jnp.float32) for _ in range(2)]
  table = Disentangled(*tables, max_distance)
  rows = table_rows(np.arange(length)[:, None] - np.arange(length)[None], buckets, max_distance)  # [query, key]
  expected = np.einsum("bqhd,qkhd->bhqk", query, table.key[rows]) + np.einsum("bkhd,qkhd->bhqk", key, table.query[rows])
  np.testing.assert_allclose(disentangled_scores(query, key, table), expected, atol=1e-5)
  text = str(jax.make_jaxpr(jax.grad(lambda q: disentangled_scores(q, key, table).sum()))(query))
  assert "gather" not in text and "scatter" not in text


def test_no_fused_kernel_is_used_and_the_reason_is_given():
  spec = AttentionSpec("bfloat16", 64, 512, 512, positions="disentangled")
  for platform in ("gpu", "tpu"):
    name, reason = choose_backend("auto", spec, platform)
    assert name == "xla" and "disentangled positions" in reason
