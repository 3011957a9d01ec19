"""Classification, similarity and inference of sentences outside GLUE and SuperGLUE, in the same text-to-text form.

SWAG, SICK, STS and AllNLI are not in TFDS: use `t5like tasks prepare`. IMDb and TREC have no validation set: it is
the last tenth of the training set.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import seqio

from t5like.tasks import metrics, postprocessors, preprocessors
from t5like.tasks.library import glue
from t5like.tasks.preparation import nli, similarity, swag
from t5like.tasks.registry import default_features, register_task

_THREE = ("train", "validation", "test")
_HELD_OUT = {"train": "train[:90%]", "validation": "train[90%:]", "test": "test"}


@dataclasses.dataclass(frozen=True)
class SentenceTask:
  """A labeled data set of one or two texts; the text-to-text and the encoder form are both made from it."""

  data: str  # in TFDS
  texts: tuple[str, ...]  # its fields, the first and the second of an encoder
  labels: tuple[str, ...] | None  # words in the order of class numbers; None: a score
  splits: Sequence[str] | Mapping[str, str] = _THREE
  label_key: str = "label"

  @property
  def source(self) -> seqio.TfdsDataSource:
    return seqio.TfdsDataSource(self.data, splits=self.splits)

  @property
  def metric_fns(self) -> list[Callable]:
    return [metrics.accuracy] if self.labels else [metrics.pearson_corrcoef, metrics.spearman_corrcoef]


_PAIR = ("sentence1", "sentence2")
TASKS = {
  # Positive and negative film reviews (Maas et al. 2011).
  "imdb": SentenceTask("imdb_reviews/plain_text:1.0.0", ("text",), ("negative", "positive"), _HELD_OUT),
  # What a question asks for, in six classes (Li and Roth 2002).
  "trec_6": SentenceTask(
    "trec:1.0.0",
    ("text",),
    ("description", "entity", "abbreviation", "human", "number", "location"),
    _HELD_OUT,
    "label-coarse",
  ),
  # SNLI and MultiNLI together, as used for sentence embeddings (Reimers and Gurevych 2019).
  "all_nli": SentenceTask("all_nli/pairs:1.0.0", ("premise", "hypothesis"), nli.LABELS),
  # Relatedness from 1 to 5 (Marelli et al. 2014).
  "sick_r": SentenceTask("sick:1.0.0", _PAIR, None),
  # SemEval's similarity from 0 to 5: all pairs of a year are one test set (Agirre et al. 2012 to 2016).
  **{f"sts{year}": SentenceTask(f"sts/{year}:1.0.0", _PAIR, None, ("test",)) for year in similarity.YEARS},
}
SWAG = "swag:1.0.0"


def _register(name: str, source: seqio.DataSource, to_text, labels: Sequence[str] | None, metric_fns) -> None:
  class_id = functools.partial(postprocessors.string_label_to_class_id, label_classes=labels)
  register_task(
    name,
    source=source,
    preprocessors=preprocessors.text_to_text(to_text),
    output_features=default_features(),
    postprocess_fn=class_id if labels else postprocessors.string_to_float,
    metric_fns=metric_fns,
  )


for _name, _task in TASKS.items():
  if _task.labels is None:
    _to_text = functools.partial(glue.stsb, name=_name)
  else:
    _to_text = functools.partial(
      preprocessors.labeled_text,
      name=_name,
      keys=sorted(_task.texts),  # in the order of T5's GLUE
      label_key=_task.label_key,
      label_names=_task.labels,
    )
  _register(_name, _task.source, _to_text, _task.labels, _task.metric_fns)

# Which of four endings continues a caption (Zellers et al. 2018).
_register(
  "swag",
  seqio.TfdsDataSource(SWAG, splits=_THREE),
  functools.partial(
    preprocessors.labeled_text,
    name="swag",
    keys=(*swag.ENDINGS, "sent1", "sent2"),
    label_names=swag.ENDINGS,
    kept=("idx",),
  ),
  swag.ENDINGS,
  [metrics.accuracy],
)
