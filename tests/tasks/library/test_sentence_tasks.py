"""SWAG, IMDb, TREC-6, AllNLI, SICK and STS: from rows in the original file formats to text and encoder examples."""

import io
import json
import tarfile

import pytest
import seqio
import tensorflow_datasets as tfds
from golden_rows import features

from t5like.errors import UserError
from t5like.tasks import registry
from t5like.tasks.preparation import catalogue, storing
from t5like.tasks.preparation.files import Folder
from t5like.vocabularies import load_vocabulary

BERT = load_vocabulary("bert_uncased")

SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
# The first row has a quoted comma, as many captions do.
SWAG_ROW = '0,anetv_1,3,"He sits. He","He sits, alone.",He,gold,sleeps.,"eats, then drinks.",runs.,flies.'
SICK_HEADER = (
  "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tentailment_AB\tentailment_BA\t"
  "sentence_A_original\tsentence_B_original\tsentence_A_dataset\tsentence_B_dataset\tSemEval_set"
)
# Ten training rows, so that a tenth of them is not empty.
REVIEWS = {
  "train/pos": {
    "0_9.txt": "Great.\n",
    "1_7.txt": "Café <br /> scene.",
    **{f"{n}_8.txt": f"Film {n}." for n in range(2, 9)},
  },
  "train/neg": {"0_1.txt": "Dull."},
  "train/unsup": {"0_0.txt": "It rained."},
  "test/pos": {"0_10.txt": "Fine."},
  "test/neg": {"0_2.txt": "Bad."},
}


def sick_row(number, score, entailment, part):
  row = [number, f"A {number}", f"B {number}", entailment, score, "x", "y", "A", "B", "FLICKR", "FLICKR", part]
  return "\t".join(map(str, row))


