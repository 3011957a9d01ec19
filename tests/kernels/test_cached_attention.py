"""The kernel of decoding steps against plain products, run by Pallas's interpreter, and those against a softmax."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels.attention.cached import Fixed, PastBias, attend, attend_and_write

BATCH, COPIES, HEADS, KV, PROMPT, ROOM = 2, 2, 2, 6, 40, 70
RNG = np.random.default_rng(0)
NEW = RNG.normal(size=(BATCH * COPIES, 3, HEADS, KV)).astype(np.float32)
GROWN = RNG.normal(size=(BATCH * COPIES, 2, HEADS, ROOM, KV)).astype(np.float32)
PROMPTS = RNG.normal(size=(BATCH, 2, HEADS, PROMPT, KV)).astype(np.float32)
VALID = (RNG.random((BATCH, PROMPT)) < 0.7) & (np.arange(PROMPT)[None] < np.array([[40], [9]]))
TABLE = RNG.normal(size=(HEADS, PROMPT + ROOM)).astype(np.float32)


def by_hand(number: int, row: int, head: int, index: np.ndarray, prompt: bool, bias: bool, grown: bool = True):
  """One query over its keys, in float64."""
  keys, values, scores = [], [], []
  parts = [(PROMPTS[row // COPIES], np.flatnonzero(VALID[row // COPIES]), index[row])] if prompt else []
  if grown:
    own = GROWN[row].copy()
    own[:, :, number] = NEW[row, 1:]
    parts.append((own, np.arange(number + 1), number))
  for part, places, newest in parts:
    keys.append(part[0, head, places])
    values.append(part[1, head, places])
    scores.append(TABLE[head, newest - places] if bias else np.zeros(len(places)))
  scores = 0.5 * np.concatenate(keys).astype(np.float64) @ NEW[row, 0, head] + np.concatenate(scores)
  weights = np.exp(scores - scores.max())
  return weights @ np.concatenate(values) / weights.sum()


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize(("number", "prompt", "bias"), [(0, True, True), (33, False, True), (64, True, False)])
def test_a_step_attends_to_prompt_and_written_tokens_and_writes_its_own(kernel, number, prompt, bias):
  index = np.repeat([39, 8], COPIES).astype(np.int32) + number
  out, grown = attend_and_write(
    jnp.asarray(NEW), jnp.asarray(GROWN), jnp.int32(number),
    Fixed(jnp.asarray(PROMPTS), jnp.asarray(VALID)) if prompt else None,
    PastBias(jnp.asarray(TABLE), jnp.asarray(index)) if bias else None, 0.5, kernel=kernel, interpret=True,
  )  # fmt: skip
  expected = [[by_hand(number, r, h, index, prompt, bias) for h in range(HEADS)] for r in range(BATCH * COPIES)]
  np.testing.assert_allclose(out, expected, atol=1e-5)
  written = GROWN.copy()
  written[:, :, :, number] = NEW[:, 1:]
  np.testing.assert_array_equal(grown, written)


@pytest.mark.parametrize("kernel", [False, True])
def test_copies_share_what_is_fixed(kernel):
  fixed = Fixed(jnp.asarray(PROMPTS), jnp.asarray(VALID))
  out = attend(jnp.asarray(NEW[:, 0]), fixed, 0.5, kernel=kernel, interpret=True)
  index = np.zeros(BATCH * COPIES, int)
  expected = [[by_hand(0, r, h, index, True, False, grown=False) for h in range(HEADS)] for r in range(BATCH * COPIES)]
  np.testing.assert_allclose(out, expected, atol=1e-5)
