"""A backbone (BERT, T5 or GPT) with a head: for classes, scores, choices, tags, answer spans or sentence embeddings."""

from t5like.models.heads.embedding import LOSSES, SENTENCE_POOLINGS, EmbeddingHead
from t5like.models.heads.probe import Probe
from t5like.models.heads.rows import ClassificationHead, MultiLabelHead, MultipleChoiceHead, RegressionHead
from t5like.models.heads.states import Features
from t5like.models.heads.tokens import SpanHead, TaggingHead
from t5like.models.heads.with_head import WithHead, attach_head

_CLASSES = (
  ClassificationHead,
  MultiLabelHead,
  RegressionHead,
  MultipleChoiceHead,
  TaggingHead,
  SpanHead,
  EmbeddingHead,
)
# By the form of a task: see data/labeled_rows.py.
HEADS = {head.form: head for head in _CLASSES}

__all__ = [
  "HEADS",
  "LOSSES",
  "SENTENCE_POOLINGS",
  "ClassificationHead",
  "EmbeddingHead",
  "Features",
  "MultiLabelHead",
  "MultipleChoiceHead",
  "Probe",
  "RegressionHead",
  "SpanHead",
  "TaggingHead",
  "WithHead",
  "attach_head",
]
