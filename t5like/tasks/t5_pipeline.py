"""The original T5 pipeline, as a benchmark baseline. Needs the `t5` library, which is not a dependency."""

from __future__ import annotations

import time
from collections.abc import Sequence

import seqio
import tensorflow as tf
from t5.data import preprocessors as t5

from t5like.tasks import preprocessors
from t5like.tasks.registry import default_features


def packed_rows(texts: Sequence[str], inputs: int, targets: int) -> tuple[int, float]:
  """Runs `texts` through seqio and t5's span corruption into packed rows; returns their number and the seconds."""
  source = seqio.FunctionDataSource(
    lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"text": list(texts)}), ["train"]
  )
  task = seqio.Task(
    "t5_pipeline",
    source=source,
    preprocessors=[
      preprocessors.document,
      seqio.preprocessors.tokenize,
      t5.span_corruption,
      seqio.preprocessors.append_eos_after_trim,
    ],
    output_features=default_features(),
  )
  lengths = {"inputs": inputs, "targets": targets}
  dataset = task.get_dataset(lengths, "train", shuffle=False)
  packed = seqio.EncDecFeatureConverter(pack=True)(dataset, lengths).batch(128).prefetch(tf.data.AUTOTUNE)
  batches = packed.as_numpy_iterator()
  next(batches)  # exclude building the graph
  started = time.perf_counter()
  rows = sum(len(batch["encoder_input_tokens"]) for batch in batches)
  return rows, time.perf_counter() - started
