"""Search over small lattices whose paths are computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5like.decoding import DecodeSettings, decode

A, B, C, D, END, START = 2, 3, 4, 5, 1, 0
VOCAB = 6


def lattice(probabilities: dict) -> np.ndarray:
  """Returns log-probabilities [last, next]; tokens that are not given share the remaining probability."""
  table = np.zeros((VOCAB, VOCAB))
  for last in range(VOCAB):
    given = probabilities.get(last, {END: 1.0})
    rest = (1.0 - sum(given.values())) / (VOCAB - len(given))
    table[last] = [given.get(token, rest) for token in range(VOCAB)]
  return np.log(np.maximum(table, 1e-12)).astype(np.float32)


# The likeliest first token is a trap: A then END is 0.6 * 0.4 = 0.24, B then END is 0.4 * 0.9 = 0.36.
TRAP = lattice({START: {A: 0.6, B: 0.4}, A: {END: 0.4, C: 0.35, A: 0.25}, B: {END: 0.9, C: 0.1}, C: {END: 1.0}})
# A and END are two tokens of 0.45 * 0.6 = 0.27 together; B, C, D and END four of 0.55 * 0.7 * 0.7 * 1.0 = 0.2695.
LONG = lattice({START: {A: 0.45, B: 0.55}, A: {END: 0.6, A: 0.4}, B: {C: 0.7, END: 0.3}, C: {D: 0.7, END: 0.3}})


def search(
  table: np.ndarray, first=(START,), eos_id: int | None = END, limits=None, pad_id=0, prompts=None, seed=None,
  **settings
):  # fmt: skip
  """Searches without a cache: the next token depends only on the last."""

  def step(tokens, cache):
    return jnp.asarray(table)[tokens], cache

  limits = None if limits is None else jnp.asarray(limits, jnp.int32)
  out = jax.jit(lambda first: decode(
    step, (), first, DecodeSettings(**settings), eos_id=eos_id, limits=limits, pad_id=pad_id,
    prompt_tokens=None if prompts is None else jnp.asarray(prompts), seed=seed, reorder=lambda cache, selected: cache,
  ))(jnp.asarray(first))  # fmt: skip
  return jax.tree.map(np.asarray, out)


def outputs(decoded, row: int = 0) -> list[list[int]]:
  return [tokens[:n].tolist() for tokens, n in zip(decoded.tokens[row], decoded.lengths[row], strict=True)]


def test_greedy_search_finds_the_likeliest_token_and_beam_search_the_likeliest_output():
  greedy = search(TRAP, max_length=4)
  assert greedy.tokens.tolist() == [[[A, END, 0, 0]]] and greedy.lengths.tolist() == [[1]]
  np.testing.assert_allclose(np.exp(greedy.scores), [[0.6 * 0.4]], rtol=1e-5)
  beam = search(TRAP, max_length=4, method="beam", beams=2, n_best=2, length_penalty=0.0)
  assert outputs(beam) == [[B], [A]]
  np.testing.assert_allclose(np.exp(beam.scores), [[0.36, 0.24]], rtol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("form", "short", "long"), [("gnmt", 7 / 6, 9 / 6), ("power", 2, 4)])
def test_a_length_penalty_changes_the_winner(form, short, long):
  plain = search(LONG, max_length=6, method="beam", beams=3, n_best=2, length_penalty=0.0)
  assert outputs(plain) == [[A], [B, C, D]]
  penalized = search(LONG, max_length=6, method="beam", beams=3, n_best=2, length_penalty=1.0, penalty_form=form)
  assert outputs(penalized) == [[B, C, D], [A]]
  np.testing.assert_allclose(penalized.scores, [np.log([0.2695, 0.27])], rtol=1e-5)
  np.testing.assert_allclose(penalized.ranking, [[np.log(0.2695) / long, np.log(0.27) / short]], rtol=1e-5)


def test_when_a_row_ends_after_its_beams_are_finished():
  """After two steps A and B are finished, and B, C (0.385) is live. Stopping there misses B, C, D, whose penalized
  -1.311 / 4 = -0.328 beats A's -0.655; at the current length of two it is -0.477, so the heuristic continues."""
  options = dict(max_length=6, method="beam", beams=2, n_best=1, length_penalty=1.0, penalty_form="power")
  found = {how: outputs(search(LONG, **options, early_stopping=how))[0] for how in ("first", "heuristic", "never")}
  assert found == {"first": [A], "heuristic": [B, C, D], "never": [B, C, D]}


