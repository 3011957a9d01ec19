"""Registered tasks over rows that a test gives."""

import seqio
import tensorflow as tf


def task_over(name: str, rows: list[dict], split: str = "validation") -> seqio.Task:
  """Returns the registered task with these rows as its source."""

  def dataset(split, shuffle_files):
    del split, shuffle_files
    return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=_signature(rows[0]))

  source = seqio.FunctionDataSource(dataset, splits=[split], num_input_examples={split: len(rows)})
  return seqio.TaskRegistry.get(name).replace(source=source)


def _signature(value):
  """Returns types as in TFDS: labels int64, other integers int32."""
  if isinstance(value, dict):
    return {
      k: tf.TensorSpec([], tf.int64) if k == "label" and isinstance(v, int) else _signature(v) for k, v in value.items()
    }
  if isinstance(value, list):
    return tf.TensorSpec([None], tf.string if value and isinstance(value[0], str) else tf.int32)
  return tf.TensorSpec([], {str: tf.string, int: tf.int32, float: tf.float32}[type(value)])
