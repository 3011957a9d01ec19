"""From raw examples to text: each function maps a tf.data.Dataset."""

from collections.abc import Sequence

import seqio
import tensorflow as tf


@seqio.map_over_dataset
def document(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """A passage of a corpus: its text is what objectives corrupt."""
  return {"targets": example["text"]}


def labelled_text(dataset: tf.data.Dataset, name: str, keys: Sequence[str], label_key: str) -> tf.data.Dataset:
  """`<name> k1: v1 k2: v2` with keys in alphabetical order, the label word as target (T5's GLUE form)."""

  def to_text(example):
    parts = [tf.constant(name)]
    for key in sorted(keys):
      parts += [tf.constant(f"{key}:"), example[key]]
    return {"inputs": tf.strings.join(parts, separator=" "), "targets": example[label_key]}

  return dataset.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)