def write(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, encoding="utf-8", newline="")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
  """The original files of all data sets, a few rows each."""
  top = tmp_path_factory.mktemp("originals")
  write(top / "swag/train.csv", f"{SWAG_HEADER},label\n{SWAG_ROW},1\n{SWAG_ROW},3\n")
  write(top / "swag/test.csv", f"{SWAG_HEADER}\n{SWAG_ROW}\n")
  for folder, files in REVIEWS.items():
    for name, text in files.items():
      write(top / "aclImdb" / folder / name, text)
  trec = [
    b"NUM:date When was Ozzy born ?",
    b"DESC:manner How did serfdom develop ?",
    b"ENTY:other sister\xf0city ?",
    *(b"HUM:ind Who is number %d ?" % number for number in range(7)),
  ]
  (top / "train_5500.label").write_bytes(b"\n".join(trec) + b"\n")
  write(top / "TREC_10.label", "LOC:city Where is Rome ?\n")
  parts = ["TRAIN", "TRAIN", "TRIAL", "TEST"]
  rows = [sick_row(n, s, "NEUTRAL", part) for n, s, part in zip((1, 4, 5, 9), (4.5, 1, 3.24, 5), parts, strict=True)]
  write(top / "SICK.txt", "\n".join([SICK_HEADER, *rows]) + "\n")
  write(top / "STS12-en-test/STS.input.MSRvid.txt", 'A man runs.\tA "man" walks.\nOne.\tTwo.\n')
  write(top / "STS12-en-test/STS.gs.MSRvid.txt", "3.250\n0.000\n")
  write(top / "STS12-en-test/STS.input.ALL.txt", "A man runs.\tA man walks.\n")
  write(top / "STS12-en-test/STS.gs.ALL.txt", "3.250\n")
  write(top / "STS16-en-test/STS2016.input.headlines.txt", "a\tb\turl\turl\nc\td\turl\turl\ne\tf\turl\turl\n")
  write(top / "STS16-en-test/STS2016.gs.headlines.txt", "5\n\n1\n")
  snli = [
    {"sentence1": "Men play.", "sentence2": "People play.", "gold_label": "entailment"},
    {"sentence1": "Men play.", "sentence2": "Men sleep.", "gold_label": "contradiction"},
    {"sentence1": "Men play.", "sentence2": "It rains.", "gold_label": "-"},
  ]
  mnli = [{"sentence1": "Tea is hot.", "sentence2": "Tea is green.", "gold_label": "neutral"}]
  for name, rows in (("snli_1.0/snli_1.0_train", snli), ("multinli_1.0/multinli_1.0_train", mnli)):
    write(top / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
  return top


@pytest.fixture(scope="module")
def prepared(originals, tmp_path_factory):
  """Everything prepared by name of a data set, group or task; seqio reads it from there."""
  out = tmp_path_factory.mktemp("tfds")
  reports = {}
  for name in ("swag", "imdb", "trec_6", "sick_r", "sts", "all_nli"):
    reports |= {report.title: report for report in storing.prepare_all(name, originals, out)}
  override = seqio.utils._TFDS_DATA_DIR_OVERRIDE
  seqio.set_tfds_data_dir_override(str(out))
  yield reports
  seqio.utils._TFDS_DATA_DIR_OVERRIDE = override


def examples(task, split="train"):
  task = registry.find_task(task) if isinstance(task, str) else task
  return list(task.get_dataset({"inputs": 64, "targets": 64}, split, shuffle=False).as_numpy_iterator())


def texts(name, split="train"):
  task = registry.find_task(name).replace(output_features=features())
  found = ((e["inputs_pretokenized"].decode(), e["targets_pretokenized"].decode()) for e in examples(task, split))
  return sorted(found)


def pieces(example):
  return " ".join(BERT.piece(token) for token in example["inputs"])


def test_the_text_to_text_forms(prepared):
  swag = (
    "swag ending0: sleeps. ending1: eats, then drinks. ending2: runs. ending3: flies. sent1: He sits, alone. sent2: He"
  )
  assert texts("swag") == [(swag, "ending1"), (swag, "ending3")]
  assert texts("swag", "test") == [(swag, "<unk>")]
  held_out = {"train": 9, "validation": 1, "test": 2}
  reviews = {split: texts("imdb", split) for split in held_out}
  assert {split: len(found) for split, found in reviews.items()} == held_out
  assert {
    ("imdb text: Café <br /> scene.", "positive"),
    ("imdb text: Dull.", "negative"),
    ("imdb text: Great.", "positive"),
  } <= {*reviews["train"], *reviews["validation"]}
  assert texts("trec_6", "test") == [("trec_6 text: Where is Rome ?", "location")]
  questions = texts("trec_6", "train") + texts("trec_6", "validation")
  assert len(questions) == 10 and {
    ("trec_6 text: How did serfdom develop ?", "description"),
    ("trec_6 text: When was Ozzy born ?", "number"),
    ("trec_6 text: sister city ?", "entity"),
    ("trec_6 text: Who is number 0 ?", "human"),
  } <= {*questions}
  assert texts("all_nli") == [
    ("all_nli hypothesis: Men sleep. premise: Men play.", "contradiction"),
    ("all_nli hypothesis: People play. premise: Men play.", "entailment"),
    ("all_nli hypothesis: Tea is green. premise: Tea is hot.", "neutral"),
  ]
  assert texts("sick_r") == [
    ("sick_r sentence1: A 1 sentence2: B 1", "4.4"),
    ("sick_r sentence1: A 4 sentence2: B 4", "1.0"),
  ]
  assert texts("sick_r", "validation") == [("sick_r sentence1: A 5 sentence2: B 5", "3.2")]
  assert texts("sts12", "test") == [
    ('sts12 sentence1: A man runs. sentence2: A "man" walks.', "3.2"),
    ("sts12 sentence1: One. sentence2: Two.", "0.0"),
  ]
  assert [target for _, target in texts("sts16", "test")] == ["5.0", "1.0"]


@pytest.mark.slow
def test_the_encoder_forms(prepared):
  found = sorted((e for e in examples("swag_classification") if e["group"] == 0), key=lambda e: e["second"])
  assert [(pieces(e), int(e["labels"])) for e in found] == [
    ("[CLS] he sits , alone . [SEP] he eats , then drinks . [SEP]", 1),
    ("[CLS] he sits , alone . [SEP] he flies . [SEP]", 0),
    ("[CLS] he sits , alone . [SEP] he runs . [SEP]", 0),
    ("[CLS] he sits , alone . [SEP] he sleeps . [SEP]", 0),
  ]
  assert [int(e["labels"]) for e in examples("swag_classification", "test")] == [-1] * 4
  assert [(pieces(e), int(e["labels"])) for e in examples("trec_6_classification", "test")] == [
    ("[CLS] where is rome ? [SEP]", 5)
  ]
  assert {(pieces(e), int(e["labels"])) for e in examples("imdb_classification", "test")} == {
    ("[CLS] fine . [SEP]", 1), ("[CLS] bad . [SEP]", 0)
  }  # fmt: skip
  assert ("[CLS] tea is hot . [SEP] tea is green . [SEP]", 1) in [
    (pieces(e), int(e["labels"])) for e in examples("all_nli_classification")
  ]
  (pair,) = examples("sick_r_classification", "validation")
  assert (pieces(pair), float(pair["labels"])) == ("[CLS] a 5 [SEP] b 5 [SEP]", pytest.approx(3.24))
  assert sorted(float(e["labels"]) for e in examples("sts12_classification", "test")) == [0, 3.25]


def test_embedded_snli_has_an_encoder_form():
  task = registry.find_task("snli_classification")
  (example,) = task.get_dataset({"inputs": 64}, "train", shuffle=False).take(1).as_numpy_iterator()
  assert pieces(example) == (
    "[CLS] a person on a horse jumps over a broken down airplane . [SEP] "
    "a person is training his horse for a competition . [SEP]"
  )
  assert int(example["labels"]) == 1  # neutral, as in MNLI


def test_tables_compare_with_the_published_sizes(prepared):
  official = {title: {s.split: s.official for s in report.splits} for title, report in prepared.items()}
  assert official["swag"] == {"train": 73_546, "validation": 20_006, "test": 20_005}
  assert official["all_nli/pairs"]["train"] == 549_367 + 392_702
  notes = {title: [s.note for s in report.splits] for title, report in prepared.items()}
  assert notes["sts/16"] == ["left out: 1 without a score"]
  assert "left out: 1 without a label that annotators agree on" in notes["all_nli/pairs"]
  assert prepared["sts/13"].folder is None and prepared["sts/12"].folder is not None


def test_triplets(prepared):
  """By hand: only `Men play.` entails one sentence and contradicts another; both ways round make two triplets."""
  source = seqio.TfdsDataSource("all_nli/triplets:1.0.0", splits=["train"])
  found = {tuple(row[name].decode() for name in ("anchor", "positive", "negative"))
           for row in source.get_dataset("train", shuffle=False).as_numpy_iterator()}  # fmt: skip
  assert found == {("Men play.", "People play.", "Men sleep."), ("People play.", "Men play.", "Men sleep.")}


def rows_by_split(name, folder):
  (dataset,) = catalogue.find_datasets(name, Folder(folder))
  splits = catalogue.find_splits(dataset, Folder(folder))
  return dataset, {split.name: list(split.rows(split)) for split in splits if split.rows}


def encoded(dataset, rows):
  """Returns the rows as TFDS stores them: a text may be given as bytes."""
  texts = ((key, {k: v.decode() if isinstance(v, bytes) else v for k, v in row.items()}) for key, row in rows)
  return sorted((str(key), repr(dataset.features.encode_example(row))) for key, row in texts)


def test_trec_and_imdb_rows_equal_the_official_builders(originals, tmp_path):
  dataset, rows = rows_by_split("trec", originals)
  for split, name in (("train", "train_5500.label"), ("test", "TREC_10.label")):
    assert encoded(dataset, rows[split]) == encoded(dataset, dataset.builder._generate_examples(originals / name))
  archive = tmp_path / "aclImdb_v1.tar.gz"
  with tarfile.open(archive, "w:gz") as out:
    out.add(originals / "aclImdb", "aclImdb")
  dataset, rows = rows_by_split("imdb_reviews", originals)
  assert {split: len(found) for split, found in rows.items()} == {"train": 10, "test": 2, "unsupervised": 1}
  for split, directory in (("train", "train"), ("test", "test"), ("unsupervised", "train")):
    members = tfds.download.iter_archive(archive, tfds.download.ExtractMethod.TAR_GZ)
    official = dataset.builder._generate_examples(members, f"aclImdb/{directory}", labeled=split != "unsupervised")
    assert encoded(dataset, rows[split]) == encoded(dataset, official)
  assert {s: encoded(dataset, r) for s, r in rows.items()} == {
    s: encoded(dataset, r) for s, r in rows_by_split("imdb_reviews", tmp_path)[1].items()
  }


@pytest.mark.parametrize(
  ("name", "file", "content", "message"),
  [
    ("swag", "train.csv", f"{SWAG_HEADER},label\n{SWAG_ROW},4\n", "(?s)train.csv:2.*0 to 3 as label.*found +4"),
    ("swag", "train.csv", f"{SWAG_HEADER}\n{SWAG_ROW}\n", "(?s)train.csv:1.*a column 'label'"),
    ("swag", "train.csv", f"{SWAG_HEADER},label\n1,2\n", "(?s)train.csv:2.*12 columns"),
    ("trec", "train_5500.label", "NUM When ?\n", "(?s)train_5500.label:1.*a label such as NUM:date"),
    ("trec", "train_5500.label", "NUM:date a\nX:date b\n", "(?s)train_5500.label:2.*one of DESC"),
    ("sick", "SICK.txt", f"{SICK_HEADER}\n{sick_row(1, 9, 'NEUTRAL', 'TRAIN')}\n", "(?s)SICK.txt:2.*from 0 to 5"),
    ("sick", "SICK.txt", "a\tb\n", "(?s)SICK.txt:1.*a column 'pair_ID'"),
    ("all_nli/pairs", "snli_1.0_train.jsonl", '{"sentence1": "a", "sentence2": "b", "gold_label": "yes"}',
     "(?s)snli_1.0_train.jsonl:1.*one of entailment"),
  ],
)  # fmt: skip
def test_bad_rows_are_named(name, file, content, message, tmp_path):
  write(tmp_path / file, content)
  with pytest.raises(UserError, match=message):
    rows_by_split(name, tmp_path)


def test_sts_files_must_have_as_many_scores_as_pairs(tmp_path):
  write(tmp_path / "STS.input.x.txt", "a\tb\nc\td\n")
  write(tmp_path / "STS.gs.x.txt", "1\n")
  with pytest.raises(UserError, match="(?s)STS.input.x.txt.*1 lines, as in STS.gs.x.txt"):
    rows_by_split("sts/14", tmp_path)
  with pytest.raises(UserError, match="sts has no configuration '17'"):
    catalogue.find_datasets("sts/17", Folder(tmp_path))


def test_a_damaged_archive_is_reported(tmp_path):
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w:gz") as out:
    member = tarfile.TarInfo("aclImdb/train/pos/0_9.txt")
    member.size = 5
    out.addfile(member, io.BytesIO(b"Fine."))
  (tmp_path / "aclImdb_v1.tar.gz").write_bytes(buffer.getvalue()[:40])
  with pytest.raises(UserError, match="(?s)archive is damaged.*download it again"):
    rows_by_split("imdb_reviews", tmp_path)
