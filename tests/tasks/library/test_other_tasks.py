"""Summarization, translation and named entities as text, and properties of every shipped task."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import seqio
from golden_rows import examples, ours, raw_dataset, scores_of_perfect_answers, stored, t5_library

from t5like.errors import UserError
from t5like.tasks import registry
from t5like.tasks.caching import text_pipeline
from t5like.tasks.library import ner, ner_text, translation

FROM_THE_LIBRARY = {
  "cnn_dailymail": "cnn_dailymail",
  "xsum": "xsum",
  "wmt_en_de": "wmt_t2t_translate/de-en",
  "wmt_en_fr": "wmt15_translate/fr-en",
  "wmt_en_ro": "wmt16_translate/ro-en",
}
BY_HAND = {
  "cnn_dailymail": (
    "summarize: (Own) -- The bridge opened on Friday. Crowds came.\n\nIt cost $4 million.",
    "Bridge opens .\nIt cost $4 million .",
  ),
  "xsum": ("summarize: The bridge opened on Friday.\nCrowds came.", "A bridge has opened."),
  "wmt_en_de": ("translate English to German: That is good.", "Das ist gut."),
  "wmt_en_fr": ("translate English to French: That is good.", "C'est bon, n'est-ce pas ?"),
  "wmt_en_ro": ("translate English to Romanian: That is good.", "Acest lucru este bun, știți."),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FROM_THE_LIBRARY)
def test_every_field_equals_the_t5_library(name):
  found, expected = ours(name, FROM_THE_LIBRARY[name], "t5"), t5_library()[name]
  assert found == expected and len(found) >= 6
  assert (found[0]["inputs_pretokenized"], found[0]["targets_pretokenized"]) == BY_HAND[name]


def test_any_pair_of_languages(tmp_path):
  source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"])
  task = translation.register_translation("own_zh", source, "zh-cn", "tlh", names={"tlh": "Klingon"})
  assert task.preprocessors[0].keywords["source_name"] == "Chinese"
  assert task.preprocessors[0].keywords["target_name"] == "Klingon"
  with pytest.raises(UserError, match="unknown language 'xx'") as error:
    translation.register_translation("own_xx", source, "en", "xx")
  assert "names={'xx': 'its English name'}" in str(error.value)


CONLL_2003 = """-DOCSTART- -X- -X- O

U.N. NNP I-NP I-ORG
official NN I-NP O
Ekeus NNP I-NP I-PER
| | | O
Paris NNP I-NP I-LOC
Lyon NNP I-NP B-LOC

