"""Tagging metrics, one tag per word: entities as CoNLL's `conlleval` counts them, and token accuracy."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from t5like.tasks.metrics.pairing import check_pairs

OUTSIDE = "O"


def entity_f1(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
  """Computes precision, recall and F1 of entities, overall and per type (`f1_PER`), and the accuracy of tags.

  An entity is correct if its type and both boundaries are. IOB1 and IOB2 are read alike: an entity starts
  at `B-X`, and at an `I-X` that does not continue an X; its last word may be `E-X`, a single word `S-X`.
  A prediction with too few tags is padded with O, one with too many is truncated.
  """
  check_pairs(targets, predictions)
  in_targets, in_predictions, right = collections.Counter(), collections.Counter(), collections.Counter()
  for target, prediction in zip(targets, predictions, strict=True):
    target_spans, predicted_spans = set(entities(target)), set(entities(_fitted(prediction, len(target))))
    in_targets.update(kind for kind, _, _ in target_spans)
    in_predictions.update(kind for kind, _, _ in predicted_spans)
    right.update(kind for kind, _, _ in target_spans & predicted_spans)
  scores = _scores("", right.total(), in_targets.total(), in_predictions.total())
  for kind in sorted(in_targets | in_predictions):
    scores |= _scores(f"_{kind}", right[kind], in_targets[kind], in_predictions[kind])
  return scores | token_accuracy(targets, predictions)


def token_accuracy(targets: Sequence[Sequence[object]], predictions: Sequence[Sequence[object]]) -> dict[str, float]:
  """Computes the share of correct tags; missing tags count as O."""
  check_pairs(targets, predictions)
  right = total = 0
  for target, prediction in zip(targets, predictions, strict=True):
    right += sum(t == p for t, p in zip(target, _fitted(prediction, len(target)), strict=True))
    total += len(target)
  return {"token_accuracy": 100 * right / total if total else 0.0}


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
  """Yields (type, start, end) of every entity, end exclusive."""
  start, kind, before = 0, "", OUTSIDE
  for place, tag in enumerate([*tags, OUTSIDE]):
    prefix, _, tag_type = str(tag).partition("-")
    continues = before in ("B", "I") and prefix in ("I", "E") and tag_type == kind
    if kind and not continues:
      yield kind, start, place
      kind = ""
    if tag_type and prefix in ("B", "I", "E", "S") and not continues:
      start, kind = place, tag_type
    before = prefix


def _fitted(tags: Sequence[object], length: int) -> list[object]:
  return [*tags[:length], *[OUTSIDE] * (length - len(tags))]


def _scores(suffix: str, right: int, in_targets: int, in_predictions: int) -> dict[str, float]:
  return {
    f"precision{suffix}": 100 * right / in_predictions if in_predictions else 0.0,
    f"recall{suffix}": 100 * right / in_targets if in_targets else 0.0,
    f"f1{suffix}": 200 * right / (in_targets + in_predictions) if in_targets + in_predictions else 0.0,
  }
