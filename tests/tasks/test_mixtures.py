"""Mixtures: rates by hand and by seqio, shares measured on seqio's data, and conflicting definitions."""

import collections
import functools
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import seqio
import tensorflow as tf
from absl import logging as absl_logging

from t5like.errors import UserError
from t5like.tasks import registry
from t5like.tasks.library.corpora import register_corpus
from t5like.tasks.mixtures import mixing_rates, register_mixture, shares, training_examples
from t5like.tasks.quiet_start import load_seqio

REPOSITORY = Path(__file__).resolve().parents[2]


def proportions(name):
  """The share of each task in a mixture's training examples."""
  return {share.task: share.share for share in shares(seqio.MixtureRegistry.get(name))}


def read_rows(split, shuffle_files, seed=None, *, letter, size):
  return tf.data.Dataset.from_tensor_slices([f"{letter} {i}" for i in range(size)]).map(lambda text: {"targets": text})


@pytest.fixture(scope="module")
def corpora():
  """Registers three tasks with 100, 400 and 2,500 rows."""
  sizes = {"mixed_a": 100, "mixed_b": 400, "mixed_c": 2_500}
  for name, size in sizes.items():
    source = seqio.FunctionDataSource(
      functools.partial(read_rows, letter=name[-1], size=size), splits=["train"], num_input_examples={"train": size}
    )
    features = {"targets": registry.default_features()["targets"]}
    registry.register_task(
      name, source=source, preprocessors=[seqio.preprocessors.tokenize], output_features=features, metric_fns=[]
    )
  return sizes


def test_rates_by_hand():
  sizes = {"a": 100, "b": 400, "c": 2_500, "d": 0}
  assert mixing_rates(sizes) == {"a": 100, "b": 400, "c": 2_500, "d": 0}
  assert mixing_rates(sizes, maximum=900) == {"a": 100, "b": 400, "c": 900, "d": 0}
  assert mixing_rates(sizes, temperature=2) == pytest.approx({"a": 10, "b": 20, "c": 50, "d": 0})
  assert mixing_rates(sizes, maximum=900, temperature=2) == pytest.approx({"a": 10, "b": 20, "c": 30, "d": 0})
  with pytest.raises(UserError, match="positive temperature"):
    mixing_rates(sizes, temperature=0)


@pytest.mark.parametrize("maximum", [None, 50, 500, 2**21])
@pytest.mark.parametrize("temperature", [1.0, 2.0, 3.5])
def test_rates_equal_seqios(corpora, maximum, temperature):
  rates = mixing_rates(corpora, maximum, temperature)
  for name in corpora:
    task = seqio.TaskRegistry.get(name)
    assert rates[name] == pytest.approx(seqio.mixing_rate_num_examples(task, maximum, temperature=temperature))


def test_shares_by_hand(corpora):
  register_mixture("by_size", list(corpora), maximum=500)
  assert proportions("by_size") == pytest.approx({"mixed_a": 0.1, "mixed_b": 0.4, "mixed_c": 0.5})
  register_mixture("alike", list(corpora), "equal")
  assert proportions("alike") == pytest.approx(dict.fromkeys(corpora, 1 / 3))
  register_mixture("between", list(corpora), "temperature", leave_out=["mixed_b"])
  assert proportions("between") == pytest.approx({"mixed_a": 10 / 60, "mixed_c": 50 / 60})  # temperature 2
  assert [(s.task, s.size, s.rate) for s in shares(seqio.MixtureRegistry.get("between"))] == [
    ("mixed_a", 100, 10.0),
    ("mixed_c", 2_500, 50.0),
  ]


def test_seqio_samples_with_these_shares(corpora):
  register_mixture("drawn", corpora, "temperature", maximum=900)  # 10 : 20 : 30
  dataset = seqio.get_mixture_or_task("drawn").get_dataset(None, "train", shuffle=False, seed=1, num_epochs=None)
  vocabulary = registry.default_features()["targets"].vocabulary
  rows = list(dataset.take(3_000).as_numpy_iterator())
  drawn = collections.Counter(vocabulary.decode(row["targets"].tolist())[0] for row in rows)
  for letter, share in zip("abc", (1 / 6, 2 / 6, 3 / 6), strict=True):
    # Four standard deviations of a binomial draw.
    assert drawn[letter] / 3_000 == pytest.approx(share, abs=4 * (share * (1 - share) / 3_000) ** 0.5)


def test_benchmarks_have_the_published_weights():
  assert "glue" in registry.mixture_names()
  glue, super_glue = proportions("glue"), proportions("super_glue")
  # 949,101 examples in total, 392,702 of them MNLI; 185,673 in total, 138,854 of them ReCoRD.
  assert glue["glue_mnli"] == pytest.approx(392_702 / 949_101) and glue["glue_mnli_matched"] == 0
  assert super_glue["super_glue_record"] == pytest.approx(138_854 / 185_673)
  assert super_glue["dpr"] == pytest.approx(1_322 / 185_673)
  assert set(proportions("glue_equal").values()) == {0.125, 0.0}
  # RTE is in both with half of its 2,490 rows each, of 949,101 + 185,673 - 2,490.
  assert proportions("glue_and_super_glue")["glue_rte"] == pytest.approx(1_245 / 1_132_284)
  assert seqio.MixtureRegistry.get("glue_temperature").get_rate(seqio.TaskRegistry.get("glue_cola")) == 8_551**0.5


