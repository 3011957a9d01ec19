"""A run reads exactly the examples that seqio produces, for many kinds of pipelines."""

import functools
import itertools

import numpy as np
import pytest
import seqio
import seqio_shapes
import tensorflow as tf

from t5like import data
from t5like.data.layouts import LAYOUTS, Examples
from t5like.data.rows import read_examples
from t5like.objectives import Lengths, SpecialTokens
from t5like.tasks import streaming
from t5like.tasks.seqio_vocabularies import as_seqio
from t5like.vocabularies import load_vocabulary

TINY = load_vocabulary("tiny")
LENGTHS = seqio_shapes.LENGTHS
ROW = Lengths(raw=14, inputs=14, targets=6)
SPECIAL = SpecialTokens.of(TINY)
CONVERTERS = {
  "encoder_decoder": functools.partial(seqio.EncDecFeatureConverter, pack=False),
  "prefix_lm": functools.partial(seqio.PrefixLMFeatureConverter, pack=False),
  "decoder": functools.partial(seqio.LMFeatureConverter, pack=False),
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
  return seqio_shapes.register(tmp_path_factory.mktemp("files"), as_seqio(TINY))


SHAPES = {
  **{f"shape_{name}": kind for name, (kind, _) in seqio_shapes.STEPS.items()},
  **dict.fromkeys(["shape_inputs_without_eos", "shape_text_lines", "shape_files", "shape_tf_examples"], "text"),
  **dict.fromkeys(["shape_labels_as_ids", "shape_all_ids", "shape_bytes", "shape_targets_in_windows"], "tokens"),
}
CACHED = [name for name, kind in SHAPES.items() if kind != "stream"]


def reference(name, layout, **settings):
  """Returns seqio's examples in the layout of a model."""
  task = seqio.get_mixture_or_task(name)
  if getattr(task, "requires_caching", False):  # seqio would read only its own cache, with the same examples
    task = task.replace(
      preprocessors=[s for s in task.preprocessors if not isinstance(s, seqio.CacheDatasetPlaceholder)]
    )
  lengths = {name: LENGTHS[name] for name in task.output_features if name in LENGTHS}
  dataset = task.get_dataset(lengths, "train", **settings)
  keep = lambda example: {name: tf.cast(example[name], tf.int32) for name in lengths}  # noqa: E731
  return CONVERTERS[layout]()(dataset.map(keep), lengths).as_numpy_iterator()


def layout_of(name):
  return ["decoder"] if name == "shape_targets_in_windows" else ["encoder_decoder", "prefix_lm"]


def cache_of(t5like, name, folder):
  lengths = ",".join(f"{feature}={length}" for feature, length in LENGTHS.items())
  t5like("cache", name, "--vocabulary=tiny", f"--out={folder}", f"--lengths={lengths}")
  base = data.cache_folder(folder, name, "train", "tiny", TINY.fingerprint)
  record = data.read_record(base)
  found = base if record.kind == "text" else data.finished_folder(base, LENGTHS)
  return record, (data.open_cache(found, rebuild_command="") if record.kind != "stream" else None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CACHED)
def test_cached_examples_equal_seqios(t5like, kinds, tmp_path, name):
  assert kinds[name] == SHAPES[name]
  record, cache = cache_of(t5like, name, tmp_path)
  assert record.kind == SHAPES[name]
  assert bool(record.why) == (record.kind != "text")
  examples = read_examples(cache, np.arange(cache.examples), ROW, SPECIAL)
  for layout in layout_of(name):
    expected = list(reference(name, layout, shuffle=False))
    ours = LAYOUTS[layout](examples, ROW if "inputs" in cache.features else Lengths(6, 0, 6), SPECIAL.start)
    assert len(expected) == cache.examples > 0
    for feature in expected[0]:
      if feature in ours:
        np.testing.assert_array_equal(ours[feature], np.stack([row[feature] for row in expected]), err_msg=feature)
    assert {"decoder_target_tokens", "decoder_loss_weights", "decoder_input_tokens"} <= set(ours) & set(expected[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name for name, kind in SHAPES.items() if kind == "stream"])
def test_random_pipelines_are_streamed_as_seqio_does(t5like, kinds, tmp_path, name):
  record, _ = cache_of(t5like, name, tmp_path)
  assert record.kind == "stream" and "draws random numbers" in record.why
  assert list(seqio_shapes.STEPS[name.removeprefix("shape_")][1])[0].__name__ in record.why or "dropped" in record.why
  if name == "shape_random_python":
    return  # its numbers come from Python, not from seqio's seed
  task = streaming.with_vocabulary(seqio.TaskRegistry.get(name), "train", TINY, None)
  batches = streaming.Stream(task, "train", LENGTHS, rows=4, seed=11)
  settings = {"shuffle": True, "seed": 11, "num_epochs": None}
  expected = itertools.islice(reference(name, "encoder_decoder", **settings), 40)
  for _ in range(10):
    texts = next(batches).texts
    ours = LAYOUTS["encoder_decoder"](Examples(texts.inputs, texts.targets, 4), ROW, SPECIAL.start)
    for row in range(4):
      for feature, value in next(expected).items():
        np.testing.assert_array_equal(ours[feature][row], value, err_msg=feature)


def test_random_steps_are_drawn_once_for_evaluation(t5like, kinds, tmp_path):
  options = ["--vocabulary=tiny", f"--out={tmp_path}", "--lengths=inputs=14,targets=6", "--evaluation"]
  t5like("cache", "shape_random_tokens", "--split=validation", *options)
  base = data.cache_folder(tmp_path, "shape_random_tokens", "validation", "tiny", TINY.fingerprint)
  assert data.read_record(base).kind == "stream"  # training must not read this cache
  cache = data.open_cache(data.finished_folder(base, LENGTHS), rebuild_command="")
  assert cache.examples == len(seqio_shapes.ROWS)
  fields = list(cache.fields())
  assert [example["targets_pretokenized"] for example in fields] == [targets for _, targets in seqio_shapes.ROWS]


def test_each_task_of_a_mixture_is_cached_by_its_own_kind(t5like, kinds, tmp_path):
  t5like("cache", "shape_nested", "--vocabulary=tiny", f"--out={tmp_path}", "--lengths=inputs=14,targets=6")
  folder = data.cache_folder(tmp_path, "shape_nested", "train", "tiny", TINY.fingerprint)
  rates = data.read_mixture(folder, rebuild_command="")
  assert rates == {"shape_plain": 0.75, "shape_prefix_lm": 0.25, "shape_filtered": 2.0}
  t5like("cache", "shape_dynamic", "--vocabulary=tiny", f"--out={tmp_path}")
  folder = data.cache_folder(tmp_path, "shape_dynamic", "train", "tiny", TINY.fingerprint)
  assert data.read_mixture(folder, rebuild_command="") == {
    "shape_plain": 5.0,
    "shape_mapped": float(len("shape_mapped")),
  }


def test_the_vocabulary_of_the_model_replaces_that_of_the_task(t5like, kinds, tmp_path):
  """Runs the same steps, registered with T5's vocabulary, for a model with another one."""
  kept = {}
  for vocabulary in ("t5", "tiny"):
    (tmp_path / vocabulary).mkdir()
    seqio_shapes.register(tmp_path / vocabulary, as_seqio(vocabulary))
    _, cache = cache_of(t5like, "shape_prefix_lm", tmp_path / vocabulary / "tokens")
    kept[vocabulary] = [cache.example(number) for number in range(cache.examples)]
  for a, b in zip(kept["t5"], kept["tiny"], strict=True):
    for feature in a:
      np.testing.assert_array_equal(a[feature], b[feature])


def test_a_corpus_with_a_t5like_objective_is_cached_as_text(t5like, tmp_path):
  t5like("cache", "novels_span_corruption", "--vocabulary=tiny", f"--out={tmp_path}")
  folder = data.cache_folder(tmp_path, "novels_span_corruption", "train", "tiny", TINY.fingerprint)
  assert data.read_record(folder).kind == "text" and data.open_cache(folder, rebuild_command="").is_corpus