def test_a_row_ends_when_no_other_output_could_still_become_better():
  """A, END finishes with log(0.3) / 2 = -0.60. A, C is live with log(0.24) = -1.43: over 2 tokens that is -0.71, and
  the heuristic stops; over 6 it would be -0.24, so that A, C, D, END is found with -1.43 / 4 = -0.36."""
  table = lattice({START: {A: 0.6, B: 0.4}, A: {END: 0.5, C: 0.4, B: 0.1}, C: {D: 1.0}, D: {END: 1.0}, B: {B: 1.0}})
  options = dict(max_length=6, method="beam", beams=1, length_penalty=1.0, penalty_form="power")
  found = {how: outputs(search(table, **options, early_stopping=how))[0] for how in ("first", "heuristic", "never")}
  assert found == {"first": [A], "heuristic": [A], "never": [A, C, D]}
  # A negative penalty favors short outputs: the current length is the best for a live hypothesis.
  options["length_penalty"] = -1.0
  assert outputs(search(table, **options)) == [[A]]
  # Finished: END with log(0.35) and A, END with 2 log(0.12) = -4.24. A, C is live with 2 log(0.48) = -1.47 now and 6
  # times log(0.48) = -4.40 at the limit; it ends with 3 log(0.48) = -2.20.
  table = lattice({START: {A: 0.6, END: 0.35, B: 0.05}, A: {C: 0.8, END: 0.2}, C: {END: 1.0}})
  options |= dict(beams=2, n_best=2, early_stopping="never")
  assert outputs(search(table, **options)) == [[], [A, C]]


def test_a_row_that_has_ended_does_not_change_while_others_continue():
  """END at once is log(0.6) / 1; A, END would be log(0.24) / 2^4, better, but "first" has stopped. B, D, B, ...
  continues up to the limit."""
  table = lattice({START: {END: 0.6, A: 0.4}, A: {END: 0.6, C: 0.4}, B: {D: 1.0}, D: {B: 0.9, END: 0.1}})
  options = dict(max_length=6, method="beam", beams=1, length_penalty=4.0, penalty_form="power")
  out = search(table, first=(START, B), **options, early_stopping="first")
  assert outputs(out, 0) == [[]] and outputs(out, 1) == [[D, B, D, B, D, B]]
  assert outputs(search(table, first=(START, B), **options), 0) == [[A, C]]


def test_one_candidate_remains_however_many_end():
  """With one beam, A ends by a stop sequence and END ends; B, END is the best by its length."""
  table = lattice({START: {A: 0.5, END: 0.3, B: 0.2}, B: {END: 1.0}})
  options = dict(max_length=4, method="beam", beams=1, length_penalty=4.0, penalty_form="power")
  assert outputs(search(table, **options, stop_sequences=[(A,)])) == [[B]]
  table = lattice({START: {END: 0.4, C: 0.3, A: 0.2, B: 0.1}, A: {END: 1.0}})  # two ends are likelier than A
  assert outputs(search(table, **options, more_ends=(C,))) == [[A]]


@pytest.mark.parametrize("rule", [{"repetition_penalty": 2.0}, {"forced_first": B}, {"forced_end": True}])
def test_scores_are_log_probabilities_with_rules_that_set_or_read_them(rule):
  options = dict(max_length=4, method="beam", beams=2, n_best=2, length_penalty=0.0, **rule)
  plain, shifted = search(TRAP, **options), search(TRAP + 3.0, **options)  # logits of the same probabilities
  assert outputs(plain) == outputs(shifted)
  np.testing.assert_allclose(shifted.scores, plain.scores, atol=1e-5)


