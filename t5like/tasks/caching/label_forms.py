"""Describes the labels of an encoder task, so that a head can be chosen and trained without seqio."""

from __future__ import annotations

from typing import Any

import numpy as np
import seqio

from t5like.objectives import spans
from t5like.tasks.caching.cache_kind import Steps, bound_keywords, unbound


def label_form(task: seqio.Task) -> dict[str, Any] | None:
  """Returns the form of a task as plain values; None if a t5like step does not create its labels.

  `name` is a form of data/labeled_rows.py. `grouped`: the examples of a question are its candidate answers.
  """
  step = Steps.of(task).tokenize
  kind = getattr(unbound(step), "form", None)
  if kind == "spans":
    given = bound_keywords(step)
    stride, longest = given.get("stride", spans.STRIDE), given.get("longest_question", spans.LONGEST_QUESTION)
    return {"name": "spans", "stride": stride, "longest_question": longest}
  if kind == "tagging":
    return {"name": "tagging", "labels": _names(task.output_features["targets"])}
  if kind == "texts":
    target = {"target": "regression"} if "labels" in task.output_features else {}
    return {"name": "embedding", "texts": bound_keywords(step)["texts"]} | target
  if kind != "segments":
    return None
  labels = task.output_features["labels"]
  if np.issubdtype(np.dtype(labels.dtype.as_numpy_dtype), np.floating):
    return {"name": "regression"}
  if labels.rank == 1:
    return {"name": "multi_label", "labels": _names(labels)}
  grouped = getattr(unbound(task.postprocessor), "__name__", "") == "candidate"
  return {"name": "classification", "labels": _names(labels)} | ({"grouped": True} if grouped else {})


def _names(feature: seqio.Feature) -> list[str]:
  known = getattr(feature.vocabulary, "labels", None)
  return list(known or map(str, range(feature.vocabulary.vocab_size)))
