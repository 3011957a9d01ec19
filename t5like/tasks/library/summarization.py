"""CNN/DailyMail (See et al. 2017) and XSum (Narayan et al. 2018) in T5's text-to-text form, from TFDS."""

from __future__ import annotations

import functools

import seqio
import tensorflow as tf

from t5like.tasks import metrics, preprocessors
from t5like.tasks.registry import default_features, register_task


@seqio.map_over_dataset
def summarize(example: dict[str, tf.Tensor], article_key: str, summary_key: str) -> dict[str, tf.Tensor]:
  """`summarize: ` and the article; the summary is the target."""
  return {"inputs": tf.strings.join(["summarize: ", example[article_key]]), "targets": example[summary_key]}


def _register(name: str, tfds_name: str, article_key: str, summary_key: str) -> None:
  register_task(
    name,
    source=seqio.TfdsDataSource(tfds_name, splits=("train", "validation", "test")),
    preprocessors=preprocessors.text_to_text(
      functools.partial(summarize, article_key=article_key, summary_key=summary_key)
    ),
    output_features=default_features(),
    metric_fns=[metrics.rouge],
  )


_register("cnn_dailymail", "cnn_dailymail:3.4.0", "article", "highlights")
_register("xsum", "xsum:1.1.0", "document", "summary")
