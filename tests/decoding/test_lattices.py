"""Searches over small lattices whose every path is worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.decoding import DecodeSettings, decode

A, B, C, D, END, START = 2, 3, 4, 5, 1, 0
VOCAB = 6


def lattice(probabilities: dict) -> np.ndarray:
  """Log-probabilities [last, next]; what is not given shares what is left over."""
  table = np.zeros((VOCAB, VOCAB))
  for last in range(VOCAB):
    given = probabilities.get(last, {END: 1.0})
    rest = (1.0 - sum(given.values())) / (VOCAB - len(given))
    table[last] = [given.get(token, rest) for token in range(VOCAB)]
  return np.log(np.maximum(table, 1e-12)).astype(np.float32)


# The likeliest first token leads nowhere good: A then END is 0.6 * 0.4 = 0.24, B then END is 0.4 * 0.9 = 0.36.
TRAP = lattice({START: {A: 0.6, B: 0.4}, A: {END: 0.4, C: 0.35, A: 0.25}, B: {END: 0.9, C: 0.1}, C: {END: 1.0}})
# A and END are two tokens of 0.45 * 0.6 = 0.27 together; B, C, D and END four of 0.55 * 0.7 * 0.7 * 1.0 = 0.2695.
LONG = lattice({START: {A: 0.45, B: 0.55}, A: {END: 0.6, A: 0.4}, B: {C: 0.7, END: 0.3}, C: {D: 0.7, END: 0.3}})


def search(table: np.ndarray, first=(START,), eos_id: int | None = END, limits=None, **settings):
  """The next token depends on the last alone, so there is nothing to keep in a cache."""

  def step(tokens, cache):
    return jnp.asarray(table)[tokens], cache

  limits = None if limits is None else jnp.asarray(limits, jnp.int32)
  out = decode(
    step, (), jnp.asarray(first), DecodeSettings(**settings), eos_id=eos_id, limits=limits,
    reorder=lambda cache, copies: cache,
  )  # fmt: skip
  return jax.tree.map(np.asarray, out)


def outputs(decoded, row: int = 0) -> list[list[int]]:
  return [tokens[:n].tolist() for tokens, n in zip(decoded.tokens[row], decoded.lengths[row], strict=True)]


def test_greedy_takes_the_likeliest_token_and_beam_search_the_likeliest_output():
  greedy = search(TRAP, max_length=4)
  assert greedy.tokens.tolist() == [[[A, END, 0, 0]]] and greedy.lengths.tolist() == [[1]]
  np.testing.assert_allclose(np.exp(greedy.scores), [[0.6 * 0.4]], rtol=1e-5)
  beam = search(TRAP, max_length=4, method="beam", beams=2, n_best=2, length_penalty=0.0)
  assert outputs(beam) == [[B], [A]]
  np.testing.assert_allclose(np.exp(beam.scores), [[0.36, 0.24]], rtol=1e-5)


@pytest.mark.parametrize(("form", "short", "long"), [("gnmt", 7 / 6, 9 / 6), ("power", 2, 4)])
def test_a_length_penalty_changes_the_winner(form, short, long):
  plain = search(LONG, max_length=6, method="beam", beams=3, n_best=2, length_penalty=0.0)
  assert outputs(plain) == [[A], [B, C, D]]
  penalised = search(LONG, max_length=6, method="beam", beams=3, n_best=2, length_penalty=1.0, penalty_form=form)
  assert outputs(penalised) == [[B, C, D], [A]]
  np.testing.assert_allclose(penalised.scores, [np.log([0.2695, 0.27])], rtol=1e-5)
  np.testing.assert_allclose(penalised.ranking, [[np.log(0.2695) / long, np.log(0.27) / short]], rtol=1e-5)


def test_when_a_row_may_end_with_its_beams_finished():
  """After two steps A and B are finished, and B, C (0.385) is live. Stopping there misses B, C, D, whose penalised
  -1.311 / 4 = -0.328 beats A's -0.655; at the present length of two it stands at -0.477, so the heuristic goes on."""
  options = dict(max_length=6, method="beam", beams=2, n_best=1, length_penalty=1.0, penalty_form="power")
  found = {how: outputs(search(LONG, **options, early_stopping=how))[0] for how in ("first", "heuristic", "never")}
  assert found == {"first": [A], "heuristic": [B, C, D], "never": [B, C, D]}


def test_ties_go_to_the_lower_token_and_are_all_kept():
  table = lattice({START: {A: 0.5, B: 0.5}, A: {END: 1.0}, B: {END: 1.0}})
  assert outputs(search(table, max_length=3)) == [[A]]
  beam = search(table, max_length=3, method="beam", beams=2, n_best=2)
  assert outputs(beam) == [[A], [B]] and beam.scores[0, 0] == beam.scores[0, 1]


def test_rows_end_by_themselves_and_the_loop_with_the_last_of_them():
  """5 ends at once, C after one step more; A with END as its only way goes on where no token is the end."""
  steps = []

  def step(tokens, cache):
    jax.debug.callback(lambda: steps.append(1))
    return jnp.asarray(lattice({START: {C: 1.0}, C: {END: 1.0}}))[tokens], cache

  out = decode(step, (), jnp.array([START, 5, C]), DecodeSettings(max_length=50), eos_id=END)
  jax.effects_barrier()
  assert out.tokens[:, 0, :3].tolist() == [[C, END, 0], [END, 0, 0], [END, 0, 0]] and not out.tokens[:, :, 3:].any()
  assert out.lengths.tolist() == [[1], [0], [0]] and len(steps) == 2


