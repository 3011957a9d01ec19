"""Preprocessors from raw examples to text for any task: each function maps a tf.data.Dataset.

Preprocessors of a single family are next to its registrations: `glue`, `super_glue`, `squad`,
`summarization`, `translation`, `ner`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import seqio
import tensorflow as tf

# The target when a label or answer is withheld, as in the test sets of GLUE.
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
  """Formats examples as `<name> k1: v1 k2: v2` with the label word as target (T5's GLUE form).

  `keys` are used in the given order; by default all fields except the label and `idx`, alphabetically.
  `label_names` map class numbers to words, -1 to `<unk>`; without them the label is already a word.
  `kept` fields are passed on for evaluation; nested fields become `field/part`.
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
  """Returns the named fields; nested ones are flattened, as seqio's features have one level."""
  flat = {}
  for name in names:
    value = example[name]
    flat |= {f"{name}/{part}": value[part] for part in value} if isinstance(value, dict) else {name: value}
  return flat


def text_to_text(*steps: Callable) -> list[Callable]:
  """Returns `steps`, which produce text `inputs` and `targets`, followed by seqio's tokenization and EOS steps.

  The placeholder is where seqio's offline cache, if there is one, is read.
  """
  return [
    *steps,
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    seqio.preprocessors.append_eos_after_trim,
  ]
