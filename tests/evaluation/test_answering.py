"""Ranking of candidates, and the labels of tasks."""

import types

import pytest

from t5like.errors import UserError
from t5like.evaluation.answering import label_set, rank_answers, split_starts
from t5like.evaluation.loss_sums import sum_batches
from t5like.inference.ranking import Likelihood


def scorer(layout="encoder_decoder"):
  """A scorer in which a token costs its id; records its requests in `requests`."""
  requests = []

  def score(params, prompts, candidates, starts):
    requests.append((prompts, starts))
    return [[Likelihood(-float(sum(answer)), len(answer)) for answer in answers] for answers in candidates]

  score.model, score.requests = types.SimpleNamespace(batch_layout=layout), requests
  return score


def test_the_most_likely_candidate_by_sum_or_mean_is_chosen_and_ties_keep_the_first():
  candidates = [[[3], [2, 2]], [[2, 2], [4]], [[1, 5], [2, 4], [9]]]
  best, scores = rank_answers(scorer(), {}, [[7]] * 3, candidates)
  assert best == [0, 0, 0] and scores == [[-3, -4], [-4, -4], [-6, -6, -9]]
  best, scores = rank_answers(scorer(), {}, [[7]] * 3, candidates, reduction="mean")
  assert best == [1, 0, 0] and scores == [[-3, -2], [-2, -4], [-3, -3, -9]]


def test_many_prompts_are_ranked_in_order_with_progress():
  progress = []
  best, scores = rank_answers(scorer(), {}, [[7]] * 300, [[[5], [n % 9]] for n in range(300)], progress=progress.append)
  assert best == [int(n % 9 < 5) for n in range(300)] and len(scores) == 300
  assert progress == [256, 300]


def test_the_first_token_of_a_decoder_prompt_is_its_start():
  assert split_starts("encoder_decoder", [[7, 8]], [[[1]]]) == ([[7, 8]], [[[1]]], None)
  assert split_starts("decoder", [[7, 8, 9], [6]], [[[1]], [[2]]]) == ([[8, 9], []], [[[1]], [[2]]], [7, 6])
  requests = scorer("decoder")
  rank_answers(requests, {}, [[7, 8]], [[[1]]])
  assert requests.requests == [([[8]], [7])]


def test_the_labels_of_a_task():
  examples = [{"targets_pretokenized": text} for text in ("yes", "no", "no", "yes")]
  worded = {"postprocessor": {"function": "m:f", "keywords": {"label_classes": ["b", "a"]}}}
  assert label_set(worded, examples, "t") == ["b", "a"]
  assert label_set({"postprocessor": None}, examples, "t") == ["no", "yes"]
  assert label_set({"postprocessor": {"function": "m:f", "keywords": {}}}, examples, "t") == ["no", "yes"]


@pytest.mark.parametrize(
  ("different", "count", "works"),
  [(1, 9, False), (2, 2, True), (3, 3, False), (3, 6, True), (4, 6, False), (64, 200, True), (65, 200, False)],
)
def test_few_distinct_targets_are_labels(different, count, works):
  examples = [{"targets_pretokenized": f"{n % different:02d}"} for n in range(count)]
  if works:
    assert label_set({"postprocessor": None}, examples, "t") == [f"{n:02d}" for n in range(different)]
  else:
    with pytest.raises(UserError, match=f"no label set: its examples have {different} distinct"):
      label_set({"postprocessor": None}, examples, "t")


def test_batch_sums_are_added_in_float64_with_a_few_batches_in_flight():
  given, progress = [], []

  def batches():
    for n in range(6):
      given.append(n)
      assert n - len(progress) < 3
      yield {"loss": 2.0**25 if n == 0 else 1.0, "tokens": n}

  assert sum_batches(batches(), progress.append) == {"loss": 2.0**25 + 5, "tokens": 15}
  assert progress == [1, 2, 3, 4, 5, 6]
