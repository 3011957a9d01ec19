"""t5like vocabularies in seqio: the same ids from Python, TensorFlow and a task's pipeline."""

import pickle

import pytest
import seqio
import tensorflow as tf

from t5like.tasks.seqio_vocabularies import WrappedVocabulary, as_seqio
from t5like.vocabularies import load_vocabulary

TEXTS = ["The cat sat.", "", "naïve café 漢字 🙂", "[MASK] <extra_id_0> <|endoftext|>"]


@pytest.fixture(scope="module", params=["t5", "byte", "bert_uncased", "gpt2", "t5:extra_ids=7"])
def pair(request):
  return load_vocabulary(request.param), as_seqio(request.param)


def test_ids_equal_ours(pair):
  ours, theirs = pair
  for text in TEXTS:
    assert list(theirs.encode(text)) == ours.encode(text) == theirs.encode_tf(tf.constant(text)).numpy().tolist()
  assert (theirs.vocab_size, theirs.eos_id) == (ours.vocab_size, ours.eos_id)


def test_decoding(pair):
  ours, theirs = pair
  ids = [*ours.encode("The cat sat."), ours.eos_id]
  assert theirs.decode(ids) == ours.decode(ids)
  rows = tf.constant([ids, ids])
  assert [text.decode() for text in theirs.decode_tf(rows).numpy()] == [ours.decode(ids)] * 2
  assert theirs.decode_tf(tf.constant(ids)).numpy().decode() == ours.decode(ids)


def test_seqio_classes_are_used_where_ids_are_equal():
  assert isinstance(as_seqio("t5"), seqio.SentencePieceVocabulary)
  assert isinstance(as_seqio("byte"), seqio.ByteVocabulary)
  assert isinstance(as_seqio(load_vocabulary("gpt2")), WrappedVocabulary)


def test_batches_are_encoded_together():
  ours, theirs = load_vocabulary("bert_cased"), as_seqio("bert_cased")
  ragged = theirs.encode_tf(tf.constant([["The cat", "sat."], ["", "down"]]))
  assert ragged.to_list() == [[ours.encode("The cat"), ours.encode("sat.")], [[], ours.encode("down")]]


def test_equality_and_pickling():
  one, other = as_seqio(load_vocabulary("bert_cased")), pickle.loads(pickle.dumps(as_seqio("bert_cased")))
  assert one == other and hash(one) == hash(other)
  assert one != as_seqio("bert_uncased") and one != as_seqio("t5")


def test_ids_in_a_task_pipeline(pair):
  ours, theirs = pair
  dataset = tf.data.Dataset.from_tensor_slices({"inputs": TEXTS})
  features = {"inputs": seqio.Feature(theirs, add_eos=True)}
  dataset = seqio.preprocessors.append_eos(seqio.preprocessors.tokenize(dataset, features), features)
  found = [example["inputs"].tolist() for example in dataset.as_numpy_iterator()]
  assert found == [[*ours.encode(text), ours.eos_id] for text in TEXTS]
