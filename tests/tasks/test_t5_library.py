"""Every task of the t5 library, unchanged, compared with seqio. Needs `pip install t5==0.9.4 --no-deps` and babel."""

import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf
from golden_rows import raw_dataset, rows
from test_seqio_parity import LENGTHS, ROW, SPECIAL, TINY, cache_of, reference

from t5like.data.layouts import LAYOUTS, Examples
from t5like.data.rows import read_examples
from t5like.objectives import Lengths
from t5like.tasks import streaming
from t5like.tasks.seqio_vocabularies import as_seqio, with_vocabulary

pytestmark = pytest.mark.slow
DOCUMENTS = [f"{' '.join(f'word{(7 * i + j) % 50}' for j in range(40 + i))}." for i in range(60)]


def library_tasks():
  """Yields the tasks over sources for which we have rows, under new names."""
  pytest.importorskip("t5")
  import t5.data.tasks  # noqa: F401  registers them

  for name in sorted(seqio.TaskRegistry.names()):
    task = seqio.TaskRegistry.get(name)
    if not isinstance(task.source, seqio.TfdsDataSource) or name.startswith("own_"):
      continue
    data_set = task.source.tfds_dataset.name.partition(":")[0]
    if data_set.startswith("c4"):
      dataset = tf.data.Dataset.from_tensor_slices({"text": DOCUMENTS})
    elif data_set in rows():
      dataset = raw_dataset(data_set, rows()[data_set])
    else:
      continue
    source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None, dataset=dataset: dataset, ["train"])
    features = with_vocabulary(task.output_features, as_seqio(TINY))
    own = task.replace(name=f"own_{name}", source=source, output_features=features)
    seqio.TaskRegistry.remove(own.name)
    seqio.TaskRegistry.add_provider(own.name, own)
    yield own


def test_examples_of_every_task_equal_seqios(t5like, tmp_path):
  kinds = {}
  for task in library_tasks():
    if task.name.startswith("own_c4_prefix_lm_objective"):
      continue  # these need inputs and targets of equal length, or create a decoder's features
    if task.name.startswith("own_glue_wnli_v002_simple_eval"):
      continue  # fails in seqio on our rows, some of which differ from WNLI's
    record, cache = cache_of(t5like, task.name, tmp_path)
    kinds[task.name] = record.kind
    if record.kind == "stream":
      model_task = streaming.with_vocabulary(task, "train", TINY, None)
      stream = streaming.Stream(model_task, "train", LENGTHS, rows=2, seed=3)
      expected = itertools.islice(reference(task.name, layout(task), shuffle=True, seed=3, num_epochs=None), 20)
      batches = [next(stream).texts for _ in range(10)]
      ours = [LAYOUTS[layout(task)](Examples(b.inputs, b.targets, 2), length(task), SPECIAL.start) for b in batches]
      ours = {feature: np.concatenate([batch[feature] for batch in ours]) for feature in ours[0]}
    else:
      if cache.is_corpus:
        continue  # plain text, which t5like objectives corrupt
      expected = reference(task.name, layout(task), shuffle=False)
      examples = read_examples(cache, np.arange(cache.examples), length(task), SPECIAL)
      ours = LAYOUTS[layout(task)](examples, length(task), SPECIAL.start)
    expected = list(expected)
    for feature in expected[0]:
      if feature in ours:
        theirs = np.stack([row[feature] for row in expected])
        np.testing.assert_array_equal(ours[feature], theirs, err_msg=f"{task.name} {feature}")
  print(kinds)
  assert kinds["own_c4_v220_span_corruption"] == kinds["own_c4_v220_prefix_lm"] == "stream"
  assert kinds["own_glue_cola_v002"] == kinds["own_squad_v010_allanswers"] == "text"
  assert len(kinds) >= 40


def layout(task):
  return "encoder_decoder" if "inputs" in task.output_features else "decoder"


def length(task):
  return ROW if "inputs" in task.output_features else Lengths(6, 0, 6)
