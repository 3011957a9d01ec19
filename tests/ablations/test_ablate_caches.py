"""The token caches of a sweep, for tasks whose tokens depend on the lengths of rows."""

import sys

import pytest
import seqio

from t5like import data
from t5like.ablations.sweep.results import read_results
from t5like.vocabularies import load_vocabulary

TINY = load_vocabulary("tiny")
MODULE = """
import seqio

VOCABULARY = seqio.SentencePieceVocabulary(VOCABULARY_FILE, extra_ids=100)


@seqio.map_over_dataset
def to_text(line):
  return {"inputs": line, "targets": line}


def halves(dataset, sequence_length):
  length = sequence_length["inputs"] // 2
  return dataset.map(lambda example: example | {"inputs": example["inputs"][:length]})


def exact(targets, predictions):
  return {"exact": 100.0 * sum(t == p for t, p in zip(targets, predictions)) / len(targets)}


seqio.TaskRegistry.add(
  "halved_rows",
  source=seqio.TextLineDataSource({"train": "rows.txt", "validation": "rows.txt"}),
  preprocessors=[to_text, seqio.preprocessors.tokenize, halves, seqio.preprocessors.append_eos_after_trim],
  output_features={"inputs": seqio.Feature(VOCABULARY), "targets": seqio.Feature(VOCABULARY)},
  metric_fns=[exact],
)
"""
SMALL = [
  "--scale=smoke", "--tasks=halved_rows", "--task_modules=sweep_tasks", "--sweep_dir=sweep", "--gin.LAYERS=1",
  "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.FINETUNE_STEPS=2", "--gin.FINETUNE_EVAL_PERIOD=2",
  "--gin.FINETUNE_LENGTHS={'inputs': 12, 'targets': 6}", "--gin.PRETRAIN_LENGTHS={'inputs': 16}",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch, token_caches):
  (tmp_path / "sweep_tasks.py").write_text(MODULE.replace("VOCABULARY_FILE", repr(str(TINY.path))))
  (tmp_path / "rows.txt").write_text("".join(f"the {i} old men and the {i + 1} seas and ships\n" for i in range(9)))
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / "sweep/caches").mkdir(parents=True)
  (tmp_path / "sweep/caches/novels").symlink_to(token_caches / "novels")
  yield tmp_path
  sys.modules.pop("sweep_tasks", None)
  seqio.TaskRegistry.remove("halved_rows")


def cached_inputs(split, lengths):
  base = data.cache_folder("sweep/caches", "halved_rows", split, "tiny", TINY.fingerprint)
  assert data.read_record(base).kind == "tokens"
  return data.open_cache(data.finished_folder(base, lengths), rebuild_command="").example(0)["inputs"].tolist()


@pytest.mark.slow
def test_finished_tokens_are_cached_for_the_lengths_of_every_recipe(folder, t5like):
  """Multi-task training uses the lengths of the corpus, fine-tuning its own; the task's step keeps half of either."""
  t5like("ablate", "--table=7", "--table=11", "--rows=3", "--rows=Equal", *SMALL, "--prepare_only")
  ids = TINY.encode("the 0 old men and the 1 seas and ships")
  assert len(ids) > 8
  for split in ("train", "validation"):
    assert cached_inputs(split, {"inputs": 12, "targets": 6}) == [*ids[:6], TINY.eos_id]
    assert cached_inputs(split, {"inputs": 16}) == [*ids[:8], TINY.eos_id]


@pytest.mark.slow
def test_a_sweep_trains_on_finished_tokens(folder, t5like):
  t5like("ablate", "--table=7", "--rows=encoder_decoder/no_pretraining", *SMALL)
  (result,) = read_results(folder / "sweep")
  assert set(result.tasks["halved_rows"]) == {"exact", "best_step"}
