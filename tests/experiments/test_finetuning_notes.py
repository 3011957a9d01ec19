"""Notes about probable mistakes in fine-tuning, and the functions with which gin files compute numbers of steps."""

import contextlib

import pytest

from t5like import Experiment, read_experiment
from t5like.errors import UserError
from t5like.experiments.configurables import share_of, steps_of_epochs
from t5like.experiments.finetuning_notes import examples_note, finetuning_notes
from t5like.experiments.heads import check_compared_rows
from t5like.models import BERT, T5, TransformerConfig
from t5like.models.heads import EmbeddingHead, attach_head
from t5like.training.optimizers import adamw

SIZES = dict(vocab_size=64, embed_dim=16, mlp_dim=32, num_heads=2, num_encoder_layers=1)


def notes(model, steps=100):
  given = dict(model_dir="run", vocabulary="tiny", task="any_classification", lengths={"inputs": 8}, batch_size=2)
  if not hasattr(model, "head"):
    given |= dict(task="any_task", lengths={"inputs": 8, "targets": 8})
  return finetuning_notes(Experiment(model=model, steps=steps, optimizer=adamw(0.01), **given))


def t5(**changes):
  return T5(TransformerConfig(**SIZES, num_decoder_layers=1, **changes))


def test_steps_that_include_pretraining_are_noted():
  assert notes(t5(dropout_rate=0.1), 999_999) == []
  (note,) = notes(t5(dropout_rate=0.1), 1_020_000)
  assert "TRAIN_STEPS = 1,020,000 are steps of this run" in note


def test_t5_1_1_without_dropout_is_noted():
  like_1_1 = dict(gated_mlp=True, tie_embeddings=False)
  (note,) = notes(t5(**like_1_1, dropout_rate=0.0))
  assert "DROPOUT_RATE = 0: T5 1.1" in note
  assert notes(t5(**like_1_1, dropout_rate=0.1)) == notes(t5(dropout_rate=0.0)) == []


def test_simcse_without_dropout_is_noted():
  for rates, noted in (({}, True), ({"dropout_rate": 0.1}, False), ({"attention_dropout_rate": 0.1}, False)):
    backbone = BERT(TransformerConfig(**SIZES, **({"dropout_rate": 0.0} | rates)))
    assert bool(notes(attach_head(backbone, EmbeddingHead("simcse", texts=2)))) == noted
    assert not notes(attach_head(backbone, EmbeddingHead("ranking", texts=2)))


def test_a_number_of_examples_that_is_not_that_of_the_rows_is_noted():
  files, given = ["models/bert/tiny.gin", "finetune/bert.gin", "finetune/glue/sst2.gin"], dict(INIT_FROM=None)
  experiment = read_experiment(files, MODEL_DIR="run", **given)
  assert "EXAMPLES = 67,349, but there are 64 rows" in examples_note(experiment, 64)
  assert "EXAMPLES = 67,349" in examples_note(experiment, 300_000)
  assert examples_note(experiment, 67_349) == examples_note(experiment, 200_000) == ""
  own = read_experiment(["models/t5/tiny.gin", "runs/finetune.gin"], MODEL_DIR="run", TASK="snli", **given)
  assert examples_note(own, 64) == ""


def test_steps_of_epochs_and_shares():
  assert steps_of_epochs(67349, 32, 3) == 6314 and steps_of_epochs(5, 32) == 1
  assert steps_of_epochs(67349, 32, 3, at_most=1000) == 1000
  assert share_of(6314, 0.1) == 631 and share_of(100, 0.0) == 1 and share_of(768, 4) == 3072
  for wrong in ((0, 32), (5, 0), (5, 32, -1.0)):
    with pytest.raises(UserError, match="expected.*a positive number"):
      steps_of_epochs(*wrong)
  for share in (-0.5, float("nan")):
    with pytest.raises(UserError, match="invalid share"):
      share_of(100, share)


def test_losses_that_need_a_second_row():
  backbone = BERT(TransformerConfig(**SIZES))
  for loss, texts, rows, refused in (
    ("ranking", 2, 1, True), ("ranking", 2, 2, False), ("ranking", 3, 1, False), ("cosent", 2, 1, True),
    ("cosine", 2, 1, False),
  ):  # fmt: skip
    model = attach_head(backbone, EmbeddingHead(loss, texts=texts))
    with pytest.raises(UserError, match="BATCH_SIZE = 1") if refused else contextlib.nullcontext():
      check_compared_rows(model, rows)
