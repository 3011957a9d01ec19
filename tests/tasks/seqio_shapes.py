"""Tasks as a T5X user writes them, in plain seqio without t5like; each covers a different kind of pipeline.

`register(folder, vocabulary)` registers all of them over files in `folder`, and returns their names.
"""

import functools
import random

import seqio
import tensorflow as tf

WORDS = "rain wind sun snow fog hail storm cloud frost dew".split()
ROWS = [
  (f"{WORDS[i % 10]} and {' '.join(WORDS[: i % 7])} over {WORDS[(3 * i) % 10]}", f"{WORDS[i % 7]} {WORDS[i % 3]}")
  for i in range(17)
]
LENGTHS = {"inputs": 14, "targets": 6}  # truncates some inputs and targets


def read_rows(split, shuffle_files, seed=None):
  inputs, targets = zip(*ROWS, strict=True)
  return tf.data.Dataset.from_tensor_slices({"inputs": list(inputs), "targets": list(targets)})


def function_source():
  return seqio.FunctionDataSource(read_rows, splits=["train", "validation"])


@seqio.map_over_dataset
def with_prefix(example, prefix="weather: "):
  return {**example, "inputs": tf.strings.join([prefix, example["inputs"]])}


@seqio.map_over_dataset
def tabbed(line):
  inputs, targets = tf.unstack(tf.strings.split(line, "\t"), num=2)
  return {"inputs": inputs, "targets": targets}


def long_enough(dataset, least=3):
  return dataset.filter(lambda example: tf.size(tf.strings.split(example["inputs"])) > least)


