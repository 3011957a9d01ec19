"""Streaming through seqio: the run's vocabulary, seqio's packing, sharding by host, and saved state.

No pipeline here calls back into Python while it runs: its teardown could hang (see the module).
"""

import dataclasses
import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.objectives import CATALOGUE
from t5like.tasks import streaming
from t5like.tasks.registry import default_features
from t5like.vocabularies import load_vocabulary

LENGTHS = {"inputs": 40, "targets": 12}
TINY = load_vocabulary("tiny")
NUMBERS = "zero one two three four five six seven eight nine".split()


def rows(name, count=40):
  """Returns questions of different lengths with different answers."""
  texts = [
    f"{name}: what is {' and '.join(NUMBERS[: 1 + i % 5])} of {NUMBERS[i // 10]} {NUMBERS[i % 10]}"
    for i in range(count)
  ]
  return [(text, f"{NUMBERS[i % 10]} {NUMBERS[i // 10]} {name}") for i, text in enumerate(texts)]


def labeled(name, steps=(), features=None, count=40):
  def read(split, shuffle_files):  # takes no seed, like most such functions
    inputs, targets = zip(*rows(name, count), strict=True) if count else ([], [])
    return tf.data.Dataset.from_tensor_slices(
      {"inputs": tf.constant(inputs, tf.string), "targets": tf.constant(targets, tf.string)}
    )

  return seqio.Task(
    name,
    source=seqio.FunctionDataSource(read, splits=["train"]),
    preprocessors=[*steps, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
    output_features=features or default_features(),
  )


def stream(found, seed=7, size=4, **settings):
  return streaming.Stream(
    streaming.with_vocabulary(found, "train", TINY, None), "train", LENGTHS, size, seed, **settings
  )


def texts(batch):
  """Returns (question, answer) of every example in a batch; both must end with EOS."""

  def decoded(side):
    ids = [tokens[:length] for tokens, length in zip(side.tokens, side.lengths, strict=True)]
    assert all(text[-1] == TINY.eos_id for text in ids)
    return [TINY.decode(text[:-1]) for text in ids]

  return list(zip(decoded(batch.texts.inputs), decoded(batch.texts.targets), strict=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pack", [False, True])
def test_examples_are_complete_and_in_the_runs_vocabulary(pack):
  batches = stream(labeled("sum"), pack=pack)
  seen = []
  for _ in range(8):
    batch = next(batches)
    seen += texts(batch)
    if pack:
      sizes = [np.bincount(batch.row, side.lengths) for side in (batch.texts.inputs, batch.texts.targets)]
      assert len(sizes[0]) == 4 and sizes[0].max() <= 40 and sizes[1].max() <= 12
  assert set(seen) <= set(rows("sum")) and len(set(seen)) > 20
  assert len(seen) > 40 if pack else len(seen) == 32


def test_targets_alone_are_packed():
  read = lambda split, shuffle_files: tf.data.Dataset.from_tensor_slices({"targets": NUMBERS})  # noqa: E731
  task = seqio.Task(
    "numbers",
    source=seqio.FunctionDataSource(read, splits=["train"]),
    preprocessors=[
      seqio.preprocessors.tokenize,
      lambda dataset: dataset,  # a step on tokens: the task is no corpus
      seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={"targets": default_features()["targets"]},
  )
  batch = next(stream(task, pack=True))
  sides = batch.texts.inputs, batch.texts.targets
  assert [len(side.lengths) for side in sides] == 2 * [len(batch.row)] and len(batch.row) > 4
  assert not sides[0].lengths.any() and np.bincount(batch.row, sides[1].lengths).max() <= 12
  words = [TINY.decode(ids[: n - 1]) for ids, n in zip(sides[1].tokens, sides[1].lengths, strict=True)]
  assert set(words) <= set(NUMBERS)


def test_examples_that_packing_drops_all_are_refused():
  features = {name: dataclasses.replace(feature, add_eos=False) for name, feature in default_features().items()}
  empty = seqio.map_over_dataset(lambda example: example | {"targets": ""})
  with pytest.raises(UserError, match="of its first 40 examples, all have empty inputs or targets"):
    stream(labeled("sum", [empty], features), pack=True)
  begins = lambda example: tf.strings.regex_full_match(example["targets"], ".* zero .*")  # noqa: E731
  first_half = seqio.map_over_dataset(lambda example: example | {"targets": tf.where(begins(example), "", "x")})
  assert len(next(stream(labeled("sum", [first_half], features), pack=True)).row)
  with pytest.raises(UserError, match="has no examples"):
    next(stream(labeled("sum", count=0), pack=True))


def test_packing_keeps_an_id_of_zero():
  # GPT-2's "!" is 0, which seqio treats as padding.
  given = tf.data.Dataset.from_generator(
    lambda: iter(
      [{"inputs": [0, 5, 0], "targets": [0]}, {"inputs": [7], "targets": [3, 0]}, {"inputs": [], "targets": [1]}]
    ),
    output_signature={name: tf.TensorSpec([None], tf.int32) for name in LENGTHS},
  )
  (batch,) = streaming._packed(given, LENGTHS)(1)
  got = streaming._unpacked({name: value.numpy() for name, value in batch.items()})
  assert got.texts.inputs.lengths.tolist() == [3, 1] and got.texts.inputs.tokens.tolist() == [[0, 5, 0], [7, 0, 0]]
  assert got.texts.targets.lengths.tolist() == [1, 2] and got.texts.targets.tokens.tolist() == [[0, 0], [3, 0]]
  assert got.row.tolist() == [0, 0]


@pytest.mark.slow
def test_a_restored_stream_continues_with_the_same_batches(tmp_path):
  def open_(seed):
    mixture = seqio.Mixture("mixed", [(labeled("sum"), 3.0), (labeled("product"), 1.0)])
    return stream(mixture, seed, pack=True)

  def take(batches, count):
    return [texts(next(batches)) for _ in range(count)]

  first = open_(7)
  begin = take(first, 5)
  assert first.save(tmp_path / "state") is None
  rest = take(first, 12)
  again = open_(7)
  again.restore(tmp_path / "state")
  assert take(again, 12) == rest
  assert take(open_(7), 5) == begin and take(open_(8), 5) != begin
  names = [question.split(":")[0] for batch in begin + rest for question, _ in batch]
  assert 0.6 < names.count("sum") / len(names) < 0.9 and len(names) > 100  # 3 of 4
  (tmp_path / "state.index").write_bytes(b"nothing")
  with pytest.raises(UserError, match="starts over"):
    open_(7).restore(tmp_path / "state")


def test_hosts_read_disjoint_shards():
  shares = []
  for host in range(2):
    batches = stream(labeled("sum"), shard=(host, 2))
    shares.append({pair for _ in range(30) for pair in texts(next(batches))})
  assert not shares[0] & shares[1] and shares[0] | shares[1] == set(rows("sum"))


def test_the_reason_why_tf_data_cannot_save_is_returned(tmp_path):
  @seqio.map_over_dataset
  def draw(example):
    return example | {"number": tf.random.uniform([])}

  batches = stream(labeled("sum"))
  next(batches)
  assert batches.obstacle() is None
  batches = stream(labeled("sum", [draw]))
  next(batches)
  assert batches.obstacle() == "RandomUniform is stateful."
  assert batches.save(tmp_path / "state") == "RandomUniform is stateful."
  assert not list(tmp_path.glob("state*"))


def test_mistakes_are_reported_before_any_batch(tmp_path):
  corpus = seqio.Task(
    "diary",
    source=seqio.TextLineDataSource({"train": str(tmp_path / "none.txt")}),
    preprocessors=[
      functools.partial(seqio.preprocessors.rekey, key_map={"targets": None}),
      seqio.preprocessors.tokenize,
    ],
    output_features={"targets": default_features()["targets"]},
  )
  objective = CATALOGUE["span_corruption"]
  with pytest.raises(UserError, match="is a corpus and needs an objective"):
    streaming.with_vocabulary(corpus, "train", TINY, None)
  with pytest.raises(UserError, match="takes no objective"):
    streaming.with_vocabulary(labeled("sum"), "train", TINY, objective)
  with pytest.raises(UserError, match="no split 'trian'(.|\n)*nearest +train"):
    streaming.with_vocabulary(labeled("sum"), "trian", TINY, None)
  with pytest.raises(UserError, match="has no examples"):
    next(stream(labeled("sum", count=0)))
