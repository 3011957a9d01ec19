"""Every kind of training data: objectives by name, encoders, decoders, mixtures, phases, local files."""

import json
import re
import shutil

import pytest

from t5like import configuration
from t5like.runs.preparing import prepare

ENCODER = [
  "--gin_file=models/bert/tiny.gin", "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.HEAD_DIM=8",
  "--gin.NUM_ENCODER_LAYERS=1", "--gin.BATCH_SIZE=8", "--gin.LENGTHS={'inputs': 32}", "--gin.LOG_PERIOD=2",
]  # fmt: skip


def metrics(folder):
  return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_task_name_may_contain_the_objective(t5like, pretrain, tmp_path):
  line = [a for a in pretrain if "objectives/" not in a]
  out = t5like(*line, "--gin.TASK=novels_prefix_lm", f"--gin.MODEL_DIR={tmp_path}/a", "--dry_run").stdout
  assert "objective prefix_lm" in out and "up to 31 tokens of one document" in out
  err = t5like(*line, "--gin.TASK=novels", f"--gin.MODEL_DIR={tmp_path}/b", status=2).stderr
  assert "has no objective" in err and "--gin.TASK=novels_span_corruption" in err
  err = t5like(*pretrain, "--gin.TASK=novels_prefix_lm", f"--gin.MODEL_DIR={tmp_path}/c", status=2).stderr
  assert "implies the objective prefix_lm, but OBJECTIVE is SpanCorruption(" in err and "--gin.TASK=novels" in err


def test_the_card_says_that_a_run_ends_during_its_warm_up(t5like, pretrain, tmp_path):
  line = [*pretrain, "--gin_file=optimizers/adamw.gin", f"--gin.MODEL_DIR={tmp_path}", "--gin.TRAIN_STEPS=20"]
  rising = "at the end, still rising: the warm-up does not end before the run"
  assert rising in t5like(*line, "--gin.WARMUP_STEPS=100", "--dry_run").stdout
  assert "still rising" not in t5like(*line, "--gin.WARMUP_STEPS=5", "--dry_run").stdout
  assert "invalid warmup_steps of the schedule: -1" in t5like(*line, "--gin.WARMUP_STEPS=-1", status=2).stderr


def test_a_dry_run_lists_the_tasks_of_a_mix_and_refuses_unknown_ones(t5like, pretrain, tmp_path):
  line = [a for a in pretrain if "objectives/" not in a]
  line += ["--gin.TASK=snli", "--gin.LENGTHS={'inputs': 32, 'targets': 8}", f"--gin.CACHE_DIR={tmp_path}/caches"]
  line += [f"--gin.MODEL_DIR={tmp_path}/run", "--dry_run"]
  card = t5like(*line, "--gin.MIX={'snli': 1, 'glue': 3}").stdout
  assert "a mixture of 9 tasks" in card and "25.0%  snli" in card and "glue_sst2, 67,349 rows" in card
  card = t5like(*line, "--gin.MIX={'snli': 1, 'glue_equal': 16}", "--gin.MIXING_TEMPERATURE=4").stdout
  assert "33.3%  snli" in card and "8.3%  glue_cola" in card  # 1 : 2, and 8 tasks of the same rate
  assert "no task 'nope'" in t5like(*line, "--gin.MIX={'snli': 1, 'nope': 3}", status=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["bert_mlm_nsp", "roberta"])
def test_an_encoder_trains_on_masked_lm(t5like, tmp_path, token_caches, objective):
  out = t5like(
    "train", *ENCODER, "--gin_file=runs/pretrain.gin", f"--gin.TASK=novels_{objective}", "--gin.TRAIN_STEPS=4",
    f"--gin.CACHE_DIR={token_caches}", f"--gin.MODEL_DIR={tmp_path}/run",
  ).stdout  # fmt: skip
  assert "objective masked_lm" in out
  rows = metrics(tmp_path / "run")
  assert rows[-1]["step"] == 4 and rows[-1]["loss"] > 5  # vocabulary of 30,522 pieces
  assert ("sentence_accuracy" in rows[-1]) == (objective == "bert_mlm_nsp")


def test_models_and_objectives_that_do_not_fit_are_refused(t5like, pretrain, tmp_path, token_caches):
  common = [f"--gin.MODEL_DIR={tmp_path}/run", f"--gin.CACHE_DIR={token_caches}", "--gin_file=runs/pretrain.gin"]
  err = t5like("train", *ENCODER, *common, "--gin.TASK=novels_span_corruption", status=2).stderr
  assert "BERT is an encoder, but span_corruption needs a decoder" in err and "bert_mlm" in err
  discriminator = [
    *ENCODER,
    "--gin.TransformerConfig.mlm_head=False",
    "--gin.TransformerConfig.discriminator_head=True",
  ]
  err = t5like("train", *discriminator, *common, "--gin.TASK=novels_bert_mlm", status=2).stderr
  assert "this BERT has no output layer to train" in err and "objectives/electra.gin, after the file" in err
  line = [a for a in pretrain if "objectives/" not in a] + [f"--gin.MODEL_DIR={tmp_path}/run"]
  assert "is for encoders, but T5 has a decoder" in t5like(*line, "--gin.TASK=novels_bert_mlm", status=2).stderr
  assert "has no inputs for the encoder" in t5like(*line, "--gin.TASK=novels_causal_lm", status=2).stderr


def test_phases_of_different_lengths_and_seeds_read_different_rows(t5like, pretrain, tmp_path):
  run = [*pretrain, "--gin.PHASES=[{'steps': 2, 'lengths': {'inputs': 16}}]", f"--gin.MODEL_DIR={tmp_path}/run"]
  seeds = []
  for seed in (0, 1):
    t5like(*run, f"--gin.SEED={seed}", "--dry_run")
    batches = prepare(configuration.build("train"), dry_run=True).batches
    seeds += [phase.source.seed for phase in batches.phases]
  assert len(set(seeds)) == len(seeds) == 4


