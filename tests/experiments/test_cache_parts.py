"""Which tasks are cached in parts, one per file here, and what --force keeps of an earlier attempt."""

import pytest
import seqio
import tensorflow as tf

from t5like.experiments.cache_building import CacheSettings, TaskCacheBuilder, build_token_cache, find
from t5like.experiments.token_caches import token_cache
from t5like.tasks.caching import source_shards
from t5like.vocabularies import load_vocabulary

VOCABULARY = seqio.ByteVocabulary()


def texts_of(settings):
  """Returns the texts of a cache, and the number of its shards."""
  vocabulary = load_vocabulary("byte")
  cache = token_cache(settings.task, "byte", root=settings.root)
  texts = [vocabulary.decode(cache.example(n)["targets"].tolist()) for n in range(cache.examples)]
  return texts, len(cache.manifest["shards"])


@pytest.fixture
def cached(tmp_path, monkeypatch):
  """Caches a task of three files with a step before `tokenize`; returns its texts, those of seqio, and the parts."""
  monkeypatch.setattr(source_shards, "_PART_BYTES", 1)
  for number in range(3):
    (tmp_path / f"{number}.txt").write_text("".join(f"file {number} document {n}\n" for n in range(20)))
  source = seqio.TextLineDataSource({"train": str(tmp_path / "*.txt")})

  def cache(name, step):
    rename = lambda ds: ds.map(lambda line: {"targets": line})  # noqa: E731
    steps = [rename, step, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]
    feature = seqio.Feature(VOCABULARY, add_eos=True)
    task = seqio.TaskRegistry.add(
      f"{name}_{tmp_path.name}", source=source, preprocessors=steps, output_features={"targets": feature}
    )
    settings = CacheSettings(task.name, "byte", root=str(tmp_path / "caches"), workers=0)
    build_token_cache(settings, lambda message: None)
    found, shards = texts_of(settings)
    theirs = seqio.get_mixture_or_task(task.name).get_dataset(None, "train", shuffle=False).as_numpy_iterator()
    return found, [VOCABULARY.decode(row["targets"].tolist()) for row in theirs], shards

  yield cache
  for name in list(seqio.TaskRegistry.names()):
    if name.endswith(tmp_path.name):
      seqio.TaskRegistry.remove(name)


@pytest.mark.parametrize(
  "name, step",
  [
    ("take", lambda ds: ds.take(25)),
    ("skip", lambda ds: ds.skip(50)),
    (
      "enumerate",
      lambda ds: ds.enumerate().map(
        lambda n, row: {"targets": tf.strings.join([tf.strings.as_string(n), row["targets"]])}
      ),
    ),
    ("every_other", lambda ds: ds.shard(2, 1)),
  ],
)  # fmt: skip
def test_a_step_on_the_whole_dataset_keeps_the_source_whole(cached, name, step):
  found, theirs, shards = cached(name, step)
  assert found == theirs and shards == 1


@pytest.mark.parametrize(
  "name, step",
  [
    ("map", lambda ds: ds.map(lambda row: {"targets": tf.strings.upper(row["targets"])}, num_parallel_calls=2)),
    ("filter", lambda ds: ds.filter(lambda row: tf.strings.regex_full_match(row["targets"], ".*[13579]"))),
    ("unbatch", lambda ds: ds.map(lambda row: {"targets": tf.stack([row["targets"], "two"])}).unbatch()),
    ("flat_map", lambda ds: ds.flat_map(lambda row: tf.data.Dataset.from_tensors(row).repeat(2))),
  ],
)
def test_steps_on_single_examples_run_part_by_part(cached, name, step):
  found, theirs, shards = cached(name, step)
  assert sorted(found) == sorted(theirs) and shards == 3


def test_force_keeps_nothing_of_an_unfinished_attempt(cached, tmp_path, monkeypatch):
  """What a preprocessor has read may have changed since."""
  suffix = ["old"]
  steps = lambda ds: ds.map(lambda row: {"targets": tf.strings.join([row["targets"], " ", suffix[0]])})  # noqa: E731
  cached("forced", steps)
  name = f"forced_{tmp_path.name}"
  settings = CacheSettings(name, "byte", root=str(tmp_path / "caches"), workers=0, force=True)
  builder = TaskCacheBuilder(settings)
  job = builder.job(find(settings))

  def interrupted():
    raise KeyboardInterrupt

  monkeypatch.setattr(TaskCacheBuilder, "job", lambda self, task: job)
  job.parts[2] = interrupted
  with pytest.raises(KeyboardInterrupt):
    build_token_cache(settings, lambda message: None)
  monkeypatch.undo()
  monkeypatch.setattr(source_shards, "_PART_BYTES", 1)
  suffix[0] = "new"
  build_token_cache(settings, lambda message: None)
  texts, _ = texts_of(settings)
  assert len(texts) == 60 and all(text.endswith(" new") for text in texts)
