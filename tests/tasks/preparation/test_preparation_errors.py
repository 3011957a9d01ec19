"""Errors in original files are reported with file and line, and leave no partial output."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from full_disk import full_disk

from t5like.errors import UserError
from t5like.tasks.preparation import catalogue, storing
from t5like.tasks.preparation.files import Folder, OriginalFile
from t5like.tasks.preparation.members import holds_json

FILES = Path(__file__).resolve().parents[2] / "data/original_files"


def failure(name, folder, out, **options):
  with pytest.raises(UserError) as error:
    list(storing.prepare_all(name, folder, out, **options))
  return error.value


def all_paths(folder):
  return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


@pytest.fixture
def files(tmp_path):
  """A copy of the files to corrupt."""
  return Path(shutil.copytree(FILES, tmp_path / "files"))


def replace_line(path: Path, line: int, text: str | bytes) -> str:
  lines = path.read_bytes().split(b"\n")
  lines[line - 1] = text.encode() if isinstance(text, str) else text
  path.write_bytes(b"\n".join(lines))
  return f"{path}:{line}"


@pytest.mark.parametrize(
  ("name", "file", "line", "text", "expected", "found"),
  [
    ("glue/sst2", "glue/SST-2/train.tsv", 3, "no label here", "2 columns", "1: no label"),
    ("glue/sst2", "glue/SST-2/train.tsv", 3, "one\ttoo\tmany", "2 columns", "3: one too many"),
    ("glue/sst2", "glue/SST-2/dev.tsv", 2, "fine \t2", "negative, positive, or 0 to 1", "2"),
    ("glue/sst2", "glue/SST-2/dev.tsv", 1, "text\tlabel", "a column 'sentence'", "text, label"),
    ("glue/sst2", "glue/SST-2/dev.tsv", 1, "sentence\tmark", "a column 'label'", "none"),
    ("glue/stsb", "glue/STS-B/train.tsv", 2, "\t".join(["0", *"abcdefgh", "high"]), "a score from 0 to 5", "high"),
    ("glue/cola", "glue/CoLA/train.tsv", 2, "in01\t1\tThe cat.", "4 columns", "3: in01"),
    ("glue/mrpc", "glue/MRPC/msr_paraphrase_train.txt", 3, "7\t1\t2\ta\tb", "0 or 1 as Quality", "7"),
    ("super_glue/cb", "superglue/CB/train.jsonl", 2, '{"premise": ', "a JSON object", '{"premise":'),
    ("super_glue/cb", "superglue/CB/train.jsonl", 2, "[1]", "a JSON object", "[1]"),
    ("super_glue/cb", "superglue/CB/train.jsonl", 2, "[" * 100_000, "a JSON object (nested too deeply)", "[[["),
    ("super_glue/cb", "superglue/CB/train.jsonl", 2, "9" * 5000, "a JSON object (Exceeds the limit", "999 ..."),
    ("super_glue/cb", "superglue/CB/val.jsonl", 1, '{"premise": "a", "hypothesis": "b", "idx": 0}', "'label'", "idx"),
    (
      "super_glue/cb",
      "superglue/CB/val.jsonl",
      1,
      '{"premise": "a", "hypothesis": 5, "idx": 0, "label": "neutral"}',
      "a string as hypothesis",
      "5",
    ),
    (
      "super_glue/cb",
      "superglue/CB/val.jsonl",
      1,
      '{"premise": "a", "hypothesis": "b", "idx": 0, "label": "maybe"}',
      "entailment, contradiction, neutral",
      "maybe",
    ),
    (
      "super_glue/cb",
      "superglue/CB/train.jsonl",
      2,
      '{"premise": "a", "hypothesis": "b", "idx": 0, "label": "neutral"}',
      "a unique id",
      "0, as at 1",
    ),
    ("super_glue/multirc", "superglue/MultiRC/val.jsonl", 1, '{"idx": 0}', "a field 'passage'", "idx"),
    ("wnut_17", "wnut/wnut17train.conll", 2, "in", "a token and a tag", "in"),
    ("wnut_17", "wnut/wnut17train.conll", 3, "New\tB-city", "B-location", "B-city"),
    ("conll2003", "conll2003/train.txt", 4, "met VBD O", "4 columns", "3: met VBD O"),
    ("definite_pronoun_resolution", "pronouns/train.c.txt", 4, "the wasp", "one of the candidates", "the wasp"),
    ("glue/sst2", "glue/SST-2/test.tsv", 3, b"1\tna\xefve", "UTF-8", "the byte 0xef at position 5"),
  ],
)
def test_a_malformed_row_names_file_line_expected_and_found(files, tmp_path, name, file, line, text, expected, found):
  place = replace_line(files / file, line, text)
  error = failure(name, (files / file).parent, tmp_path / "out")
  assert error.lines["file"] == place
  assert expected in error.lines["expected"] and found in error.lines["found"]
  assert all_paths(tmp_path / "out") == []


@pytest.mark.parametrize(
  ("change", "place", "expected"),
  [
    (lambda qas: qas[1].pop("answers"), "data[0].paragraphs[0].qas[1]", "a field 'answers'"),
    (lambda qas: qas[0].update(question=None), "data[0].paragraphs[0].qas[0]", "a string as question"),
    (lambda qas: qas[0]["answers"][0].update(answer_start="x"), "data[0].paragraphs[0].qas[0]", "an integer"),
  ],
)
def test_an_invalid_question_is_named_by_its_path(files, tmp_path, change, place, expected):
  path = files / "squad/train-v1.1.json"
  content = json.loads(path.read_text())
  change(content["data"][0]["paragraphs"][0]["qas"])
  path.write_text(json.dumps(content))
  error = failure("squad/v1.1", files / "squad", tmp_path / "out")
  assert error.lines["file"] == f"{path}:{place}" and expected in error.lines["expected"]


@pytest.mark.parametrize(
  ("text", "line", "expected"),
  [
    ('{"data":\n[}', 2, "JSON (Expecting value at column 2)"),
    ("[" * 100_000, 1, "JSON (nested too deeply)"),
    ("[" + "9" * 5000, 1, "JSON (Exceeds the limit"),
  ],
  ids=["syntax", "depth", "digits"],
)
def test_a_file_of_squad_that_is_not_json(files, tmp_path, text, line, expected):
  path = files / "squad/train-v1.1.json"
  path.write_text(text)
  error = failure("squad/v1.1", files / "squad", tmp_path / "out")
  assert error.lines["file"] == f"{path}:{line}" and error.lines["expected"].startswith(expected)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "9" * 5000], ids=["list", "object", "digits"])
def test_the_first_line_says_what_a_file_holds(tmp_path, text):
  (tmp_path / "part-00000").write_text(f"{text}\n")
  assert holds_json(OriginalFile(tmp_path / "part-00000")) == text.startswith("{")


def test_a_device_is_not_a_file(tmp_path):
  (tmp_path / "train.jsonl").symlink_to("/dev/zero")
  with pytest.raises(UserError, match="train.jsonl is not a file"):
    next(OriginalFile(tmp_path / "train.jsonl").lines())


def test_a_pipe_is_a_file(tmp_path):
  os.mkfifo(tmp_path / "train.txt")
  writer = threading.Thread(target=(tmp_path / "train.txt").write_text, args=("one\ntwo\n",))
  writer.start()
  assert [line for _, line in OriginalFile(tmp_path / "train.txt").lines()] == ["one", "two"]
  writer.join()


def test_squad_1_is_not_accepted_as_squad_2(files, tmp_path):
  (files / "squad/dev-v2.0.json").write_bytes((files / "squad/train-v1.1.json").read_bytes())
  assert "is_impossible" in failure("squad/v2.0", files / "squad", tmp_path / "out").lines["expected"]


def test_parallel_files_must_have_equal_length(files, tmp_path):
  with (files / "wmt/newstest2013.de").open("a") as file:
    file.write("Zuviel.\n")
  error = failure("wmt_t2t_translate/de-en", files / "wmt", tmp_path / "out")
  assert error.lines["file"].endswith("newstest2013.en") and error.lines["ends_at"] == "line 1"
  assert all_paths(tmp_path / "out") == []


def test_a_file_without_a_counterpart_is_reported(tmp_path):
  (report,) = storing.prepare_all("wmt_t2t_translate/de-en", FILES / "en_de_sample", tmp_path)
  (test,) = (split for split in report.splits if split.split == "test")
  assert test.rows is None and "src-test.txt has no counterpart" in test.note


def test_an_unknown_source_language_must_be_given(files, tmp_path):
  (files / "en_de_sample").rename(files / "sample")
  error = failure("wmt_t2t_translate/de-en", files / "sample", tmp_path / "out")
  assert "which language" in error.what and error.lines["try"].startswith("--source_language=")


def test_a_damaged_archive_and_an_empty_file(files, tmp_path):
  packed = files / "c4/c4-train.00000-of-00002.json.gz"
  packed.write_bytes(packed.read_bytes()[:-20])
  assert str(packed) in failure("c4/en", files / "c4", tmp_path / "out").lines["file"]
  (files / "superglue/CB/val.jsonl").write_text("")
  assert "'validation' has no rows" in failure("super_glue/cb", files / "superglue", tmp_path / "out").what
  assert all_paths(tmp_path / "out") == []


def test_microsofts_file_needs_glues_ids(files):
  (files / "glue/MRPC/mrpc_dev_ids.tsv").unlink()
  (dataset,) = catalogue.find_datasets("glue/mrpc", Folder(files / "glue"))
  with pytest.raises(UserError) as error:
    catalogue.find_splits(dataset, Folder(files / "glue"))
  assert "mrpc_dev_ids.tsv" in error.value.lines["missing"]


def test_nothing_is_overwritten_without_force(files, tmp_path):
  out = tmp_path / "out"
  list(storing.prepare_all("super_glue/cb", files / "superglue", out))
  before = {name: (out / name).read_bytes() for name in all_paths(out) if (out / name).is_file()}
  error = failure("super_glue/cb", files / "superglue", out)
  assert "already prepared" in error.what and error.lines["try"].startswith("--force")

  # A forced run that fails leaves the old data unchanged.
  good = (files / "superglue/CB/train.jsonl").read_text()
  (files / "superglue/CB/train.jsonl").write_text(good + "{\n")
  failure("super_glue/cb", files / "superglue", out, force=True)
  assert {name: (out / name).read_bytes() for name in all_paths(out) if (out / name).is_file()} == before

  (files / "superglue/CB/train.jsonl").write_text(good.splitlines(keepends=True)[0])
  (report,) = storing.prepare_all("super_glue/cb", files / "superglue", out, force=True)
  assert [split.rows for split in report.splits] == [1, 2, 2]
  assert [path.name for path in out.iterdir()] == ["super_glue"]


def test_a_full_disk_is_reported_and_leaves_nothing(files, tmp_path):
  rows = ({"text": "word " * 200} for _ in range(200))
  (files / "c4/c4-validation.00000-of-00001.json.xz").unlink()
  (files / "c4/more-train.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
  with full_disk(64 << 10):
    error = failure("c4/en", files / "c4", tmp_path / "out")
  assert "no space left" in error.what and error.lines["try"].startswith("--out")
  assert all_paths(tmp_path / "out") == []


def test_leftovers_of_a_killed_run_are_removed(files, tmp_path, monkeypatch):
  monkeypatch.setattr("socket.gethostname", lambda: "here")
  dead, other = tmp_path / "out/.t5like-preparing-here-999999999-x", tmp_path / "out/.t5like-preparing-there-1-x"
  for folder in (dead, other):
    folder.mkdir(parents=True)
  list(storing.prepare_all("super_glue/cb", files / "superglue", tmp_path / "out"))
  assert not dead.exists() and other.exists()


@pytest.mark.parametrize(
  ("name", "what", "line"),
  [
    ("glue/sst3", "no configuration 'sst3'", "sst2"),
    ("glu/sst2", "no data set or task", "glue"),
    ("wmt14_translate", "configurations", "fr-en"),
    ("snli_of_nobody", "no data set or task", ""),
    ("novels", "does not read from TFDS", ""),
  ],
)
def test_unknown_names_are_refused(tmp_path, name, what, line):
  error = failure(name, FILES, tmp_path)
  assert what in error.what and line in " ".join(error.lines.values())


def test_missing_files_list_what_was_looked_for(tmp_path):
  error = failure("glue/sst2", tmp_path, tmp_path / "out")
  assert "train: SST-2/train.tsv" in error.lines["expected"]
  assert "missing" in failure("glue/sst2", tmp_path / "nowhere", tmp_path / "out").what
