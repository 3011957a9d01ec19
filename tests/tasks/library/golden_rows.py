"""Rows as TFDS yields them and the examples of a task, for the tests and make_goldens.py."""

import contextlib
import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t5like.evaluation import scoring
from t5like.tasks import registry
from t5like.tasks.caching import text_pipeline
from t5like.vocabularies import vocabulary_path

FOLDER = Path(__file__).parents[2] / "data" / "tasks"


@functools.cache
def rows() -> dict[str, list[dict]]:
  """Returns raw rows by TFDS name."""
  return json.loads((FOLDER / "rows.json").read_text(encoding="utf-8"))


@functools.cache
def t5_library() -> dict[str, list[dict]]:
  """Returns the examples of the t5 library's tasks for those rows, by our task names."""
  return json.loads((FOLDER / "t5_library.json").read_text(encoding="utf-8"))


def raw_dataset(tfds_name: str, raw: list[dict]) -> tf.data.Dataset:
  """Returns rows with the types and shapes that the TFDS builder declares."""
  features = tfds.builder(tfds_name).info.features
  specs = tf.nest.map_structure(lambda info: tf.TensorSpec(info.shape, info.tf_dtype), features.get_tensor_info())

  def typed(spec, value):
    if isinstance(spec, dict):
      return {name: typed(spec[name], value[name]) for name in spec}
    return tf.constant(value, spec.dtype)

  return tf.data.Dataset.from_generator(lambda: (typed(specs, row) for row in raw), output_signature=specs)


@functools.cache
def features(vocabulary: str = "tiny") -> dict[str, seqio.Feature]:
  """Returns the default features with another vocabulary.

  seqio loads T5's for every data set, which takes longer than the rest: only tests of ids need it.
  """
  pieces = seqio.SentencePieceVocabulary(str(vocabulary_path(vocabulary)), extra_ids=100)
  return {k: dataclasses.replace(feature, vocabulary=pieces) for k, feature in registry.default_features().items()}


def examples(task: seqio.Task, raw: tf.data.Dataset, vocabulary: str = "tiny") -> list[dict]:
  """Returns the task's examples as plain values: texts, token ids, and the fields for evaluation."""
  source = seqio.FunctionDataSource(lambda split, shuffle_files: raw, splits=["all"])
  task = task.replace(source=source, output_features=features(vocabulary))
  dataset = task.get_dataset(None, "all", shuffle=False)
  return [{name: plain(value) for name, value in example.items()} for example in dataset.as_numpy_iterator()]


def plain(value):
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  if isinstance(value, list):
    return [plain(v) for v in value]
  return value.decode("utf-8") if isinstance(value, bytes) else value


@functools.cache
def ours(name: str, tfds_name: str, vocabulary: str = "tiny") -> list[dict]:
  return examples(registry.find_task(name), raw_dataset(tfds_name, rows()[tfds_name]), vocabulary)


@contextlib.contextmanager
def stored(name: str, splits: dict[str, list[dict]], folder: Path):
  """Stores a task's TFDS data set in `folder`, like `t5like tasks prepare`, and yields the task reading from there."""
  task = registry.find_task(name)
  tfds_name, _, version = task.source.tfds_dataset.name.partition(":")
  dataset, _, config = tfds_name.partition("/")
  tfds.dataset_builders.store_as_tfds_dataset(
    name=dataset,
    config=config or None,
    version=version,
    data_dir=str(folder),
    features=tfds.builder(tfds_name).info.features,
    split_datasets={split: raw_dataset(tfds_name, raw) for split, raw in splits.items()},
  )
  task.source.tfds_dataset.override_data_dir(str(folder))
  yield task
  task.source.tfds_dataset.override_data_dir(None)


def scores_of_perfect_answers(name: str, found: list[dict]) -> dict[str, float]:
  """Scores each target's text as its prediction, like a token cache: from JSON, without the registry."""
  named = json.loads(json.dumps(text_pipeline.scoring(registry.find_task(name))))
  postprocess = scoring.find_function(named["postprocessor"]) if named["postprocessor"] else lambda text, **_: text
  rows_ = json.loads(json.dumps(found))
  targets = [postprocess(row["targets_pretokenized"], example=row, is_target=True) for row in rows_]
  answers = [postprocess(row["targets_pretokenized"], example=row, is_target=False) for row in rows_]
  return {
    key: value for entry in named["metrics"] for key, value in scoring.find_function(entry)(targets, answers).items()
  }