@seqio.map_over_dataset
def first_words(example, sequence_length):
  words = tf.strings.split(example["inputs"])[: sequence_length["inputs"] // 4]
  return {**example, "inputs": tf.strings.reduce_join(words, separator=" ")}


def not_too_many_tokens(dataset, output_features):
  vocabulary = output_features["inputs"].vocabulary
  return dataset.filter(lambda example: tf.size(vocabulary.encode_tf(example["inputs"])) < 20)


@seqio.map_over_dataset
def halves(example):
  """Splits tokens as in a deterministic prefix LM: the first half is the input, the second the target."""
  tokens = example["targets"]
  middle = tf.size(tokens) // 2
  return {"inputs": tokens[:middle], "targets": tokens[middle:]}


@seqio.map_over_dataset
def encoded(example, output_features):
  return {name: output_features[name].vocabulary.encode_tf(example[name]) for name in ("inputs", "targets")}


def each_word(dataset):
  def split(example):
    words = tf.strings.split(example["inputs"])
    return tf.data.Dataset.from_tensor_slices(
      {"inputs": words, "targets": tf.fill(tf.shape(words), example["targets"])}
    )

  return dataset.flat_map(split)


def joined(dataset):
  """Joins the tokens of four examples into one."""
  dataset = dataset.map(lambda example: {"targets": example["targets"], "inputs": example["inputs"]})
  dataset = dataset.padded_batch(4)
  return dataset.map(lambda rows: {name: tf.boolean_mask(ids, ids > 0) for name, ids in rows.items()})


@seqio.map_over_dataset
def with_numbers(example):
  return {
    **example,
    "weight": tf.constant(3, tf.int32),
    "spans": tf.constant([1, 2, 5], tf.int32),
    "choices": tf.constant([[1, 2], [3, 4]], tf.int32),
  }


@seqio.map_over_dataset
def labeled(example):
  return {"inputs": example["inputs"], "targets": tf.reshape(1 + tf.strings.length(example["targets"]) % 3, [1])}


@seqio.map_over_dataset
def counted(example):
  return {"inputs": tf.range(1, 4 + tf.strings.length(example["inputs"]) % 30), "targets": tf.constant([7, 8, 9])}


@seqio.map_over_dataset
def targets_alone(example):
  return {"targets": tf.strings.join([example["inputs"], example["targets"]], " ")}


def windows(dataset):
  """Cuts the tokens into rows of five."""
  return dataset.map(lambda e: e["targets"]).unbatch().batch(5).map(lambda ids: {"targets": ids})


@seqio.map_over_dataset(num_seeds=1)
def dropped(example, seed):
  kept = tf.random.stateless_uniform(tf.shape(example["inputs"]), seed) < 0.7
  return {**example, "inputs": tf.boolean_mask(example["inputs"], kept)}


@seqio.map_over_dataset(num_seeds=1)
def one_of_two_prompts(example, seed):
  prefix = tf.gather(["a: ", "b: "], tf.random.stateless_uniform([], seed, 0, 2, tf.int32))
  return {**example, "inputs": tf.strings.join([prefix, example["inputs"]])}


@seqio.map_over_dataset
def by_python(example):
  text = tf.numpy_function(lambda text: text + random.choice([b" x", b" y", b" z"]), [example["inputs"]], tf.string)
  text.set_shape([])
  return {**example, "inputs": text}


@seqio.map_over_dataset
def upper_by_python(example):
  text = tf.numpy_function(lambda text: text.upper(), [example["inputs"]], tf.string)
  text.set_shape([])
  return {**example, "inputs": text}


TOKENIZE = seqio.preprocessors.tokenize
CLOSED = [TOKENIZE, seqio.preprocessors.append_eos_after_trim]
CACHED = [TOKENIZE, seqio.CacheDatasetPlaceholder(), seqio.preprocessors.append_eos_after_trim]

# Name -> kind of cache and preprocessors; all over the same rows.
STEPS = {
  "plain": ("text", CLOSED),
  "with_placeholder": ("text", CACHED),
  "with_required_placeholder": ("text", [TOKENIZE, seqio.CacheDatasetPlaceholder(required=True), CLOSED[1]]),
  "mapped": ("text", [with_prefix, *CLOSED]),
  "with_arguments": ("text", [functools.partial(with_prefix, prefix="sky? "), *CLOSED]),
  "filtered": ("text", [long_enough, *CLOSED]),
  "with_lambda": ("text", [lambda dataset: dataset.filter(lambda e: tf.strings.length(e["targets"]) > 8), *CLOSED]),
  "one_to_many": ("text", [each_word, *CLOSED]),
  "by_output_features": ("text", [not_too_many_tokens, *CLOSED]),
  "deterministic_python": ("text", [upper_by_python, *CLOSED]),
  "other_numbers": ("text", [with_numbers, *CLOSED]),
  "eos_before_trim": ("text", [TOKENIZE, seqio.preprocessors.append_eos]),
  "eos_twice": ("tokens", [functools.partial(TOKENIZE, with_eos=True), seqio.preprocessors.append_eos]),
  "eos_by_tokenize": ("text", [functools.partial(TOKENIZE, with_eos=True)]),
  "tokenize_and_eos": ("text", [seqio.preprocessors.tokenize_and_append_eos]),
  "no_eos_step": ("text", [TOKENIZE]),
  "by_sequence_length": ("tokens", [first_words, *CLOSED]),
  "cut_on_the_left": ("tokens", [TOKENIZE, seqio.preprocessors.truncate_inputs_left]),
  "prefix_lm": ("tokens", [targets_alone, TOKENIZE, halves, CLOSED[1]]),
  "own_tokenizer": ("tokens", [encoded, CLOSED[1]]),
  "many_to_one": ("tokens", [TOKENIZE, joined, CLOSED[1]]),
  "tokens_twice_eos": ("tokens", [TOKENIZE, seqio.preprocessors.append_eos, halves]),
  "random_tokens": ("stream", [TOKENIZE, dropped, CLOSED[1]]),
  "random_text": ("stream", [one_of_two_prompts, *CLOSED]),
  "random_python": ("stream", [by_python, *CLOSED]),
}


def register(folder, vocabulary):
  """Registers all tasks with features of this vocabulary; returns the kind of cache of each."""
  feature = functools.partial(seqio.Feature, vocabulary)
  features = {"inputs": feature(add_eos=True), "targets": feature(add_eos=True)}
  kinds = {}

  def add(name, kind, steps, source=None, output_features=None):
    seqio.TaskRegistry.remove(f"shape_{name}")
    seqio.TaskRegistry.add(
      f"shape_{name}",
      source=source or function_source(),
      preprocessors=steps,
      output_features=output_features or features,
      metric_fns=[],
    )
    kinds[f"shape_{name}"] = kind

  for name, (kind, steps) in STEPS.items():
    own = (
      features | {"weight": seqio.Feature(seqio.PassThroughVocabulary(9), add_eos=False, rank=0)}
      if (name == "other_numbers")
      else features
    )
    add(name, kind, steps, output_features=own)
  open_ended = {"inputs": feature(add_eos=False), "targets": feature(add_eos=True)}
  add("inputs_without_eos", "text", CLOSED, output_features=open_ended)

  lines = folder / "rows.tsv"
  lines.write_text("".join(f"{inputs}\t{targets}\n" for inputs, targets in ROWS))
  add("text_lines", "text", [tabbed, *CLOSED], seqio.TextLineDataSource({"train": str(lines)}))
  read = lambda path: tf.data.TextLineDataset(path)  # noqa: E731
  files = [str(folder / f"part-{n}.tsv") for n in range(3)]
  for n in range(3):
    (folder / f"part-{n}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in ROWS[n::3]))
  add("files", "text", [tabbed, *CLOSED], seqio.FileDataSource(read, {"train": files}))
  records = str(folder / "rows.tfrecord")
  with tf.io.TFRecordWriter(records) as writer:
    for inputs, targets in ROWS:
      bytes_of = lambda text: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))  # noqa: E731
      members = tf.train.Features(feature={"inputs": bytes_of(inputs), "targets": bytes_of(targets)})
      writer.write(tf.train.Example(features=members).SerializeToString())
  described = {name: tf.io.FixedLenFeature([], tf.string) for name in ("inputs", "targets")}
  add("tf_examples", "text", CLOSED, seqio.TFExampleDataSource({"train": records}, described))

  passed = functools.partial(seqio.Feature, seqio.PassThroughVocabulary(40), add_eos=False)
  add(
    "labels_as_ids", "tokens", [labeled, TOKENIZE], output_features={"inputs": features["inputs"], "targets": passed()}
  )
  add("all_ids", "tokens", [counted], output_features={"inputs": passed(), "targets": passed()})
  of_bytes = seqio.Feature(seqio.ByteVocabulary(), add_eos=True)
  add("bytes", "text" if isinstance(vocabulary, seqio.ByteVocabulary) else "tokens", CLOSED,
      output_features={"inputs": features["inputs"], "targets": of_bytes})  # fmt: skip
  add(
    "targets_in_windows",
    "tokens",
    [targets_alone, TOKENIZE, windows],
    output_features={"targets": feature(add_eos=False)},
  )

  def mixture(name, tasks):
    seqio.MixtureRegistry.remove(f"shape_{name}")
    seqio.MixtureRegistry.add(f"shape_{name}", tasks)
    kinds[f"shape_{name}"] = "mixture"

  mixture("mixture", [("shape_plain", 3.0), ("shape_prefix_lm", 1.0)])
  mixture("nested", [("shape_mixture", 1.0), ("shape_filtered", 2.0)])
  mixture("dynamic", [("shape_plain", lambda task: 5.0), ("shape_mapped", lambda task: len(task.name))])
  return kinds
