"""Original files are converted to TFDS data sets with the rows of TFDS's builders, and read back through seqio."""

import gzip
import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow_datasets as tfds

from t5like.errors import UserError
from t5like.tasks.preparation import catalogue, storing
from t5like.tasks.preparation.files import Folder

FILES = Path(__file__).resolve().parents[2] / "data/original_files"
GLUE = ["cola", "sst2", "qqp", "stsb", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "ax"]
SUPER_GLUE = ["boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc", "wsc.fixed", "axb", "axg"]


def splits_of(name, folder, **options):
  """Returns the data set and its rows by split."""
  (dataset,) = catalogue.find_datasets(name, Folder(FILES / folder))
  found = catalogue.find_splits(dataset, Folder(FILES / folder), **options)
  return dataset, {split.name: list(split.rows(split)) for split in found if split.rows}


def prepare(name, folder, out, **options):
  return list(storing.prepare_all(name, FILES / folder, out, **options))


def read(name, split, out):
  """Returns the rows as a seqio task reads them."""
  source = seqio.TfdsDataSource(name, tfds_data_dir=str(out), splits=[split])
  return list(source.get_dataset(split, shuffle=False).as_numpy_iterator())


def encoded(dataset, rows):
  return [(str(key), repr(dataset.features.encode_example(row))) for key, row in rows]


@pytest.mark.parametrize("config", GLUE)
def test_glue_rows_equal_the_official_builder(config):
  dataset, rows = splits_of(f"glue/{config}", "glue")
  folder = "diagnostic" if config == "ax" else dataset.builder.builder_config.data_dir
  stems = {"train": "train", "validation": "dev", "test": "test"}
  assert rows.keys() == (
    {"test"} if config == "ax"
    else {"train", *(f"{s}_{k}" for s in ("validation", "test") for k in ("matched", "mismatched"))} if config == "mnli"
    else {"validation", "test"} if config.startswith("mnli_")
    else {"train", "validation", "test"}
  )  # fmt: skip
  for split, got in rows.items():
    part, _, kind = split.partition("_")
    kind = kind or config.removeprefix("mnli").strip("_") if config.startswith("mnli") else ""
    name = "diagnostic" if config == "ax" else f"{stems[part]}_{kind}".strip("_")
    official = dataset.builder._generate_examples(str(FILES / "glue" / folder / f"{name}.tsv"), stems[part])
    assert encoded(dataset, got) == encoded(dataset, official)


def test_qqp_skips_broken_rows_but_counts_them():
  (dataset,) = catalogue.find_datasets("glue/qqp", Folder(FILES / "glue"))
  train = catalogue.find_splits(dataset, Folder(FILES / "glue"))[0]
  # Two of the five lines are a broken row, and one has no label.
  assert [row["idx"] for _, row in train.rows(train)] == [0, 3]
  assert train.left_out == {"with missing columns": 3}


def test_mrpc_from_microsofts_files_is_split_by_glues_ids():
  dataset, rows = splits_of("glue/mrpc", "glue")
  files = {
    "dev_ids": FILES / "glue/MRPC/mrpc_dev_ids.tsv",
    "train": FILES / "glue/MRPC/msr_paraphrase_train.txt",
    "test": FILES / "glue/MRPC/msr_paraphrase_test.txt",
  }
  for split, stem in (("train", "train"), ("validation", "dev"), ("test", "test")):
    official = dataset.builder._generate_examples(None, stem, {name: str(path) for name, path in files.items()})
    assert encoded(dataset, rows[split]) == encoded(dataset, official)
  assert [row["idx"] for _, row in rows["train"]] == [0, 1, 3]  # numbered across train and validation
  assert [row["label"] for _, row in rows["test"]] == [-1, -1]


def test_mrpc_from_the_three_tables():
  _, rows = splits_of("glue/mrpc", "mrpc_tables")
  assert [(r["sentence1"], r["label"], r["idx"]) for _, r in rows["train"]] == [
    ('The mill "closed" on Monday.', 1, 0),
    ("Rain fell on the coast.", 0, 1),
  ]
  assert [(r["sentence2"], r["label"]) for _, r in rows["validation"]] == [("He was the winner.", 1)]
  assert [r["label"] for _, r in rows["test"]] == [-1]


