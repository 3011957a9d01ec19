"""Greedy search over a small lattice worked by hand."""

import jax.numpy as jnp
import numpy as np

from t5like import decoding

# Next-token logits by last token: 0 -> 2, 2 -> 3, 3 -> end (1); 4 -> 4 for ever; 5 -> end.
NEXT = np.full((6, 6), -1.0, np.float32)
for last, following in {0: 2, 2: 3, 3: 1, 4: 4, 5: 1}.items():
  NEXT[last, following] = 1.0


def step(tokens, calls):
  return jnp.asarray(NEXT)[tokens], calls + 1


def test_rows_end_by_themselves_and_are_padded():
  tokens = decoding.greedy(step, jnp.int32(0), jnp.array([0, 4, 5]), max_length=5, eos_id=1)
  assert tokens.tolist() == [[2, 3, 1, 0, 0], [4, 4, 4, 4, 4], [1, 0, 0, 0, 0]]


def test_the_loop_stops_when_every_row_has_ended():
  calls = []

  def counting(tokens, cache):
    calls.append(None)
    return step(tokens, cache)

  import jax

  with jax.disable_jit():
    decoding.greedy(counting, jnp.int32(0), jnp.array([0, 5]), max_length=50, eos_id=1)
  assert len(calls) == 3