def test_only_the_likeliest_of_all_candidates_finish():
  """Two beams: A, END (0.27) is only the third likeliest continuation after B, C and B, D, and does not finish."""
  table = lattice({START: {A: 0.45, B: 0.55}, A: {END: 0.6, A: 0.4}, B: {C: 0.5, D: 0.5}, C: {END: 0.9}, D: {C: 1.0}})
  out = search(table, max_length=6, method="beam", beams=2, n_best=2, length_penalty=0.0)
  assert outputs(out) == [[B, C], [B, D, C]]  # 0.2475 each


def test_more_beams_than_there_are_hypotheses():
  """Two tokens, one of which ends: after n steps n outputs are finished, and four beams are full after four steps."""
  table = np.log(np.full((2, 2), 0.5, np.float32))
  options = dict(method="beam", beams=4, n_best=4, max_length=9, length_penalty=1.0, penalty_form="power")
  out = search(table, **options, early_stopping="first")
  assert sorted(out.lengths[0].tolist()) == [0, 1, 2, 3]
  np.testing.assert_allclose(out.scores[0], np.log(0.5) * (out.lengths[0] + 1), rtol=1e-5)


def test_limits_of_rows_in_beam_search():
  loop = lattice({START: {A: 1.0}, A: {A: 0.9, END: 0.1}})
  out = search(loop, first=(START, A, A), limits=(2, 3, 0), max_length=4, method="beam", beams=2, pad_id=5)
  assert out.tokens[:, 0].tolist() == [[A, A, 5, 5], [A, A, A, 5], [5, 5, 5, 5]]
  assert out.lengths.tolist() == [[2], [3], [0]]
  np.testing.assert_allclose(out.scores[:2, 0], np.log([0.9, 0.9**3]), atol=1e-5)


def test_tokens_after_the_end_are_padding_and_not_scored():
  table = lattice({START: {C: 0.5, A: 0.3}, C: {END: 0.8}, A: {A: 1.0}})
  out = search(table, first=(START, A), max_length=4, pad_id=5)
  assert out.tokens[:, 0].tolist() == [[C, END, 5, 5], [A, A, A, A]] and out.lengths.tolist() == [[1], [4]]
  np.testing.assert_allclose(out.scores[:, 0], [np.log(0.4), 0.0], atol=1e-5)
  np.testing.assert_array_equal(out.ranking, out.scores)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["sample", "beam"])
def test_hypotheses_belong_to_their_rows(method):
  """Two per row, with the row's first token, limit and prompt."""
  options = dict(method=method, n_best=2, max_length=3) | (dict(top_k=1) if method == "sample" else dict(beams=2))
  loops = lattice({A: {A: 1.0}, C: {C: 1.0}})
  out = search(loops, first=(A, C), limits=(1, 3), **options)
  assert outputs(out, 0)[0] == [A] and outputs(out, 1)[0] == [C, C, C]
  if method == "sample":
    assert outputs(out, 0)[1] == [A] and outputs(out, 1)[1] == [C, C, C]
  two = lattice(dict.fromkeys(range(VOCAB), {A: 0.6, B: 0.4}))
  prompts = [[A, -1], [C, B]]
  out = search(two, first=(START, START), prompts=prompts, repetition_penalty=4.0, **options | {"max_length": 1})
  assert [row[0] for row in (outputs(out, 0), outputs(out, 1))] == [[B], [A]]
  if method == "sample":
    assert [row[1] for row in (outputs(out, 0), outputs(out, 1))] == [[B], [A]]


def test_scores_are_log_likelihoods_under_the_model_without_penalties():
  """A is penalized after its first occurrence: B, with probability 0.4, is second; then both are penalized equally."""
  table = lattice(dict.fromkeys(range(VOCAB), {A: 0.6, B: 0.4}))
  out = search(table, max_length=3, repetition_penalty=4.0)
  assert out.tokens[0, 0].tolist() == [A, B, A]
  np.testing.assert_allclose(out.scores, [[np.log(0.6 * 0.4 * 0.6)]], rtol=1e-5)


