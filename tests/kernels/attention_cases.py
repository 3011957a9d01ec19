"""Test cases on which every attention back end must match XLA attention, and the distance of two results."""

import jax
import jax.numpy as jnp
import numpy as np

from t5like.kernels.attention import Mask, RelativeBias, mask_matrix

# name: (batch, query length, key length, has bias, mask as a function of a numpy generator)
CASES = {
  "bias": (3, 256, 256, True, lambda rng, b, q, k: Mask()),
  "no bias": (2, 256, 128, False, lambda rng, b, q, k: Mask()),
  "causal": (2, 256, 256, False, lambda rng, b, q, k: Mask(causal=True)),
  "bias, causal, odd length": (3, 115, 115, True, lambda rng, b, q, k: Mask(causal=True)),
  "bias, padded": (4, 200, 200, True, lambda rng, b, q, k: Mask(key_valid=_lengths(rng, b, k), right_padded=True)),
  "bias, holes": (4, 200, 200, True, lambda rng, b, q, k: Mask(key_valid=_holes(rng, b, k))),
  "cross, padded": (4, 115, 200, False, lambda rng, b, q, k: Mask(key_valid=_lengths(rng, b, k), right_padded=True)),
  "bias, packed": (3, 256, 256, True, lambda rng, b, q, k: _packed(q, k)),
  "bias, causal, packed": (3, 256, 256, True, lambda rng, b, q, k: _packed(q, k, causal=True)),
  "causal, packed, odd length": (3, 135, 135, False, lambda rng, b, q, k: _packed(q, k, causal=True)),
  "cross, packed": (3, 114, 256, False, lambda rng, b, q, k: _packed(q, k)),
  "bias, prefix": (3, 160, 160, True, lambda rng, b, q, k: Mask(causal=True, prefix=_lengths(rng, b, k))),
  "prefix, packed": (3, 160, 160, False, lambda rng, b, q, k: _packed(q, k, causal=True, prefix=_prefixes(3, k))),
}


def _lengths(rng, batch, length):
  return jnp.asarray(np.arange(length)[None] < rng.integers(1, length + 1, (batch, 1)))


def _holes(rng, batch, length):
  return jnp.asarray(rng.random((batch, length)) < 0.7)


def _segments(length):
  """Three rows: two examples and padding, one example, five examples."""
  at = np.arange(length) / length
  rows = [np.where(at < 0.4, 1, np.where(at < 0.8, 2, 0)), np.ones(length), 1 + np.floor(5 * at)]
  return jnp.asarray(np.stack(rows), jnp.int32)


def _packed(query_length, key_length, **fields):
  keys = _segments(key_length)
  return Mask(query_segments=_segments(query_length), key_segments=keys, key_valid=keys > 0, **fields)


def _prefixes(rows, length):
  inside = np.arange(length) % (length // 5) < length // 15
  return jnp.asarray(np.tile(inside, (rows, 1)))


def inputs(name: str, dtype, heads: int = 3, width: int = 64, seed: int = 0):
  """Returns query, key, value, weights of the output, the mask and the bias table of a case."""
  batch, query, key, has_bias, mask = CASES[name]
  rng = np.random.default_rng(seed)
  arrays = [jnp.asarray(rng.normal(size=(batch, n, heads, width)), dtype) for n in (query, key, key, query)]
  mask = mask(rng, batch, query, key)
  table = jnp.asarray(rng.normal(size=(32, heads)), jnp.float32) if has_bias else None
  return *arrays, mask, table


def value_and_gradients(run, query, key, value, weights, mask, table, scale=0.125):
  """Returns the output and gradients by name, without fully masked rows, which may differ."""
  allowed = mask_matrix(mask, query.shape[1], key.shape[1])
  seen = jnp.ones((1, query.shape[1], 1, 1), bool)
  if allowed is not None:
    seen = jnp.any(allowed, axis=-1)[:, 0, :, None, None]

  def weighted(query, key, value, table):
    bias = None if table is None else RelativeBias(table, bidirectional=not mask.causal)
    out = jnp.where(seen, run(query, key, value, mask, bias, scale), 0)
    return jnp.sum(out.astype(jnp.float32) * weights.astype(jnp.float32)), out

  argnums = (0, 1, 2) if table is None else (0, 1, 2, 3)
  gradients, out = jax.jit(jax.grad(weighted, argnums=argnums, has_aux=True))(query, key, value, table)
  names = ("d_query", "d_key", "d_value", "d_table")
  return {"out": out} | dict(zip(names, gradients, strict=False))


def relative_error(got, expected) -> float:
  got, expected = (np.asarray(x, np.float64) for x in (got, expected))
  assert np.all(np.isfinite(got))
  return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
