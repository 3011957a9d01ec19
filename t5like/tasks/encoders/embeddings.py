"""Tasks for sentence embeddings: pairs, triplets, single texts, scored pairs and retrieval, as `<task>_embedding`.

A row has texts, each of which is embedded separately: an anchor, its positive, and hard negatives. Tasks of pairs with
a class or a score (`<task>_classification`) serve an EmbeddingHead as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.objectives import SpecialTokens
from t5like.objectives.segments import TEXT_FIELDS, PairForm
from t5like.tasks import metrics
from t5like.tasks.encoders import scores as encoder_scores
from t5like.tasks.encoders.forms import (
  encoded_texts,
  encoder_features,
  encoder_vocabulary,
  ragged_features,
  row_length,
  score_labels,
  tokenizes,
)
from t5like.tasks.library import embedded_tasks
from t5like.tasks.library.corpora import ColumnFiles, TextFiles, first_row
from t5like.tasks.preparation.files import OriginalFile
from t5like.tasks.preparation.nli import triplets
from t5like.tasks.registry import register_task
from t5like.tasks.sources import JsonLinesSource, read_json_lines

_BATCH = 256  # rows tokenized per call
# Names of the fields of a JSON line, in the order of a row's texts; the first that a file has is used.
_COLUMNS = (
  ("anchor", "query", "sentence1", "first", "text", "sentence"),
  ("positive", "document", "sentence2", "second"),
  ("negative", "negative_1", "third"),
  *((f"negative_{number}",) for number in range(2, len(TEXT_FIELDS) - 1)),
)
_SCORES = ("score", "label")


@tokenizes("texts")
def encode_texts(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int] | None,
  output_features: Mapping[str, seqio.Feature],
  texts: int,
) -> tf.data.Dataset:
  """Encodes each of a row's `texts` as [CLS] text [SEP], one after the other; token types are their numbers.

  A token cache, which training reads, has each text separately.
  """
  vocabulary = encoder_vocabulary(output_features)
  form, length = PairForm.of(SpecialTokens.of(vocabulary)), row_length(sequence_length)

  def join(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = [form.join(encoded_texts(vocabulary, column), None, length) for column in columns]
    lengths = np.stack([row.lengths for row in rows], axis=1)  # [rows, texts]
    kept = np.arange(length)[None, None, :] < lengths[:, :, None]
    numbers = np.broadcast_to(np.arange(texts, dtype=np.int32)[None, :, None], kept.shape)
    return np.stack([row.tokens for row in rows], axis=1)[kept], numbers[kept], lengths.sum(axis=1)

  def encode(examples: dict) -> dict:
    columns = [examples[name] for name in TEXT_FIELDS[:texts]]
    tokens, types, lengths = tf.numpy_function(join, columns, [tf.int32, tf.int32, tf.int64])
    examples |= ragged_features({"inputs": tokens, "token_types": types}, lengths)
    label = examples.pop("label", None)
    return examples if label is None else examples | {"labels": tf.cast(label, output_features["labels"].dtype)}

  return dataset.ragged_batch(_BATCH).map(encode, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


@seqio.map_over_dataset
def columns(example: dict[str, tf.Tensor], fields: Sequence[str], score: str | None = None) -> dict[str, tf.Tensor]:
  """Selects the texts of a row, and their score."""
  row = dict(zip(TEXT_FIELDS, (example[field] for field in fields), strict=False))
  return row | ({"label": tf.strings.to_number(example[score])} if score else {})


def entailed(dataset: tf.data.Dataset, fields: Sequence[str], label: Any) -> tf.data.Dataset:
  """Keeps the pairs with this label."""
  kept = dataset.filter(lambda example: tf.equal(example["label"], label))
  return columns(kept, fields=fields)


def register_embedding(
  name: str,
  source: seqio.DataSource,
  to_texts: Callable,
  texts: int,
  scored: bool = False,
) -> seqio.Task:
  """Registers a task of rows with `first`, `second`, ... texts: `to_texts` is its step from the source's examples.

  Pairs are scored by retrieval among the seconds of a split, triplets by the share of anchors that are nearer to the
  positive, scored pairs by the correlation of the cosine. Single texts have no score.
  """
  postprocessor, metric_fns = None, []
  if scored:
    postprocessor, metric_fns = encoder_scores.regression, [metrics.pearson_corrcoef, metrics.spearman_corrcoef]
  elif texts == 2:
    metric_fns = [metrics.retrieval]
  elif texts > 2:
    postprocessor, metric_fns = encoder_scores.nearest_text, [metrics.accuracy]
  return register_task(
    name,
    source=source,
    preprocessors=[to_texts, seqio.CacheDatasetPlaceholder(), functools.partial(encode_texts, texts=texts)],
    output_features=encoder_features(**({"labels": score_labels()} if scored else {})),
    postprocess_fn=postprocessor,
    metric_fns=metric_fns,
  )


class TextColumns(ColumnFiles):
  """Texts of JSON lines, and their score, which is read as text."""

  def _values(self, file: OriginalFile, number: int, record: Mapping[str, Any]) -> list[str]:
    given = {field: record.get(field) for field in self.fields}
    texts = [value for field, value in given.items() if field not in _SCORES]
    scores = [value for field, value in given.items() if field in _SCORES]
    if not all(isinstance(value, str) for value in texts) or not all(type(value) in (int, float) for value in scores):
      raise file.malformed(number, f"{', '.join(self.fields)}: texts, and a number as score", record)
    if not all(text.strip() for text in texts[1:]):  # a row without a query has a document that others are not about
      raise file.malformed(number, f"texts that are not empty as {', '.join(self.fields[1:])}", record)
    return [str(value) for value in given.values()]


def register_texts(name: str, files: Mapping[str, str]) -> seqio.Task:
  """Registers JSON lines of pairs, triplets, single texts or scored pairs; the names of their fields tell which."""
  path, record = first_row(TextFiles(files), next(iter(files)))
  fields = []
  for known in _COLUMNS:
    if (found := next((field for field in known if field in record), None)) is None:
      break
    fields.append(found)
  if not fields:
    raise UserError(
      f"no text to embed in {path}",
      found=", ".join(record) or "no fields",
      expected='{"anchor": ..., "positive": ...}, optionally "negative" and "negative_2" to "negative_6"; '
      '{"text": ...}; or {"sentence1": ..., "sentence2": ..., "score": ...}',
    )
  score = next((field for field in _SCORES if field in record), None) if len(fields) == 2 else None
  source = TextColumns(files, [*fields, *([score] if score else [])])
  to_texts = functools.partial(columns, fields=tuple(fields), score=score)
  return register_embedding(name, source, to_texts, len(fields), scored=bool(score))


def _read_triplets(path: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
  rows = (
    (row["premise"], row["hypothesis"], row["label"]) for row in read_json_lines(path, embedded_tasks.SNLI.fields)
  )
  return triplets(rows)


def _read_sentences(path: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
  rows = read_json_lines(path, embedded_tasks.SNLI.fields)
  return ({"text": text} for text in _unique(row[name] for row in rows for name in ("premise", "hypothesis")))


def _unique(texts: Iterable[str]) -> Iterator[str]:
  return iter(dict.fromkeys(texts))


class SnliTriplets(JsonLinesSource):
  """Triplets of SNLI's pairs."""

  _read = staticmethod(_read_triplets)


