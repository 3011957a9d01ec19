"""Cached attention, unfused and with the kernel in Pallas's interpreter, compared with a softmax by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from t5like.kernels.attention.cached import DistanceBias, GeneratedKV, SharedKV, _readable, attend, attend_and_write

BATCH, HYPOTHESES, HEADS, KV, PROMPT, STEPS = 2, 3, 2, 6, 40, 70
RNG = np.random.default_rng(0)
NEW = RNG.normal(size=(BATCH * HYPOTHESES, 3, HEADS, KV)).astype(np.float32)
GENERATED = RNG.normal(size=(BATCH * HYPOTHESES, 2, HEADS, STEPS, KV)).astype(np.float32)
PROMPTS = RNG.normal(size=(BATCH, 2, HEADS, PROMPT, KV)).astype(np.float32)
VALID = (RNG.random((BATCH, PROMPT)) < 0.7) & (np.arange(PROMPT)[None] < np.array([[40], [9]]))
ORIGINS = RNG.integers(0, HYPOTHESES, (BATCH, HYPOTHESES, STEPS)).astype(np.int32)  # who wrote each one's tokens
TABLE = RNG.normal(size=(HEADS, PROMPT + STEPS)).astype(np.float32)


def by_hand(position: int, row: int, head: int, index: np.ndarray, prompt: int | None, bias: bool, written=None):
  """Attends with one query to the keys of a prompt and those in `written`, in float64."""
  keys, values, scores = [], [], []
  parts = [] if prompt is None else [(PROMPTS[prompt], np.flatnonzero(VALID[prompt]), index[row])]
  if written is not None:
    written = written.copy()
    written[:, :, position] = NEW[row, 1:]
    parts.append((written, np.arange(position + 1), position))
  for part, positions, newest in parts:
    keys.append(part[0, head, positions])
    values.append(part[1, head, positions])
    scores.append(TABLE[head, newest - positions] if bias else np.zeros(len(positions)))
  scores = 0.5 * np.concatenate(keys).astype(np.float64) @ NEW[row, 0, head] + np.concatenate(scores)
  weights = np.exp(scores - scores.max())
  return weights @ np.concatenate(values) / weights.sum()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize(("hypotheses", "beams"), [(1, False), (HYPOTHESES, False), (HYPOTHESES, True)])
@pytest.mark.parametrize(("position", "prompt", "bias"), [(0, True, True), (33, False, True), (66, True, False)])
def test_a_step_attends_to_prompt_and_generated_tokens_and_writes_its_own(
  kernel, hypotheses, beams, position, prompt, bias
):
  """A beam may have tokens that another one of the row has written."""
  rows = BATCH * hypotheses
  index = np.repeat([39, 8], hypotheses).astype(np.int32) + position
  origins = ORIGINS if beams else None
  out, generated = attend_and_write(
    jnp.asarray(NEW[:rows]), GeneratedKV(jnp.asarray(GENERATED[:rows]), jnp.int32(position), origins),
    SharedKV(jnp.asarray(PROMPTS), jnp.asarray(VALID)) if prompt else None,
    DistanceBias(jnp.asarray(TABLE), jnp.asarray(index)) if bias else None, 0.5, kernel=kernel, interpret=True,
  )  # fmt: skip

  def past(row):
    writer = np.full(STEPS, row)
    if beams:
      writer = row // hypotheses * hypotheses + ORIGINS[row // hypotheses, row % hypotheses]
    return np.moveaxis(GENERATED[writer, :, :, np.arange(STEPS)], 0, 2)  # [2, heads, steps, kv]

  expected = [
    [by_hand(position, r, h, index, r // hypotheses if prompt else None, bias, past(r)) for h in range(HEADS)]
    for r in range(rows)
  ]
  np.testing.assert_allclose(out, expected, atol=1e-5)
  written = GENERATED[:rows].copy()
  written[:, :, :, position] = NEW[:rows, 1:]
  np.testing.assert_array_equal(generated, written)


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("hypotheses", [1, HYPOTHESES])
def test_hypotheses_share_the_prompt(kernel, hypotheses):
  shared = SharedKV(jnp.asarray(PROMPTS), jnp.asarray(VALID))
  rows = range(BATCH * hypotheses)
  out = attend(jnp.asarray(NEW[: len(rows), 0]), shared, 0.5, kernel=kernel, interpret=True)
  index = np.zeros(len(rows), int)
  expected = [[by_hand(0, r, h, index, r // hypotheses, False) for h in range(HEADS)] for r in rows]
  np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.version_sensitive
@pytest.mark.parametrize("hypotheses", [1, HYPOTHESES])
def test_a_step_in_bfloat16(hypotheses):
  """XLA has no product of bfloat16 with a float32 result for several hypotheses on CPUs (jax 0.11 and 0.12)."""
  rows, half = BATCH * hypotheses, jnp.bfloat16
  origins = ORIGINS if hypotheses > 1 else None

  def step(dtype):
    # Rounded to bfloat16 in both cases.
    new, generated, prompts = (jnp.asarray(x, half).astype(dtype) for x in (NEW[:rows], GENERATED[:rows], PROMPTS))
    written, shared = GeneratedKV(generated, jnp.int32(66), origins), SharedKV(prompts, jnp.asarray(VALID))
    return attend_and_write(new, written, shared, scale=0.5, kernel=False)[0].astype(jnp.float32)

  np.testing.assert_allclose(step(half), step(jnp.float32), atol=0.02)


def test_a_window_counts_the_new_token():
  written = GeneratedKV(jnp.zeros((1, 2, 1, 6, 4)), jnp.int32(3), window=2)
  assert _readable(written, 6).tolist() == [False, False, True, True, False, False]
  assert _readable(dataclasses.replace(written, window=None), 6).tolist() == [True] * 4 + [False] * 2
