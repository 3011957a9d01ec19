"""A seqio feature converter from the features of an encoder task to an encoder's batch."""

from __future__ import annotations

from collections.abc import Mapping

import seqio
import tensorflow as tf

_SPEC = seqio.FeatureConverter.FeatureSpec
# Per-token features and their names in a batch.
_PER_TOKEN = {
  "inputs": "encoder_input_tokens",
  "token_types": "encoder_token_types",
  "order": "encoder_order",
  "targets": "encoder_target_tokens",
  "weights": "encoder_loss_weights",
}


class EncoderFeatureConverter(seqio.FeatureConverter):
  """Converts encoder tasks: `seqio.get_dataset(task, {"inputs": 128}, feature_converter=EncoderFeatureConverter())`.

  It converts the features that a task has: `labels` of classification (an integer), spans (two integers)
  and regression (a float); `targets` and `weights` of tagging and masked language modeling. Only the
  length of `inputs` is needed.
  """

  TASK_FEATURES = {}
  MODEL_FEATURES = {}
  PACKING_FEATURE_DTYPES = None

  def __init__(self):
    super().__init__(pack=False)

  def __call__(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
    spec, length = ds.element_spec, task_feature_lengths["inputs"]
    per_token = [name for name in _PER_TOKEN if name in spec]
    lengths = dict.fromkeys(per_token, length)
    self.TASK_FEATURES = {name: _SPEC(dtype=tf.int32, rank=1) for name in per_token}
    self.MODEL_FEATURES = {
      _PER_TOKEN[name]: _SPEC(dtype=tf.float32 if name == "weights" else tf.int32, rank=1) for name in per_token
    }
    self.MODEL_FEATURES |= dict.fromkeys(("encoder_segment_ids", "encoder_positions"), _SPEC(dtype=tf.int32, rank=1))
    if "labels" in spec:
      labels = _SPEC(dtype=spec["labels"].dtype, rank=spec["labels"].shape.rank)
      self.TASK_FEATURES["labels"] = self.MODEL_FEATURES["labels"] = labels
      lengths["labels"] = spec["labels"].shape[0] if labels.rank else 1
    return super().__call__(ds, lengths)

  def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
    length = task_feature_lengths["inputs"]

    def convert(example: dict) -> dict:
      count = tf.size(example["inputs"])
      batch = {
        "encoder_segment_ids": _padded(tf.ones([count], tf.int32), length),
        "encoder_positions": _padded(tf.range(count), length),
      }
      for name, model_name in _PER_TOKEN.items():
        if name in self.TASK_FEATURES:
          batch[model_name] = tf.cast(_padded(example[name], length), self.MODEL_FEATURES[model_name].dtype)
      return batch | ({"labels": example["labels"]} if "labels" in self.TASK_FEATURES else {})

    return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
    return {name: task_feature_lengths["labels" if name == "labels" else "inputs"] for name in self.MODEL_FEATURES}


def _padded(values: tf.Tensor, length: int) -> tf.Tensor:
  values = values[:length]
  values = tf.pad(values, [[0, length - tf.size(values)]])
  values.set_shape([length])
  return values