class SnliSentences(JsonLinesSource):
  """The sentences of SNLI's pairs, each once."""

  _read = staticmethod(_read_sentences)


_TRIPLET = ("anchor", "positive", "negative")
_PAIR = ("premise", "hypothesis")
_SQUAD = seqio.TfdsDataSource("squad/v1.1:3.0.0", splits=("train", "validation"))
_SNLI = embedded_tasks.SNLI.files
for _name, _source, _label in (
  ("all_nli", seqio.TfdsDataSource("all_nli/pairs:1.0.0", splits=("train", "validation", "test")), 0),
  ("snli", embedded_tasks.SNLI, "entailment"),
):
  _step = functools.partial(entailed, fields=_PAIR, label=_label)
  register_embedding(f"{_name}_pairs_embedding", _source, _step, texts=2)
for _name, _source in (
  ("all_nli", seqio.TfdsDataSource("all_nli/triplets:1.0.0", splits=("train", "validation", "test"))),
  ("snli", SnliTriplets(_SNLI, _TRIPLET)),
):
  register_embedding(f"{_name}_triplets_embedding", _source, functools.partial(columns, fields=_TRIPLET), texts=3)
register_embedding(
  "snli_sentences_embedding", SnliSentences(_SNLI, ["text"]), functools.partial(columns, fields=("text",)), texts=1
)
# Retrieval: the sentence that entails a hypothesis, among those of the split; the passage that answers a question.
register_embedding(
  "snli_retrieval_embedding",
  embedded_tasks.SNLI,
  functools.partial(entailed, fields=_PAIR[::-1], label="entailment"),
  texts=2,
)
register_embedding(
  "squad_retrieval_embedding", _SQUAD, functools.partial(columns, fields=("question", "context")), texts=2
)