def test_limits_are_of_rows_and_no_end_means_as_many_tokens_as_allowed():
  loop = lattice({START: {A: 1.0}, A: {A: 0.9, END: 0.1}})
  out = search(loop, first=(START, A, A), limits=(2, 3, 0), max_length=4)
  assert out.tokens[:, 0].tolist() == [[A, A, 0, 0], [A, A, A, 0], [0, 0, 0, 0]]
  assert out.lengths.tolist() == [[2], [3], [0]]
  assert search(lattice({}), eos_id=None, max_length=3).tokens.tolist() == [[[END] * 3]]


def test_a_minimum_length_holds_the_end_back():
  table = lattice({START: {END: 0.8, A: 0.2}, A: {END: 0.9, A: 0.1}})
  assert outputs(search(table, max_length=5)) == [[]]
  assert outputs(search(table, max_length=5, min_length=3)) == [[A, A, A]]
  assert outputs(search(table, max_length=5, min_length=2, method="beam", beams=2)) == [[A, A]]


def test_stop_sequences():
  """A B A B ... : the pair B A comes first after three tokens; with a minimum the next one counts."""
  table = lattice({START: {A: 1.0}, A: {B: 1.0}, B: {A: 1.0}})
  out = search(table, max_length=8, stop_sequences=[(B, A), (C,), (A, A, A)])
  assert out.tokens[0, 0].tolist() == [A, B, A, 0, 0, 0, 0, 0] and outputs(out) == [[A]]
  assert outputs(search(table, max_length=8, stop_sequences=[(B, A)], min_length=4)) == [[A, B, A]]
  # The longest of those that end here is cut off.
  assert outputs(search(table, max_length=8, stop_sequences=[(A,), (B, A)], min_length=2)) == [[A]]
  assert search(table, max_length=8, stop_sequences=[(B, A)]).lengths.tolist() == [[1]]


def test_stop_sequences_end_hypotheses_of_a_beam():
  table = lattice({START: {A: 0.6, B: 0.4}, A: {C: 0.6, B: 0.4}, B: {C: 1.0}, C: {A: 1.0}})
  out = search(table, max_length=6, method="beam", beams=2, n_best=2, length_penalty=0.0, stop_sequences=[(C,)])
  assert outputs(out) == [[B], [A]]
  np.testing.assert_allclose(np.exp(out.scores), [[0.4, 0.36]], rtol=1e-5)


def test_a_beam_as_wide_as_the_lattice_finds_the_best_of_all_outputs():
  """The cache gives the logits, so it has to follow the beams: the next token depends on all that were written."""
  rng = np.random.default_rng(0)
  vocab, length = 4, 4
  table = np.log(rng.dirichlet(np.ones(vocab), 3 * (length + 1))).astype(np.float32)  # by place and sum of tokens
  totals = {}
  for path in np.ndindex(*(vocab,) * length):
    sums = [sum(path[:n]) % 3 for n in range(length)]
    totals[path] = sum(table[3 * n + sums[n], token] for n, token in enumerate(path))
  expected = sorted(totals.items(), key=lambda item: -item[1])[:3]

  def step(tokens, cache):
    total = (cache["sum"] + tokens) % 3
    return jnp.asarray(table)[3 * cache["place"] + total], {"sum": total, "place": cache["place"] + 1}

  settings = DecodeSettings(method="beam", beams=vocab**3, n_best=3, max_length=length, length_penalty=0.0)
  cache = {"sum": jnp.zeros(vocab**3, jnp.int32), "place": jnp.zeros((), jnp.int32)}
  out = decode(
    step, cache, jnp.zeros(1, jnp.int32), settings, eos_id=None,
    reorder=lambda cache, copies: cache | {"sum": cache["sum"][copies[0]]},
  )  # fmt: skip
  assert [tuple(t) for t in out.tokens[0].tolist()] == [path for path, _ in expected]
  np.testing.assert_allclose(out.scores[0], [score for _, score in expected], rtol=1e-5)


def test_repetition_penalty_counts_what_was_read_and_written():
  """Logits of A are halved once it is written (2.0 -> 1.0 < B's 1.5), negative ones doubled."""
  logits = np.full((VOCAB, VOCAB), -1.0, np.float32)
  logits[:, A], logits[:, B] = 2.0, 1.5

  def step(tokens, cache):
    return jnp.asarray(logits)[tokens], cache

  settings = DecodeSettings(max_length=3, repetition_penalty=2.0)
  nothing = decode(step, (), jnp.array([START]), settings, eos_id=END)
  assert nothing.tokens[0, 0].tolist() == [A, B, A]  # then 1.0 against 0.75
  read = decode(step, (), jnp.array([START]), settings, eos_id=END, read=jnp.array([[A, -1]]))
  assert read.tokens[0, 0].tolist() == [B, A, A]