def test_leave_one_out():
  names = registry.mixture_names()
  assert len([n for n in names if n.startswith("glue_without_")]) == 8
  assert len([n for n in names if n.startswith("super_glue_without_")]) == 9
  without = proportions("glue_without_cola")
  assert "glue_cola" not in without and without["glue_mnli"] == pytest.approx(392_702 / (949_101 - 8_551))
  assert not any("mnli" in task for task in proportions("glue_without_mnli"))


def test_the_same_mixture_can_be_registered_twice_but_not_a_different_one(corpora):
  first = register_mixture("twice", list(corpora), maximum=500)
  assert register_mixture("twice", list(corpora), maximum=500) is first
  with pytest.raises(UserError, match="already registered with other rates") as error:
    register_mixture("twice", list(corpora), maximum=400)
  assert "mixed_b" in str(error.value)
  with pytest.raises(UserError, match="cannot name a mixture 'snli': a task has that name"):
    register_mixture("snli", list(corpora))
  with pytest.raises(UserError, match="cannot name a task 'twice': a mixture has that name"):
    register_corpus("twice", {"train": "x.jsonl"})


def test_invalid_mixtures_are_refused(corpora):
  with pytest.raises(UserError, match="no task 'mixed_x'"):
    register_mixture("bad", ["mixed_x"])
  with pytest.raises(UserError, match="no task 'mixed_d'") as error:
    register_mixture("bad", list(corpora), leave_out=["mixed_d"])
  assert "mixed_a" in str(error.value)
  with pytest.raises(UserError, match="no strategy 'equals'") as error:
    register_mixture("bad", list(corpora), "equals")
  assert "nearest  equal" in str(error.value)
  with pytest.raises(UserError, match="takes no temperature"):
    register_mixture("bad", list(corpora), temperature=2.0)
  with pytest.raises(UserError, match="takes no maximum"):
    register_mixture("bad", list(corpora), "equal", maximum=5)
  with pytest.raises(UserError, match="has no tasks left"):
    register_mixture("bad", ["mixed_a"], leave_out=["mixed_a"])
  with pytest.raises(UserError, match="have different features") as error:
    register_mixture("bad", ["mixed_a", "glue_rte"])
  assert "glue_rte  inputs, targets" in str(error.value)
  with pytest.raises(UserError, match="is a mixture, not a task") as error:
    registry.find_task("super_glue")
  assert "super_glue_cb" in str(error.value)
  assert registry.find_task_or_mixture("super_glue").name == "super_glue"


def test_an_unknown_size_must_be_given(corpora, tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_text('{"text": "a"}\n')
  task = register_corpus("of_unknown_size", {"train": path})
  with pytest.raises(UserError, match="size of task 'of_unknown_size' is unknown"):
    training_examples(task)
  register_mixture("given_sizes", {"of_unknown_size": 300, "mixed_a": 100})
  assert proportions("given_sizes") == {"of_unknown_size": 0.75, "mixed_a": 0.25}
  seqio.MixtureRegistry.remove("by_seqio")
  mixture = seqio.MixtureRegistry.add("by_seqio", ["of_unknown_size"], default_rate=seqio.mixing_rate_num_examples)
  with pytest.raises(UserError, match="rate of task 'of_unknown_size' in the mixture 'by_seqio' cannot be computed"):
    shares(mixture)


def test_impossible_rates_and_splits_are_named(corpora):
  mixture = seqio.MixtureRegistry.add("negative", [("mixed_a", -1.0), ("mixed_b", 3)])
  with pytest.raises(UserError, match="invalid rate of task 'mixed_a' in the mixture 'negative': -1"):
    shares(mixture)
  register_mixture("misspelled_split", ["mixed_a", "mixed_b"], "equal")
  with pytest.raises(UserError, match="nearest +train"):
    shares(seqio.MixtureRegistry.get("misspelled_split"), "trian")


def test_a_source_without_files_is_named(tmp_path):
  features = {"targets": registry.default_features()["targets"]}
  source = seqio.TextLineDataSource({"train": str(tmp_path / "none*.txt")})
  task = registry.register_task(
    "without_files", source=source, preprocessors=[seqio.preprocessors.tokenize], output_features=features
  )
  with pytest.raises(UserError, match="no files for split 'train' of task 'without_files'") as error:
    registry.check_split(task, "train")
  assert "none*.txt" in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
  "module",
  [
    "from t5like.tasks.mixtures import register_mixture\nregister_mixture('mine', {'snli': 3, 'conll2003': 1})",
    "import t5like.tasks.shipped, seqio\nseqio.MixtureRegistry.add('mine', [('snli', 3), ('conll2003', 1)])",
  ],
)
def test_a_module_that_mixes_shipped_tasks_can_be_imported(tmp_path, module):
  """Runs in a new process, where nothing is registered yet, like the first cell of a notebook."""
  (tmp_path / "my_mixtures.py").write_text(module)
  program = "import my_mixtures, seqio; print(sorted(t.name for t in seqio.get_mixture_or_task('mine').tasks))"
  env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
  done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
  assert done.stdout.strip() == "['conll2003', 'snli']", done.stderr


def test_seqio_does_not_note_that_tasks_lack_its_cache(corpora):
  load_seqio()
  logger, shown, verbosity = absl_logging.get_absl_logger(), [], absl_logging.get_verbosity()
  handler = logging.Handler()
  handler.emit = lambda record: shown.append(record.getMessage())
  logger.addHandler(handler)
  absl_logging.set_verbosity(absl_logging.WARNING)  # other tests may have changed it
  try:
    assert seqio.mixing_rate_num_examples(registry.find_task("mixed_a")) == 100
    absl_logging.warning("another warning")
  finally:
    logger.removeHandler(handler)
    absl_logging.set_verbosity(verbosity)
  assert shown == ["another warning"]
