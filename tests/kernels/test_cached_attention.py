"""Cached attention, unfused and with the kernel in Pallas's interpreter, compared with a softmax by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels.attention.cached import DistanceBias, SharedKV, attend, attend_and_write

BATCH, HYPOTHESES, HEADS, KV, PROMPT, STEPS = 2, 2, 2, 6, 40, 70
RNG = np.random.default_rng(0)
NEW = RNG.normal(size=(BATCH * HYPOTHESES, 3, HEADS, KV)).astype(np.float32)
GENERATED = RNG.normal(size=(BATCH * HYPOTHESES, 2, HEADS, STEPS, KV)).astype(np.float32)
PROMPTS = RNG.normal(size=(BATCH, 2, HEADS, PROMPT, KV)).astype(np.float32)
VALID = (RNG.random((BATCH, PROMPT)) < 0.7) & (np.arange(PROMPT)[None] < np.array([[40], [9]]))
TABLE = RNG.normal(size=(HEADS, PROMPT + STEPS)).astype(np.float32)


def by_hand(position: int, row: int, head: int, index: np.ndarray, prompt: bool, bias: bool, generated: bool = True):
  """Attends with one query to its keys, in float64."""
  keys, values, scores = [], [], []
  parts = [(PROMPTS[row // HYPOTHESES], np.flatnonzero(VALID[row // HYPOTHESES]), index[row])] if prompt else []
  if generated:
    written = GENERATED[row].copy()
    written[:, :, position] = NEW[row, 1:]
    parts.append((written, np.arange(position + 1), position))
  for part, positions, newest in parts:
    keys.append(part[0, head, positions])
    values.append(part[1, head, positions])
    scores.append(TABLE[head, newest - positions] if bias else np.zeros(len(positions)))
  scores = 0.5 * np.concatenate(keys).astype(np.float64) @ NEW[row, 0, head] + np.concatenate(scores)
  weights = np.exp(scores - scores.max())
  return weights @ np.concatenate(values) / weights.sum()


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize(("position", "prompt", "bias"), [(0, True, True), (33, False, True), (64, True, False)])
def test_a_step_attends_to_prompt_and_generated_tokens_and_writes_its_own(kernel, position, prompt, bias):
  index = np.repeat([39, 8], HYPOTHESES).astype(np.int32) + position
  out, generated = attend_and_write(
    jnp.asarray(NEW), jnp.asarray(GENERATED), jnp.int32(position),
    SharedKV(jnp.asarray(PROMPTS), jnp.asarray(VALID)) if prompt else None,
    DistanceBias(jnp.asarray(TABLE), jnp.asarray(index)) if bias else None, 0.5, kernel=kernel, interpret=True,
  )  # fmt: skip
  expected = [[by_hand(position, r, h, index, prompt, bias) for h in range(HEADS)] for r in range(BATCH * HYPOTHESES)]
  np.testing.assert_allclose(out, expected, atol=1e-5)
  written = GENERATED.copy()
  written[:, :, :, position] = NEW[:, 1:]
  np.testing.assert_array_equal(generated, written)


@pytest.mark.parametrize("kernel", [False, True])
def test_hypotheses_share_the_prompt(kernel):
  shared = SharedKV(jnp.asarray(PROMPTS), jnp.asarray(VALID))
  out = attend(jnp.asarray(NEW[:, 0]), shared, 0.5, kernel=kernel, interpret=True)
  rows = range(BATCH * HYPOTHESES)
  index = np.zeros(len(rows), int)
  expected = [[by_hand(0, r, h, index, True, False, generated=False) for h in range(HEADS)] for r in rows]
  np.testing.assert_allclose(out, expected, atol=1e-5)