def test_empty_positions_do_not_count_as_repetition():
  """Padding is 0, which no row has generated yet: its log-likelihood is doubled only from the second token on."""
  table = lattice(dict.fromkeys(range(VOCAB), {START: 0.5, A: 0.3, B: 0.2}))
  assert search(table, max_length=3, repetition_penalty=2.0).tokens[0, 0].tolist() == [START, A, START]


def test_ties_favor_the_lower_token_and_are_all_kept():
  table = lattice({START: {A: 0.5, B: 0.5}, A: {END: 1.0}, B: {END: 1.0}})
  assert outputs(search(table, max_length=3)) == [[A]]
  beam = search(table, max_length=3, method="beam", beams=2, n_best=2)
  assert outputs(beam) == [[A], [B]] and beam.scores[0, 0] == beam.scores[0, 1]


def test_rows_end_independently_and_the_loop_with_the_last_of_them():
  """5 and C end after one step, START after two."""
  steps = []

  def step(tokens, cache):
    jax.debug.callback(lambda: steps.append(1))
    return jnp.asarray(lattice({START: {C: 1.0}, C: {END: 1.0}}))[tokens], cache

  out = decode(step, (), jnp.array([START, 5, C]), DecodeSettings(max_length=50), eos_id=END)
  jax.effects_barrier()
  assert out.tokens[:, 0, :3].tolist() == [[C, END, 0], [END, 0, 0], [END, 0, 0]] and not out.tokens[:, :, 3:].any()
  assert out.lengths.tolist() == [[1], [0], [0]] and len(steps) == 2


def test_limits_are_per_row_and_without_an_end_apply_to_all():
  loop = lattice({START: {A: 1.0}, A: {A: 0.9, END: 0.1}})
  out = search(loop, first=(START, A, A), limits=(2, 3, 0), max_length=4)
  assert out.tokens[:, 0].tolist() == [[A, A, 0, 0], [A, A, A, 0], [0, 0, 0, 0]]
  assert out.lengths.tolist() == [[2], [3], [0]]
  assert search(lattice({}), eos_id=None, max_length=3).tokens.tolist() == [[[END] * 3]]


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_a_forced_end_is_the_last_token_of_each_row(method):
  loop = lattice({START: {A: 1.0}, A: {A: 0.9, END: 0.1}})
  out = search(loop, first=(START, A), limits=(2, 3), max_length=4, forced_end=True, method=method)
  assert out.tokens[:, 0].tolist() == [[A, END, 0, 0], [A, A, END, 0]]


@pytest.mark.parametrize("rule", [{"no_repeat_ngram": 2}, {"forbidden": ((A, B),)}])
def test_sequences_that_begin_in_the_prompt_are_forbidden(rule):
  """B, the likeliest token, would be the second A, B after the prompt A, B, A."""
  table = lattice(dict.fromkeys(range(VOCAB), {B: 0.6, C: 0.4}))
  assert outputs(search(table, prompts=[[A, B, A, -1]], max_length=3, **rule)) == [[C, B, B]]


def test_a_minimum_length_delays_the_end():
  table = lattice({START: {END: 0.8, A: 0.2}, A: {END: 0.9, A: 0.1}})
  assert outputs(search(table, max_length=5)) == [[]]
  assert outputs(search(table, max_length=5, min_length=3)) == [[A, A, A]]
  assert outputs(search(table, max_length=5, min_length=2, method="beam", beams=2)) == [[A, A]]