@pytest.mark.parametrize("config", SUPER_GLUE)
def test_super_glue_rows_equal_the_official_builder(config):
  dataset, rows = splits_of(f"super_glue/{config}", "superglue")
  folder = dataset.builder.builder_config.data_url.split("/")[-1].removesuffix(".zip")
  stems = {"train": "train", "validation": "val", "test": "test"}
  for split, got in rows.items():
    stem = folder if config in ("axb", "axg") else stems[split]
    official = dataset.builder._generate_examples(str(FILES / "superglue" / folder / f"{stem}.jsonl"), split)
    assert encoded(dataset, got) == encoded(dataset, official)
  if config == "boolq":
    assert rows.keys() == {"validation", "test"}  # train.jsonl is missing


def test_wsc_fixed_spans_match_the_text():
  _, rows = splits_of("super_glue/wsc.fixed", "superglue")
  spans = [(r["span1_text"], r["span2_text"]) for _, r in rows["train"]]
  assert spans == [("The trophy", "It"), ("Tom", "he")]


def test_record_entities_and_answers_are_sorted_sets():
  _, rows = splits_of("super_glue/record", "superglue")
  ((_, train),) = rows["train"]
  assert train["entities"] == ["Bergen", "Oslo"] and train["answers"] == ["Oslo"]
  assert rows["test"][0][1]["answers"] == []


def test_squad_rows_equal_the_official_builder(tmp_path):
  for name, splits in (("squad/v1.1", ("train", "validation")), ("squad/v2.0", ("validation",))):
    dataset, rows = splits_of(name, "squad")
    assert tuple(rows) == splits
    for split in splits:
      stem = "train" if split == "train" else "dev"
      file = FILES / f"squad/{stem}-{dataset.config}.json"
      if not file.exists():
        file = tmp_path / "plain.json"
        file.write_bytes(lzma.open(FILES / f"squad/{stem}-{dataset.config}.json.xz").read())
      assert encoded(dataset, rows[split]) == encoded(dataset, dataset.builder._generate_examples(str(file)))


def test_answers_with_the_same_id_are_merged():
  _, rows = splits_of("squad/v1.1", "squad")
  ((_, row),) = rows["validation"]
  assert [answer["text"] for answer in row["answers"]] == ["dark", "Rye"]