"""  # IOB1: B- only where an entity follows another of its type


@pytest.fixture(scope="module")
def ner_task(tmp_path_factory):
  folder = tmp_path_factory.mktemp("ner")
  (folder / "a.conll").write_text(CONLL_2003)
  (folder / "b.conll").write_text(
    "@a\tO\nNew\u00a0York\tB-place\n\t\n[Haters\tO\n]\tB-creative-work\n:\tI-creative-work"
  )
  (folder / "empty.conll").write_text("-DOCSTART- O\n\n")
  (folder / "bad.conll").write_text("fine\tO\nno_tag\n")
  files = {name: folder / f"{name}.conll" for name in ("a", "b", "empty", "bad", "missing")}
  return ner.register_ner("own_entities", files, type_names=ner.TYPE_NAMES)


def test_entities_are_marked_in_the_sentence(ner_task):
  (example,) = text_pipeline.text_examples(ner_task, "a")
  assert example == {
    "inputs": "ner: U.N. official Ekeus / Paris Lyon",
    "targets": "[ U.N. | organization ] official [ Ekeus | person ] / [ Paris | location ] [ Lyon | location ]",
    "tokens": ["U.N.", "official", "Ekeus", "|", "Paris", "Lyon"],
  }
  first, second = text_pipeline.text_examples(ner_task, "b")
  assert first["targets"] == "@a [ New\u00a0York | place ]"
  assert second["inputs"] == "ner: (Haters ) :" and second["targets"] == "(Haters [ ) : | creative-work ]"


def test_tags_are_recovered_exactly(ner_task):
  assert restored(ner_task, "a") == [["B-ORG", "O", "B-PER", "O", "B-LOC", "B-LOC"]]
  assert restored(ner_task, "b") == [["O", "B-place"], ["O", "B-creative-work", "I-creative-work"]]
  found = [e | {"targets_pretokenized": e["targets"]} for e in text_pipeline.text_examples(ner_task, "a")]
  scores = scores_of_perfect_answers("own_entities", found)
  assert scores["f1"] == scores["f1_PER"] == scores["f1_LOC"] == scores["token_accuracy"] == 100


def restored(task, split):
  return [
    task.postprocess_fn(e["targets"], example=e, is_target=True) for e in text_pipeline.text_examples(task, split)
  ]


TOKENS = "Rick met Al in New York 😀 .".split()


@pytest.mark.parametrize(
  ("answer", "tags"),
  [
    ("[ Rick | person ] met Al in [ New York | location ] ⁇ .", "B-person O O O B-location I-location O O"),
    # Words missing, repeated or misspelled; an unclosed type; empty brackets; nested brackets.
    ("[ Rick | person ] met in [ New York | location ]", "B-person O O O B-location I-location O O"),
    ("[ Rik | person ] met met Al in [ Nw York | location ] .", "B-person O O O B-location I-location O O"),
    ("[ Rick | person met Al", "O O O O O O O O"),
    ("[ | person ] Rick | x ] met [ Al", "O O O O O O O O"),
    ("[ Rick met [ Al | person ] in", "O O B-person O O O O O"),
    ("", "O O O O O O O O"),
    ("quite another [ sentence | person ]", None),
  ],
)
def test_the_answer_of_a_model_is_aligned_with_the_sentence(answer, tags):
  example = {"tokens": [token.encode() for token in TOKENS]}  # bytes, as in seqio
  found = ner_text.tags_of_text(answer, example=example)
  assert len(found) == len(TOKENS)
  if tags is not None:
    assert found == tags.split()


def test_unreadable_files_are_named(ner_task, tmp_path):
  for split, message in (("missing", "is missing"), ("empty", "has no sentences"), ("bad", "a line has no tag")):
    with pytest.raises(UserError, match=message) as error:
      list(text_pipeline.text_examples(ner_task, split))
  assert "bad.conll:2" in str(error.value)
  latin = tmp_path / "latin.conll"
  latin.write_bytes("Köln B-LOC\n".encode("latin-1"))
  with pytest.raises(UserError, match="is not utf-8"):
    list(ner.read_conll(latin))
  assert list(ner.read_conll(latin, encoding="latin-1")) == [(["Köln"], ["B-LOC"])]


def test_columns_and_comments_can_be_chosen(tmp_path):
  path = tmp_path / "x.conll"
  path.write_text("# id 1\n1 B-PER _ Ada\n2 I-PER _ Lovelace\n# id 2\n")
  assert list(ner.read_conll(path, token_column=3, tag_column=1, comment="# ")) == [
    (["Ada", "Lovelace"], ["B-PER", "I-PER"])
  ]


def test_class_numbers_of_a_stored_data_set_become_tags(tmp_path):
  row = {
    "tokens": ["EU", "rejects", "German", "call"],
    "ner": [3, 0, 7, 0],
    "pos": [22, 42, 16, 21],
    "chunks": [11, 21, 11, 12],
  }
  with stored("conll2003", {"dev": [row]}, tmp_path) as task:
    (example,) = text_pipeline.text_examples(task, "validation")
  assert example["targets"] == "[ EU | organization ] rejects [ German | miscellaneous ] call"
  assert task.postprocess_fn(example["targets"], example=example, is_target=True) == ["B-ORG", "O", "B-MISC", "O"]


def test_iobes_and_empty_tokens():
  task = registry.find_task("conll2003")
  raw = raw_dataset("conll2003", [{"tokens": ["a b", "", "|]"], "ner": [1, 2, 5], "pos": [0] * 3, "chunks": [0] * 3}])
  (found,) = examples(task, raw)
  assert found["inputs_pretokenized"] == "ner: a_b _ /)"
  assert found["targets_pretokenized"] == "[ a_b _ | person ] [ /) | location ]"
  other = raw.map(lambda example: {"tokens": example["tokens"], "tags": ["B-X", "E-X", "S-X"]})
  (found,) = ner.tagged_text(other).as_numpy_iterator()
  assert found["targets"].decode() == "[ a_b _ | X ] [ /) | X ]"


FAMILIES = ("glue_", "super_glue_", "squad", "wmt_", "cnn_", "xsum", "dpr", "conll", "wnut")


def test_every_shipped_task_can_be_scored_without_the_registry():
  tasks = [seqio.TaskRegistry.get(n) for n in registry.task_names() if n in seqio.TaskRegistry.names()]
  tasks = [task for task in tasks if task.name.startswith(FAMILIES)]
  assert len(tasks) >= 34
  for task in tasks:
    metrics = json.loads(json.dumps(text_pipeline.scoring(task)))["metrics"]
    assert metrics or task.name.removesuffix("_classification").endswith(("_ax", "_axb", "_axg"))
    assert task.splits and task.supports_caching


@pytest.mark.slow
def test_registering_constructs_no_builder_and_is_fast():
  script = """if True:
    import time, seqio, tensorflow_datasets
    from t5like.tasks import registry
    registry.default_features()
    start = time.process_time()
    from t5like.tasks.library import glue, super_glue, squad, summarization, translation, ner
    assert not seqio.utils.LazyTfdsLoader._MEMOIZED_BUILDERS
    print(time.process_time() - start)
  """
  root = Path(__file__).parents[3]
  done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
  assert float(done.stdout.split()[-1]) < 5  # CPU seconds; constructing a builder takes one per task
