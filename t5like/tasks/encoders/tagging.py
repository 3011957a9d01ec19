"""Tagging for encoders, one tag per word: `<task>_tagging`.

The first token of a word carries its tag; other tokens, [CLS] and [SEP] have weight 0 (Devlin et al.
2018, section 5.3).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.objectives import Ragged, SpecialTokens
from t5like.objectives.ragged import within
from t5like.objectives.segments import PairForm, join_words
from t5like.tasks import metrics
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.forms import (
  LabelVocabulary,
  encoder_features,
  encoder_vocabulary,
  ragged_features,
  row_length,
  tokenizes,
)
from t5like.tasks.library import ner
from t5like.tasks.registry import register_task
from t5like.vocabularies import Vocabulary

_BATCH = 256


@seqio.map_over_dataset
def tagged_words(example: dict[str, tf.Tensor], tags_key: str, tag_names: Sequence[str]) -> dict[str, tf.Tensor]:
  """Selects the words, and their tags as class numbers."""
  tags = example[tags_key]  # [words]
  if tags.dtype == tf.string:
    tags = tf.argmax(tf.equal(tags[:, None], tf.constant(list(tag_names))[None, :]), axis=1)
  return {"tokens": example["tokens"], "tags": tf.cast(tags, tf.int32)}


@tokenizes("tagging")
def encode_tags(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int] | None,
  output_features: Mapping[str, seqio.Feature],
) -> tf.data.Dataset:
  """Encodes {"tokens", "tags"} as [CLS] tokens of all words [SEP], with `targets` and `weights`.

  `word_numbers` is the index of the word that starts at a token, -1 elsewhere, to map predictions back to words.
  """
  vocabulary = encoder_vocabulary(output_features)
  length = row_length(sequence_length)

  def encode(examples: dict) -> dict:
    words, tags = examples["tokens"], examples["tags"]
    given = [words.values, words.row_lengths(), tags.values]
    call = functools.partial(align_tags, vocabulary=vocabulary, length=length)
    tokens, targets, numbers, lengths = tf.numpy_function(call, given, [tf.int32] * 3 + [tf.int64])
    named = {"inputs": tokens, "targets": targets, "word_numbers": numbers}
    named |= {"weights": tf.cast(numbers >= 0, tf.int32), "token_types": tf.zeros_like(tokens)}
    return examples | ragged_features(named, lengths)

  return dataset.ragged_batch(_BATCH).map(encode, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def align_tags(
  words: Sequence[bytes | str], counts: np.ndarray, tags: np.ndarray, vocabulary: Vocabulary, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns concatenated tokens, targets and word numbers of all sentences, and the length of each.

  `words` and `tags` are those of all sentences, `counts` the number of words in each. A word is encoded
  separately, after a space: its tokens do not depend on its neighbors. Some words have no tokens.
  """
  texts = [word.decode("utf-8", errors="replace") if isinstance(word, bytes) else word for word in words]
  encoded = vocabulary.encode_batch([f" {text}" for text in texts])
  sizes, counts = np.array([len(pieces) for pieces in encoded], np.int64), np.asarray(counts, np.int64)
  ends = np.concatenate([[0], np.cumsum(sizes)])[np.concatenate([[0], np.cumsum(counts)])]
  rows = join_words(
    Ragged.of(np.array([piece for pieces in encoded for piece in pieces], np.int32), np.diff(ends)),
    Ragged.of(sizes.astype(np.int32), counts),
    Ragged.of(np.asarray(tags, np.int32), counts),
    length,
    PairForm.of(SpecialTokens.of(vocabulary)),
  )
  kept = within(rows.lengths, length)
  return rows.tokens[kept], rows.targets[kept], rows.word_numbers[kept], rows.lengths


def register_tagging(
  name: str, source: seqio.DataSource, tag_names: Sequence[str], tags_key: str = "tags"
) -> seqio.Task:
  """Registers a tagging task; rows have `tokens` and `tags_key`, which holds tag names or their indices."""
  return register_task(
    name,
    source=source,
    preprocessors=[
      functools.partial(tagged_words, tags_key=tags_key, tag_names=tuple(tag_names)),
      seqio.CacheDatasetPlaceholder(),
      encode_tags,
    ],
    output_features=encoder_features(
      targets=seqio.Feature(LabelVocabulary(tag_names), add_eos=False),
      weights=seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False),
    ),
    postprocess_fn=functools.partial(encoder_scores.tags, tag_names=list(tag_names)),
    metric_fns=[metrics.entity_f1],
  )


def register_ner_tagging(
  name: str, files: Mapping[str, str | Path], tag_names: Sequence[str] | None = None, **layout: Any
) -> seqio.Task:
  """Registers a tagging task over CoNLL files; `layout` is passed to `ner.read_conll`.

  Without `tag_names` the files are read now to collect them: O is class 0, the rest in alphabetical order.
  """
  if tag_names is None:
    missing = [str(path) for path in files.values() if not Path(path).is_file()]
    if missing:
      raise UserError(f"cannot collect the tags of {name!r}", missing=", ".join(missing), try_="tag_names=[...]")
    found = {tag for path in files.values() for _, tags in ner.read_conll(path, **layout) for tag in tags}
    tag_names = ("O", *sorted(found - {"O"}))
  return register_tagging(name, ner.ConllSource(files, **layout), tag_names)


register_tagging(
  "conll2003_tagging",
  seqio.TfdsDataSource("conll2003:1.0.0", splits={"train": "train", "validation": "dev", "test": "test"}),
  ner.TAGS["conll2003"],
  tags_key="ner",
)
register_tagging(
  "wnut_17_tagging",
  seqio.TfdsDataSource("wnut_17:1.0.0", splits=("train", "validation", "test")),
  ner.TAGS["wnut_17"],
  tags_key="ner",
)