@pytest.mark.slow
def test_a_gpt_trains_on_causal_lm(t5like, tmp_path, token_caches):
  out = t5like(
    "train", "--gin_file=models/gpt2/small.gin", "--gin.EMBED_DIM=16", "--gin.MLP_DIM=32", "--gin.NUM_HEADS=2",
    "--gin.HEAD_DIM=8", "--gin.NUM_DECODER_LAYERS=1", "--gin.BATCH_SIZE=8", "--gin.LENGTHS={'inputs': 32}",
    "--gin_file=runs/pretrain.gin", "--gin.TASK=novels_causal_lm", "--gin.TRAIN_STEPS=2", "--gin.LOG_PERIOD=1",
    f"--gin.CACHE_DIR={token_caches}", f"--gin.MODEL_DIR={tmp_path}/run",
  ).stdout  # fmt: skip
  assert "full rows of 33 tokens of running text" in out and metrics(tmp_path / "run")[-1]["loss"] > 5


def test_phases_change_length_and_batch_and_resume_exactly(t5like, pretrain, tmp_path):
  phases = "--gin.PHASES=[{'steps': 2, 'lengths': {'inputs': 16}}, {'steps': 2, 'batch_size': 16}]"
  run = [*pretrain, phases, "--gin.TRAIN_STEPS=6", "--gin.LOG_PERIOD=1", "--gin.CHECKPOINT_PERIOD=3"]
  out = t5like(*run, f"--gin.MODEL_DIR={tmp_path}/uninterrupted").stdout
  assert "8 rows x (16 inputs" in out and "16 rows x (32 inputs" in out
  shutil.copytree(tmp_path / "uninterrupted", tmp_path / "resumed")
  shutil.rmtree(tmp_path / "resumed/checkpoints/6")  # as if it had ended in the second phase
  assert "its own checkpoint of step 3" in t5like(*run, f"--gin.MODEL_DIR={tmp_path}/resumed").stdout
  losses = [[row["loss"] for row in metrics(tmp_path / name)] for name in ("uninterrupted", "resumed")]
  assert losses[0] == losses[1] and len(losses[0]) == 6
  err = t5like(*pretrain, "--gin.PHASES=[{'stepz': 2}]", f"--gin.MODEL_DIR={tmp_path}/x", status=2).stderr
  assert "PHASES" in err and "'steps': 1000" in err


@pytest.mark.slow
def test_a_corpus_of_local_files_takes_one_gin_line(t5like, small_model, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for number in range(3):
    lines = [f"Day {number}.{i}: it rained again, and we stayed at home." for i in range(20)]
    (tmp_path / f"{number}.txt").write_text("\n".join(lines))
  out = t5like(
    "train", *small_model, "--gin_file=objectives/span_corruption.gin", "--gin_file=runs/pretrain.gin",
    "--gin.TASK=letters", "--gin.CORPUS_FILES={'train': '*.txt'}", "--gin.LENGTHS={'inputs': 16}",
    "--gin.TRAIN_STEPS=1", "--gin.CACHE_DIR=tokens", "--gin.MODEL_DIR=run",
  ).stdout  # fmt: skip
  assert "task letters (train)" in out and "--files=train=" in out


MIXTURE = """
from t5like.tasks import registry
from t5like.tasks.mixtures import register_mixture
registry.import_modules()
register_mixture("both", ["snli", "snli_again"], strategy="temperature", temperature=2.0)
"""
AGAIN = """
from t5like.tasks import preprocessors, postprocessors, metrics
from t5like.tasks.library import embedded_tasks
import functools, seqio
from t5like.tasks.registry import default_features, register_task
register_task(
  "snli_again",
  source=embedded_tasks.JsonLinesSource(
    embedded_tasks._files("snli"), ["hypothesis", "label"], sizes={"train": 300, "validation": 20}
  ),
  preprocessors=[
    functools.partial(preprocessors.labeled_text, name="again", keys=("hypothesis",), label_key="label"),
    seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim,
  ],
  output_features=default_features(), postprocess_fn=postprocessors.strip_text, metric_fns=[metrics.accuracy],
)
"""


@pytest.mark.slow
def test_a_mixture_trains_and_scores_each_of_its_tasks(t5like, finetune, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "mixed_tasks.py").write_text(AGAIN + MIXTURE)
  line = [a for a in finetune if "TASK=" not in a]
  out = t5like(
    *line, "--gin.TASK=both", "--gin.TASK_MODULES=['mixed_tasks']", "--gin.TRAIN_STEPS=2", "--gin.MODEL_DIR=run"
  ).stdout
  # sqrt(30,000) : sqrt(300) = 10 : 1.
  assert "a mixture of 2 tasks\n" in out
  assert re.search(r"90\.9%  snli, [\d,]+ examples\n +9\.1%  snli_again, ", out)
  assert "snli (validation, 20 examples) at step 2" in out and "snli_again (validation, 20 examples) at step 2" in out


def test_a_dry_run_of_a_recipe_needs_no_cache(t5like, tmp_path):
  """What it keeps the best checkpoint by is computed by the evaluation, whose cache is not built yet."""
  line = [
    "train",
    *(f"--gin_file={file}.gin" for file in ("models/bert/tiny", "finetune/bert", "finetune/sentences/snli")),
  ]
  done = t5like(
    *line, "--gin.INIT_FROM=None", f"--gin.MODEL_DIR={tmp_path}/run", f"--gin.CACHE_DIR='{tmp_path}/empty'", "--dry_run"
  )
  assert "snli" in done.stdout