def test_stop_sequences():
  """A B A B ...: the pair B A first ends after three tokens; with a minimum length, the next one counts."""
  table = lattice({START: {A: 1.0}, A: {B: 1.0}, B: {A: 1.0}})
  out = search(table, max_length=8, stop_sequences=[(B, A), (C,), (A, A, A)])
  assert out.tokens[0, 0].tolist() == [A, B, A, 0, 0, 0, 0, 0] and outputs(out) == [[A]]
  assert outputs(search(table, max_length=8, stop_sequences=[(B, A)], min_length=4)) == [[A, B, A]]
  # The longest stop sequence that matches is cut off.
  assert outputs(search(table, max_length=8, stop_sequences=[(A,), (B, A)], min_length=2)) == [[A]]
  assert search(table, max_length=8, stop_sequences=[(B, A)]).lengths.tolist() == [[1]]
  # A stop sequence before the minimum length is ignored; one that ends at it counts.
  assert outputs(search(table, max_length=3, stop_sequences=[(A,)], min_length=2)) == [[A, B]]
  assert outputs(search(table, max_length=3, stop_sequences=[(B,)], min_length=3)) == [[A, B, A]]
  assert outputs(search(table, max_length=3, stop_sequences=[(B,)], min_length=2)) == [[A]]
  # An ignored stop sequence is not cut off either if the row's limit ends the output.
  assert outputs(search(table, max_length=3, limits=(1,), stop_sequences=[(A,)], min_length=2)) == [[A]]


def test_stop_sequences_end_hypotheses_of_a_beam():
  table = lattice({START: {A: 0.6, B: 0.4}, A: {C: 0.6, B: 0.4}, B: {C: 1.0}, C: {A: 1.0}})
  out = search(table, max_length=6, method="beam", beams=2, n_best=2, length_penalty=0.0, stop_sequences=[(C,)])
  assert outputs(out) == [[B], [A]]
  np.testing.assert_allclose(np.exp(out.scores), [[0.4, 0.36]], rtol=1e-5)


def test_a_beam_as_wide_as_the_lattice_finds_the_best_of_all_outputs():
  """Logits depend on all previous tokens through the cache, so it must be reordered with the beams."""
  rng = np.random.default_rng(0)
  vocab, length = 4, 4
  table = np.log(rng.dirichlet(np.ones(vocab), 3 * (length + 1))).astype(np.float32)  # by position and sum of tokens
  totals = {}
  for path in np.ndindex(*(vocab,) * length):
    sums = [sum(path[:n]) % 3 for n in range(length)]
    totals[path] = sum(table[3 * n + sums[n], token] for n, token in enumerate(path))
  expected = sorted(totals.items(), key=lambda item: -item[1])[:3]

  def step(tokens, cache):
    total = (cache["sum"] + tokens) % 3
    return jnp.asarray(table)[3 * cache["position"] + total], {"sum": total, "position": cache["position"] + 1}

  settings = DecodeSettings(method="beam", beams=vocab**3, n_best=3, max_length=length, length_penalty=0.0)
  cache = {"sum": jnp.zeros(vocab**3, jnp.int32), "position": jnp.zeros((), jnp.int32)}
  out = decode(
    step, cache, jnp.zeros(1, jnp.int32), settings, eos_id=None,
    reorder=lambda cache, selected: cache | {"sum": cache["sum"][selected[0]]},
  )  # fmt: skip
  assert [tuple(t) for t in out.tokens[0].tolist()] == [path for path, _ in expected]
  np.testing.assert_allclose(out.scores[0], [score for _, score in expected], rtol=1e-5)


def test_repetition_penalty_counts_prompt_and_output():
  """Logits of A are halved once it is generated (2.0 -> 1.0 < B's 1.5), negative ones doubled."""
  logits = np.full((VOCAB, VOCAB), -1.0, np.float32)
  logits[:, A], logits[:, B] = 2.0, 1.5

  def step(tokens, cache):
    return jnp.asarray(logits)[tokens], cache

  settings = DecodeSettings(max_length=3, repetition_penalty=2.0)
  without = decode(step, (), jnp.array([START]), settings, eos_id=END)
  assert without.tokens[0, 0].tolist() == [A, B, A]  # then 1.0 against 0.75
  prompted = decode(step, (), jnp.array([START]), settings, eos_id=END, prompt_tokens=jnp.array([[A, -1]]))
  assert prompted.tokens[0, 0].tolist() == [B, A, A]
