"""The embedded tasks in seqio and as read by the token cache."""

import pytest
import seqio

from t5like.errors import UserError
from t5like.tasks import metrics, registry
from t5like.tasks.caching import text_pipeline
from t5like.tasks.library import corpora


@pytest.fixture(scope="module", autouse=True)
def registered():
  registry.find_task("snli")


def test_seqio_reads_snli_in_text_to_text_form():
  lengths = {"inputs": 64, "targets": 8}
  converter = seqio.EncDecFeatureConverter(pack=False)
  dataset = seqio.get_dataset("snli", lengths, dataset_split="validation", shuffle=False, feature_converter=converter)
  batch = next(dataset.as_numpy_iterator())
  vocabulary = seqio.TaskRegistry.get("snli").output_features["inputs"].vocabulary
  text = vocabulary.decode(batch["encoder_input_tokens"].tolist())
  assert text.startswith("snli hypothesis: ") and " premise: " in text
  assert vocabulary.decode(batch["decoder_target_tokens"].tolist()) in ("entailment", "neutral", "contradiction")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("name", ["novels", "snli"])
def test_row_counts_equal_the_registered_ones(name, split):
  task = registry.find_task(name)
  assert sum(1 for _ in text_pipeline.text_examples(task, split)) == task.source.num_input_examples(split)


def test_the_text_pipeline_stops_before_tokenization():
  example = next(text_pipeline.text_examples(registry.find_task("snli"), "train"))
  assert example == {
    "inputs": "snli hypothesis: A person is training his horse for a competition. "
    "premise: A person on a horse jumps over a broken down airplane.",
    "targets": "neutral",
  }


def test_the_corpus_is_prose():
  documents = [e["targets"] for e in text_pipeline.text_examples(registry.find_task("novels"), "train")]
  assert sum(map(len, documents)) > 2_000_000
  assert any("Baskerville" in d for d in documents)


def test_unknown_names_suggest_the_nearest():
  with pytest.raises(UserError, match="no task 'snil'") as error:
    registry.find_task("snil")
  assert "nearest  snli" in str(error.value) and "TASK_MODULES" in str(error.value)
  with pytest.raises(UserError, match="no split 'dev'") as error:
    text_pipeline.describe(registry.find_task("snli"), "dev")
  assert "validation" in str(error.value)
  with pytest.raises(UserError, match="no task module 'my.module'"):
    registry.find_task("x", ["my.module"])
  for file in ("my_tasks.py", "/home/me/my_tasks.py"):
    with pytest.raises(UserError, match="is a file, not the name of a module(.|\n)*expected +my_tasks\n"):
      registry.find_task("x", [file])


def test_the_description_changes_with_the_preprocessor():
  import functools

  from t5like.tasks import preprocessors
  from t5like.tasks.caching.identity import code_identity

  def described(name):
    step = functools.partial(preprocessors.labeled_text, name=name, keys=("premise",), label_key="label")
    return code_identity(step)

  assert described("a") != described("b") and described("a") == described("a")


def test_scoring_functions_can_be_imported_without_the_registry():
  assert text_pipeline.scoring(registry.find_task("snli")) == {
    "postprocessor": {"function": "t5like.tasks.postprocessors:strip_text", "keywords": {}},
    "metrics": [{"function": "t5like.tasks.metrics:accuracy", "keywords": {}}],
  }
  with pytest.raises(UserError, match="cannot be imported by name"):
    text_pipeline._importable(lambda x: x)


def test_accuracy_equals_the_published_value():
  assert metrics.accuracy([0, 0, 2, 1], [0, 1, 2, 1]) == {"accuracy": 75.0}


def test_a_bad_line_is_named(tmp_path):
  from t5like.tasks.sources import read_json_lines

  path = tmp_path / "x.jsonl"
  path.write_text('{"text": "a"}\n{"txt": "b"}\n')
  with pytest.raises(UserError, match="does not match its format") as error:
    list(read_json_lines(path, ["text"]))
  assert f"{path}:2" in str(error.value)


def test_the_same_definition_can_be_registered_twice_but_not_a_different_one(tmp_path):
  def register(file):
    return corpora.register_corpus("registered_twice", {"train": tmp_path / file})

  assert register("a.jsonl") is register("a.jsonl")
  with pytest.raises(UserError, match="already registered with another definition") as error:
    register("b.jsonl")
  assert "differs  source" in str(error.value)
