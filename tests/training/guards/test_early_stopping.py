"""Early stopping, worked out by hand; the same step after a kill."""

import pytest

from t5like.errors import UserError
from t5like.training.checkpoints.retention import CheckpointRetention
from t5like.training.guards.early_stopping import EarlyStopping
from t5like.training.records.metrics import MetricWriter, read_metrics

NAN = float("nan")


def stops_at(stopping, scores, name="accuracy"):
  """Returns the number of the first score, from 1, at which the run stops."""
  return next((n for n, score in enumerate(scores, 1) if stopping.update(10 * n, {name: score})), None)


@pytest.mark.parametrize(
  "scores, arguments, expected",
  [
    ([1, 2, 3, 4, 5], {}, None),
    ([5, 4, 4.5], {}, 3),  # two in a row below the best
    ([5, 4, 6, 5, 7, 6, 7], {}, 7),  # a tie is not an improvement
    ([5, 4, 6, 3, 2], dict(higher_is_better=False), None),
    ([5, 4, 6, 4, 3], dict(higher_is_better=False), 4),
    ([1, 1.1, 1.2, 1.3], dict(min_delta=0.25), 3),
    ([1, 1.2, 1.4, 1.6, 1.8], dict(min_delta=0.25), None),  # compared with the best, not with the one before
    ([NAN, NAN], {}, 2),
    ([NAN, 1, NAN, 2, NAN, float("inf")], {}, 6),
    ([3, NAN, NAN], dict(higher_is_better=False), 3),
  ],
)
def test_patience_of_two(scores, arguments, expected):
  assert stops_at(EarlyStopping("accuracy", 2, **arguments), scores) == expected


def test_an_evaluation_counts_once():
  """A resumed run may evaluate its last step again; earlier steps were already counted."""
  stopping = EarlyStopping("accuracy", 2)
  assert [stopping.update(step, {"accuracy": score}) for step, score in ((10, 5), (20, 4), (20, 4), (10, 9))] == [
    False
  ] * 4
  assert stopping.best == 5 and stopping.update(30, {"accuracy": 4})


def test_the_reason_is_described():
  stopping = EarlyStopping("snli/loss", 1)
  assert stops_at(stopping, [2.5, 2.75], "snli/loss") == 2
  assert stopping.describe() == "snli/loss has not fallen below 2.5 of step 10 in 1 evaluations"
  assert stopping.best == 2.5 and stopping.best_step == 10
  rising = EarlyStopping("accuracy", 1, min_delta=0.5)
  assert stops_at(rising, [2.5, 2.75]) == 2
  assert rising.describe() == "accuracy has not risen above 2.5 of step 10 by more than 0.5 in 1 evaluations"


@pytest.mark.parametrize(
  "name, expected",
  [
    ("eval_loss/snli/loss", None), ("eval_loss/snli/perplexity", None), ("eval/stars/mean_squared_error", None),
    ("eval/a/mean_edit", None), ("eval/snli/accuracy", 3), ("eval/loss/accuracy", 3), ("eval/a/lossless", 3),
  ],
)  # fmt: skip
def test_a_loss_improves_by_falling(name, expected):
  """Without higher_is_better; the same for the checkpoints to keep."""
  assert stops_at(EarlyStopping(name, 2), [3, 2, 1], name) == expected
  metrics = {step: {name: float(4 - step)} for step in (1, 2, 3)}
  assert CheckpointRetention(metric=name).best_steps(metrics) == [3 if expected is None else 1]


def test_an_unknown_name_is_an_error_with_the_nearest():
  with pytest.raises(UserError, match="unknown metric for early stopping") as unknown:
    EarlyStopping("eval/snli/acuracy", 1).update(1, {"eval/snli/accuracy": 1.0, "eval/snli/f1": 2.0})
  assert "nearest  eval/snli/accuracy" in str(unknown.value)
  stopping = EarlyStopping("accuracy", 1)
  assert not stopping.update(1, {"loss": 1.0}, complete=False)  # another evaluation, with another period
  stopping.update(2, {"accuracy": 1.0})
  assert not stopping.update(3, {"loss": 2.0})


@pytest.mark.parametrize(
  "arguments", [dict(patience=0), dict(patience=1, min_delta=-1.0), dict(patience=1, min_delta=NAN)]
)
def test_invalid_settings_are_refused(arguments):
  with pytest.raises(UserError, match="invalid .* of early stopping"):
    EarlyStopping("accuracy", **arguments)


SCORES = [1.0, 3.0, 2.0, NAN, 3.0, 1.0, 5.0]  # of the steps 10, 20, ...; patience 4 ends at 60


@pytest.mark.parametrize("kill", range(5, 75, 10))
@pytest.mark.parametrize("checkpoint_every", [10, 15, 20])
def test_a_run_that_is_killed_ends_at_the_same_step(tmp_path, kill, checkpoint_every):
  """Killed once after `kill` steps, it resumes from its last checkpoint with nothing but metrics.jsonl."""

  def run(first, last):
    writer = MetricWriter(tmp_path, first)
    stopping = EarlyStopping("eval/snli/accuracy", 4)
    step = first
    stop = stopping.restore(read_metrics(tmp_path), first)
    while not stop and step < last:
      step += 1
      if step % 10 == 0:
        writer.write(step, "train", {"loss": 1.0, "accuracy": 0.5})
        writer.write(step, "eval/snli", {"accuracy": SCORES[step // 10 - 1]})
        stop = stopping.update(step, {"eval/snli/accuracy": SCORES[step // 10 - 1]})
    writer.close()
    return step, stop

  step, stop = run(0, kill)
  step, stop = run(step - step % checkpoint_every, 70)
  assert (step, stop) == (60, True)


def test_a_rollback_drops_later_evaluations():
  rows = [{"step": 10 * n, "kind": "eval/snli", "accuracy": x} for n, x in enumerate([1.0, 9.0, 8.0], 1)]
  stopping = EarlyStopping("eval/snli/accuracy", 1)
  assert stopping.restore(rows, 30) and stopping.best == 9.0
  assert not stopping.restore(rows, 10) and stopping.best == 1.0
  assert not stopping.update(20, {"eval/snli/accuracy": 2.0}) and stopping.best_step == 20