def test_wmt_corpora_are_in_the_same_splits_as_in_tfds(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # the official parser globs below the current folder
  dataset, rows = splits_of("wmt_t2t_translate/de-en", "wmt")
  assert rows == {
    "train": [
      ("europarl_v7/0/0", {"de": "Der Tag ist kurz.", "en": "The day is short."}),
      ("europarl_v7/0/3", {"de": "Ende.", "en": "The end."}),
    ],
    "validation": [("newstest2013/0/0", {"de": "Guten Tag.", "en": "Good day."})],
    "test": [
      ("newstest2014/0/0", {"en": "One.", "de": "Eins."}),
      ("newstest2014/0/1", {"en": "Two.", "de": "Zwei."}),
    ],
  }

  # The official builder's parser, on the layout of the archives it downloads.
  for name, place in (("europarl-v7.de-en", "training"), ("newstest2013", "dev")):
    (tmp_path / place).mkdir()
    for language in ("de", "en"):
      shutil.copy(FILES / f"wmt/{name}.{language}", tmp_path / place)
  for split, subset in (("train", "europarl_v7"), ("validation", "newstest2013")):
    official = dataset.builder._generate_examples([subset], {subset: [""]})
    assert encoded(dataset, rows[split]) == encoded(dataset, official)


def test_the_source_language_is_inferred_from_the_folder_or_given():
  _, rows = splits_of("wmt_t2t_translate/de-en", "en_de_sample")
  assert rows == {
    "train": [
      ("train-txt/0/0", {"en": "Snow fell.", "de": "Schnee fiel."}),
      ("train-txt/0/1", {"en": "It melted.", "de": "Er schmolz."}),
    ]
  }
  _, swapped = splits_of("wmt_t2t_translate/de-en", "en_de_sample", source_language="de")
  assert swapped["train"][0][1] == {"de": "Snow fell.", "en": "Schnee fiel."}


def test_pairs_in_json_lines(tmp_path):
  rows = [{"translation": {"de": "Ja.", "en": "Yes."}}, {"de": "Nein.", "en": "No."}]
  (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  _, found = splits_of("wmt16_translate/de-en", tmp_path)
  assert [row for _, row in found["train"]] == [{"de": "Ja.", "en": "Yes."}, {"de": "Nein.", "en": "No."}]


def test_conll_columns():
  _, rows = splits_of("wnut_17", "wnut")
  assert rows == {
    "train": [
      (0, {"tokens": ["@ann", "in", "New", "York"], "ner": ["O", "O", "B-location", "I-location"]}),
      (1, {"tokens": ["hi"], "ner": ["O"]}),
    ],
    "validation": [(0, {"tokens": ["Zed", "sings"], "ner": ["B-person", "O"]})],
  }


def test_conll2003_rows_equal_the_official_builder():
  dataset, rows = splits_of("conll2003", "conll2003")
  for split, name in (("train", "train.txt"), ("dev", "valid.txt")):
    official = dataset.builder._generate_examples(FILES / "conll2003" / name)
    assert encoded(dataset, rows[split]) == encoded(dataset, official)


def test_pronoun_rows_equal_the_official_builder():
  dataset, rows = splits_of("definite_pronoun_resolution", "pronouns")
  for split in ("train", "test"):
    official = dataset.builder._generate_examples(FILES / f"pronouns/{split}.c.txt")
    assert encoded(dataset, rows[split]) == encoded(dataset, official)
  assert [row["label"] for _, row in rows["train"]] == [1, 1]


def test_c4_from_compressed_json_lines_keeps_duplicate_urls():
  _, rows = splits_of("c4/en", "c4")
  assert [row["url"][-1] for _, row in rows["train"]] == ["1", "2", "1"]
  assert rows["validation"] == [
    (0, {"text": "Held out.", "url": "", "timestamp": "", "content-type": "", "content-length": ""})
  ]


@pytest.mark.parametrize(
  ("documents", "expected"),
  [("line", ["One.", "Two.", "Three."]), ("paragraph", ["One.\nTwo.", "Three."]), ("file", ["One.\nTwo.\n\nThree."])],
)
def test_plain_text_is_split_into_documents(tmp_path, documents, expected):
  (tmp_path / "novel.txt").write_text("One.\nTwo.\n\nThree.\n")
  _, rows = splits_of("wikipedia/20230601.en", tmp_path, documents=documents)
  assert rows == {"train": [(i, {"text": text, "title": ""}) for i, text in enumerate(expected)]}


def test_any_tfds_data_set_can_be_read_from_json_lines(tmp_path):
  (tmp_path / "train.jsonl").write_text('{"text": "Fine.", "label": "pos"}\n\n{"text": "Poor.", "label": 0}\n')
  _, rows = splits_of("imdb_reviews/plain_text", tmp_path)
  assert rows == {"train": [(0, {"text": "Fine.", "label": "pos"}), (1, {"text": "Poor.", "label": 0})]}


def test_snli_from_its_original_files(tmp_path):
  """Pairs on which annotators do not agree have class -1, as in TFDS; other files have its names."""
  pair = {"annotator_labels": ["neutral"], "sentence1": "A man sleeps.", "sentence2": "He dreams."}
  lines = [json.dumps({**pair, "gold_label": label}) for label in ("neutral", "-")]
  (tmp_path / "snli_1.0_train.jsonl").write_text("\n".join(lines))
  expected = {"premise": "A man sleeps.", "hypothesis": "He dreams."}
  (tmp_path / "snli_1.0_dev.jsonl").write_text(json.dumps({**expected, "label": "contradiction"}))
  (tmp_path / "multinli_1.0_train.jsonl").write_text(json.dumps({**pair, "gold_label": "entailment"}))  # not SNLI's
  _, rows = splits_of("snli", tmp_path)
  assert rows["train"] == [(0, {**expected, "label": "neutral"}), (1, {**expected, "label": -1})]
  assert rows["validation"] == [(0, {**expected, "label": "contradiction"})]


def test_stored_records_are_byte_identical_to_tfds(tmp_path):
  prepare("glue/sst2", "glue", tmp_path / "ours")
  official = tfds.builder_cls("glue")(config="sst2", data_dir=str(tmp_path / "official"))
  folder = FILES / "glue/SST-2"
  official._split_generators = lambda _: {
    split: official._generate_examples(str(folder / f"{stem}.tsv"), stem)
    for split, stem in (("train", "train"), ("validation", "dev"), ("test", "test"))
  }
  official.download_and_prepare()
  for split in ("train", "validation", "test"):
    name = f"glue/sst2/2.0.0/glue-{split}.tfrecord-00000-of-00001"
    assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "official" / name).read_bytes()


@pytest.mark.parametrize(
  ("name", "folder", "version"),
  [
    ("glue/stsb", "glue", "2.0.0"),
    ("super_glue/multirc", "superglue", "1.0.2"),
    ("super_glue/record", "superglue", "1.0.2"),
    ("squad/v2.0", "squad", "3.0.0"),
    ("wmt_t2t_translate/de-en", "wmt", "1.0.0"),
    ("cnn_dailymail", "cnn_dailymail", "3.4.0"),
    ("definite_pronoun_resolution", "pronouns", "1.1.0"),
  ],
)
def test_seqio_reads_the_types_of_the_official_builder(tmp_path, name, folder, version):
  (report,) = prepare(name, folder, tmp_path)
  assert report.folder == tmp_path / name / version
  split = "test" if name == "definite_pronoun_resolution" else "validation"
  source = seqio.TfdsDataSource(f"{name}:{version}", tfds_data_dir=str(tmp_path), splits=[split])
  dataset = source.get_dataset(split, shuffle=False)
  assert dataset.element_spec == tfds.builder(name, data_dir="/nonexistent").info.features.get_tensor_spec()
  assert len(list(dataset)) == next(s.rows for s in report.splits if s.split == split)


def test_stored_values_equal_those_in_the_files(tmp_path):
  prepare("glue/stsb", "glue", tmp_path)
  (row,) = read("glue/stsb:2.0.0", "validation", tmp_path)
  assert row["label"] == np.float32(3.2) and row["sentence1"] == b"Snow lies on the hill." and row["idx"] == 0
  (row,) = read("glue/stsb:2.0.0", "test", tmp_path)
  assert row["label"] == -1.0

  prepare("wnut_17", "wnut", tmp_path)
  (row,) = read("wnut_17:1.0.0", "validation", tmp_path)
  assert row["tokens"].tolist() == [b"Zed", b"sings"] and row["ner"].tolist() == [9, 0]  # B-person is class 9


def test_a_group_prepares_what_it_finds_and_reports_what_is_missing(tmp_path):
  shutil.copytree(FILES / "superglue/CB", tmp_path / "files/CB")
  reports = {r.title: r for r in storing.prepare_all("super_glue", tmp_path / "files", tmp_path / "out")}
  assert {title for title, r in reports.items() if r.folder} == {"super_glue/cb"}
  sizes = {s.split: (s.rows, s.official, s.equal) for s in reports["super_glue/cb"].splits}
  assert sizes == {"train": (2, 250, False), "validation": (2, 56, False), "test": (2, 250, False)}
  assert reports["super_glue/boolq"].splits[0].note == "looked for BoolQ/train.jsonl"
  again = {r.title: r for r in storing.prepare_all("super_glue", tmp_path / "files", tmp_path / "out")}
  assert again["super_glue/cb"].kept


def test_a_registered_task_resolves_to_its_data_set():
  name = "prepared_for_a_test"
  seqio.TaskRegistry.add(
    name,
    source=seqio.TfdsDataSource("glue/rte:1.0.0"),
    preprocessors=[],
    output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
  )
  try:
    (dataset,) = catalogue.find_datasets(name, Folder(FILES))
  finally:
    seqio.TaskRegistry.remove(name)
  assert (dataset.title, dataset.version) == ("glue/rte", "1.0.0")


def test_data_sets_that_are_not_in_tfds(tmp_path):
  (report,) = prepare("my_ner", "wnut", tmp_path, custom_format="conll")
  assert {s.split: s.rows for s in report.splits} == {"train": 2, "validation": 1, "test": None}
  names = tfds.builder("my_ner", data_dir=str(tmp_path)).info.features["ner"].feature.names
  assert names == ["O", "B-location", "I-location", "B-person"]

  (tmp_path / "texts").mkdir()
  with gzip.open(tmp_path / "texts/corpus.train.txt.gz", "wt") as file:
    file.write("alpha\nbeta\n")
  list(storing.prepare_all("my_texts", tmp_path / "texts", tmp_path, custom_format="text"))
  assert sorted(row["text"] for row in read("my_texts:1.0.0", "train", tmp_path)) == [b"alpha", b"beta"]


def test_files_are_found_in_archives_and_one_level_down(tmp_path):
  shutil.make_archive(str(tmp_path / "SST-2"), "zip", FILES / "glue", "SST-2")
  _, zipped = splits_of("glue/sst2", tmp_path)
  _, plain = splits_of("glue/sst2", FILES)  # SST-2 is in FILES/glue
  _, itself = splits_of("glue/sst2", FILES / "glue/SST-2")
  assert zipped == plain == itself and len(plain["train"]) == 4


def test_given_files_take_precedence_over_a_search(tmp_path):
  given = {"validation": [str(FILES / "glue/SST-2/train.tsv")]}
  (report,) = storing.prepare_all("glue/sst2", FILES / "glue", tmp_path, files=given)
  assert {s.split: s.rows for s in report.splits} == {"train": 4, "validation": 4, "test": 2}
  with pytest.raises(UserError, match="no split 'dev'"):
    list(storing.prepare_all("glue/sst2", FILES / "glue", tmp_path, files={"dev": given["validation"]}, force=True))
