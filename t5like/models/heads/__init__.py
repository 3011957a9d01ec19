"""A backbone (BERT, T5 or GPT) with a head for labels: classes, scores, choices, tags or answer spans."""

from t5like.models.heads.rows import ClassificationHead, MultiLabelHead, MultipleChoiceHead, RegressionHead
from t5like.models.heads.states import POOLINGS, Features, LayerMix
from t5like.models.heads.tokens import SpanHead, TaggingHead
from t5like.models.heads.with_head import WithHead, attach_head

# By the form of a task: see data/labeled_rows.py.
HEADS = {
  head.form: head
  for head in (ClassificationHead, MultiLabelHead, RegressionHead, MultipleChoiceHead, TaggingHead, SpanHead)
}

__all__ = [
  "HEADS",
  "POOLINGS",
  "ClassificationHead",
  "Features",
  "LayerMix",
  "MultiLabelHead",
  "MultipleChoiceHead",
  "RegressionHead",
  "SpanHead",
  "TaggingHead",
  "WithHead",
  "attach_head",
]
