"""Applies t5like's objectives as seqio preprocessors: takes tokenized documents, returns corrupted rows.

A corpus task has `functools.partial(corrupt, objective=...)` after seqio's `tokenize`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.objectives import Draws, Lengths, Objective, Ragged, Rows, SpecialTokens
from t5like.objectives.cutting import document_rows, sentence_rows, separate, stream_rows
from t5like.objectives.ragged import numbered
from t5like.tasks.seqio_vocabularies import from_seqio

# Number of documents concatenated before rows are cut, as in the original pipeline.
DOCUMENTS = 128
_DEFAULT_LENGTH = 512


def corrupt(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int] | None,
  output_features: Mapping[str, seqio.Feature],
  objective: Objective,
) -> tf.data.Dataset:
  """Converts {"targets": tokens of a document} to the features of `features(objective)`, without EOS.

  Noise depends on seqio's seed and the index of a row, not on how the work is parallelized.
  """
  special = SpecialTokens.of(from_seqio(output_features["targets"].vocabulary))
  lengths = row_lengths(objective, sequence_length)
  objective.check(lengths, special)
  names = list(output_features)
  ranks = [output_features[name].rank for name in names]

  @seqio.map_over_dataset(num_seeds=1)
  def corrupt_documents(documents: tf.RaggedTensor, seed: tf.Tensor) -> dict[str, tf.RaggedTensor]:
    def call(tokens: np.ndarray, document_lengths: np.ndarray, seeds: np.ndarray) -> list[np.ndarray]:
      # seqio's converters shift the targets, so they do not need the extra token of `shifted` objectives.
      rows, numbers = cut(tokens, document_lengths, objective, lengths.raw - int(objective.shifted), special)
      draws = Draws.of(int(seeds[0]), int(seeds[1]), numbers)
      return _flat(objective(rows, draws, special), names)

    types = [tf.int32] * len(names) + [tf.int64]
    *values, counts = tf.numpy_function(call, [documents.values, documents.row_lengths(), seed], types, stateful=False)
    counts.set_shape([len(names), None])
    result = {}
    for number, (name, rank) in enumerate(zip(names, ranks, strict=True)):
      values[number].set_shape([None])
      result[name] = tf.RaggedTensor.from_row_lengths(values[number], counts[number]) if rank else values[number]
    return result

  dataset = dataset.map(lambda example: tf.cast(example["targets"], tf.int32), num_parallel_calls=tf.data.AUTOTUNE)
  dataset = dataset.filter(lambda tokens: tf.size(tokens) > 0).ragged_batch(DOCUMENTS)
  return corrupt_documents(dataset).unbatch()


def row_lengths(objective: Objective, sequence_length: Mapping[str, int] | None) -> Lengths:
  """Returns the objective's lengths for seqio's `sequence_length`."""
  given = sequence_length or {}
  lengths = objective.lengths(given.get("inputs") or given.get("targets") or _DEFAULT_LENGTH)
  targets = given.get("targets")
  if targets and targets < lengths.targets and not objective.targets_vary:
    variant = " (one less in variant 't5')" if hasattr(objective, "variant") else ""
    raise UserError(
      f"{objective.name} of {lengths.inputs} input tokens has {lengths.targets} target tokens{variant}, not {targets}",
      try_=f"sequence_length={{'inputs': {lengths.inputs}, 'targets': {lengths.targets}}}",
    )
  return lengths


def cut(
  tokens: np.ndarray, documents: np.ndarray, objective: Objective, raw: int, special: SpecialTokens
) -> tuple[Rows, np.ndarray]:
  """Cuts concatenated documents into rows as the objective requires; returns the rows and their numbers."""
  if objective.separated:
    tokens, documents = separate(tokens, documents, special.eos)
  if objective.unit == "stream":
    starts, lengths = stream_rows(len(tokens), raw)
  elif objective.unit == "document":
    starts, lengths = document_rows(documents, raw)
  else:
    ends_sentence = np.isin(tokens, np.asarray(special.sentence_ends))
    ends = np.union1d(np.flatnonzero(ends_sentence) + 1, np.cumsum(documents))
    starts, lengths = sentence_rows(ends, len(tokens), raw)
  rows = Ragged.of(tokens[np.repeat(starts, lengths) + numbered(lengths)], lengths)
  others = None
  if objective.needs_others:
    document = np.searchsorted(np.cumsum(documents), starts, side="right")
    others = _rows_of_other_documents(rows, document)
  return Rows(rows.tokens, rows.lengths, others), np.arange(len(starts))


def _rows_of_other_documents(rows: Ragged, document: np.ndarray) -> Ragged:
  """Returns, for each row, the next row that belongs to another document, wrapping around at the end."""
  count = len(document)
  new = np.flatnonzero(document != np.roll(document, 1))
  if not new.size:  # a single document: use another row of it
    return Ragged(np.roll(rows.tokens, -1, axis=0), np.roll(rows.lengths, -1))
  following = new[np.searchsorted(new, np.arange(count), side="right") % len(new)]
  return Ragged(rows.tokens[following], rows.lengths[following])


def _flat(result, names: list[str]) -> list[np.ndarray]:
  """Returns the concatenated values of each feature, and the row lengths [features, rows]."""
  values, lengths = [], []
  for name in names:
    array = getattr(result, name)
    if isinstance(array, Ragged):
      rows = array
    elif array.ndim == 1:
      rows = Ragged(array[:, None], np.ones(len(array), np.int64))
    else:
      rows = Ragged(array, result.inputs.lengths)
    values.append(rows.tokens[rows.valid].astype(np.int32))
    lengths.append(rows.lengths)
  return [*values, np.stack(lengths).astype(np.int64)]


def features(objective: Objective, vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """Returns the seqio features that an objective produces."""
  text = seqio.Feature(vocabulary, add_eos=objective.makes == "pairs" and objective.closed)
  if objective.makes == "pairs":
    has_inputs = objective.lengths(_DEFAULT_LENGTH).inputs > 0
    return {"inputs": text, "targets": text} if has_inputs else {"targets": text}
  flags = seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False)
  named = {"inputs": text, "targets": text, "token_types": flags, "weights": flags}
  if objective.labels_rows:
    named["labels"] = seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False, rank=0)
  if objective.orders_tokens:
    named["order"] = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False)
  return named
