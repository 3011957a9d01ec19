"""The threshold above which a question has no answer (SQuAD 2.0), as tuned by evaluation in training."""

from __future__ import annotations

from pathlib import Path

import flax.linen as nn

from t5like.models.heads import SpanHead, WithHead
from t5like.training.records.metrics import read_metrics

# A metric of tasks with unanswerable questions: see tasks/encoders/scores.py.
_METRIC = "best_f1_thresh"


def with_threshold(module: nn.Module, model_dir: Path, step: int | None) -> nn.Module:
  """Returns a model whose span head has the threshold with the best F1 in the evaluation of this checkpoint.

  Returns other models as they are; also a head with a threshold of its own, and a checkpoint that was not evaluated on
  unanswerable questions.
  """
  if step is None or not isinstance(module, WithHead) or not isinstance(module.head, SpanHead):
    return module
  if module.head.no_answer_threshold is not None:
    return module
  rows = [row for row in read_metrics(model_dir) if row["step"] == step and row["kind"].startswith("eval/")]
  found = [row[_METRIC] for row in rows if row.get(_METRIC) is not None]
  return module.clone(head=module.head.clone(no_answer_threshold=found[-1])) if found else module
