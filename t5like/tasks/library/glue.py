"""GLUE (Wang et al. 2018) in T5's text-to-text form, from TFDS."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import seqio
import tensorflow as tf

from t5like.tasks import metrics, postprocessors, preprocessors
from t5like.tasks.registry import default_features, register_task

VERSION = "2.0.0"

_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")
# Label words in the order of class numbers. STS-B has a score instead.
LABELS = {
  "cola": ("unacceptable", "acceptable"),
  "sst2": ("negative", "positive"),
  "mrpc": ("not_equivalent", "equivalent"),
  "qqp": ("not_duplicate", "duplicate"),
  "mnli": _INFERENCE,
  "mnli_matched": _INFERENCE,
  "mnli_mismatched": _INFERENCE,
  "qnli": _ENTAILMENT,
  "rte": _ENTAILMENT,
  "wnli": ("not_entailment", "entailment"),
  "ax": _INFERENCE,
}
METRICS = {
  "cola": [metrics.matthews_corrcoef],
  "mrpc": [metrics.f1_score_with_invalid, metrics.accuracy],
  "qqp": [metrics.f1_score_with_invalid, metrics.accuracy],
  "stsb": [metrics.pearson_corrcoef, metrics.spearman_corrcoef],
  "ax": [],  # its answers are withheld
}
SPLITS = {
  "mnli": ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
  "mnli_matched": ("validation", "test"),
  "mnli_mismatched": ("validation", "test"),
  "ax": ("test",),
}


def glue_text(config: str, labels: Sequence[str]):
  """Returns the preprocessor of a GLUE task; the diagnostic set and MNLI's validation sets use the prefix `mnli`."""
  name = "mnli" if config == "ax" or config.startswith("mnli") else config
  return functools.partial(preprocessors.labeled_text, name=name, label_names=labels, kept=("idx",))


@seqio.map_over_dataset
def stsb(example: dict[str, tf.Tensor], name: str = "stsb") -> dict[str, tf.Tensor]:
  """Formats the similarity as text: the score rounded to a multiple of 0.2, like the annotators' scores."""
  inputs = [name, "sentence1:", example["sentence1"], "sentence2:", example["sentence2"]]
  return {
    "inputs": tf.strings.join(inputs, separator=" "),
    "targets": tf.strings.as_string(tf.round(example["label"] * 5) / 5, precision=1),
    "idx": example["idx"],
  }


def _register(config: str, to_text, postprocessor) -> None:
  register_task(
    f"glue_{config}",
    source=seqio.TfdsDataSource(f"glue/{config}:{VERSION}", splits=SPLITS.get(config, ("train", "validation", "test"))),
    preprocessors=preprocessors.text_to_text(to_text),
    output_features=default_features(),
    postprocess_fn=postprocessor,
    metric_fns=METRICS.get(config, [metrics.accuracy]),
  )


for _config, _labels in LABELS.items():
  _register(
    _config,
    glue_text(_config, _labels),
    functools.partial(postprocessors.string_label_to_class_id, label_classes=_labels),
  )
_register("stsb", stsb, postprocessors.string_to_float)
