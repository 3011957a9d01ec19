"""A template for a custom task: copy this file to your working directory, e.g. as my_tasks.py, and edit it.

t5like tasks show yes_or_no --task_modules=my_tasks
t5like train --gin_file=models/t5/small.gin --gin_file=runs/finetune.gin --gin.TASK=yes_or_no \
    --gin.TASK_MODULES="['my_tasks']" --gin.INIT_FROM=my/checkpoint --gin.MODEL_DIR=runs/yes_or_no

It runs unchanged on the sentence pairs that ship with the package.
"""

from pathlib import Path

import seqio
import tensorflow as tf

import t5like.tasks
from t5like.tasks import metrics, postprocessors
from t5like.tasks.preprocessors import text_to_text
from t5like.tasks.registry import default_features, register_task
from t5like.tasks.sources import JsonLinesSource

# The source: JSON lines and the fields to read. Any seqio source works, such as
# seqio.TfdsDataSource("glue/rte:2.0.0") or seqio.TextLineDataSource({"train": "train.tsv"}).
FOLDER = Path(t5like.tasks.__file__).parent / "embedded"
SOURCE = JsonLinesSource(
  {"train": FOLDER / "snli.train.jsonl.gz", "validation": FOLDER / "snli.validation.jsonl.gz"},
  fields=["premise", "hypothesis", "label"],
)


@seqio.map_over_dataset
def question(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Builds the model's input and target; other fields would be passed on to the postprocessor."""
  prompt = ["If ", example["premise"], " is it true that ", example["hypothesis"]]
  answer = tf.where(tf.equal(example["label"], "entailment"), "yes", "no")
  return {"inputs": tf.strings.join(prompt), "targets": answer}


def said_yes(targets: list[str], predictions: list[str]) -> dict[str, float]:
  """Computes the share of "yes". A custom metric is defined at module level, so that it can be imported by name."""
  del targets
  return {"said_yes": 100 * sum(answer == "yes" for answer in predictions) / len(predictions)}


register_task(
  "yes_or_no",
  source=SOURCE,
  preprocessors=text_to_text(question),
  output_features=default_features(),
  postprocess_fn=postprocessors.strip_text,
  metric_fns=[metrics.accuracy, said_yes],
)
