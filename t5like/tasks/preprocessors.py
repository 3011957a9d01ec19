"""From raw examples to text, for any task: each function maps a tf.data.Dataset.

What only one family needs stands with its registrations: `glue`, `super_glue`, `squad`, `summarization`,
`translation`, `ner`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import seqio
import tensorflow as tf

# The target where a label or an answer is withheld, as in the test sets of GLUE.
UNLABELED = "<unk>"


@seqio.map_over_dataset
def document(example: dict[str, tf.Tensor], text_key: str = "text") -> dict[str, tf.Tensor]:
  """A passage of a corpus: its text is what objectives corrupt."""
  return {"targets": example[text_key]}


def labeled_text(
  dataset: tf.data.Dataset,
  name: str,
  keys: Sequence[str] | None = None,
  label_key: str = "label",
  label_names: Sequence[str] | None = None,
  kept: Sequence[str] = (),
) -> tf.data.Dataset:
  """`<name> k1: v1 k2: v2` with the label word as target (T5's GLUE form).

  `keys` come in the order given; without them, all fields but the label and `idx`, in alphabetical order.
  `label_names` turn a class number into its word, -1 into `<unk>`; without them the label is a word already.
  `kept` fields are handed on for evaluation; one that is a group of fields becomes `field/part`.
  """

  def to_text(example):
    words = [name]
    for key in keys or sorted(example.keys() - {label_key, "idx"}):
      words += [f"{key}:", example[key]]
    label = example[label_key]
    if label_names:
      label = tf.gather([UNLABELED, *label_names], label + 1)
    return {"inputs": tf.strings.join(words, separator=" "), "targets": label, **_fields(example, kept)}

  return dataset.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


def _fields(example: dict, names: Sequence[str]) -> dict[str, tf.Tensor]:
  """The named fields, with groups of fields laid flat: seqio's features have one level."""
  flat = {}
  for name in names:
    value = example[name]
    flat |= {f"{name}/{part}": value[part] for part in value} if isinstance(value, dict) else {name: value}
  return flat


def text_to_text(*steps: Callable) -> list[Callable]:
  """`steps` that make `inputs` and `targets` text, then what seqio needs to make them tokens.

  The placeholder is where seqio's own offline cache, if one is made, takes over.
  """
  return [
    *steps,
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    seqio.preprocessors.append_eos_after_trim,
  ]
