"""A decoder trained with the loss on its inputs; evaluations count the targets only."""

import json
import math

import t5like


def test_training_counts_inputs_and_evaluation_does_not(run_children_here, tmp_path):
  words = "man dog sun sea bird house king boy".split()
  rows = [{"inputs": f"the {word} is", "targets": "small"} for word in words]
  (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  experiment = t5like.read_experiment(
    ["models/t5/tiny.gin", "models/t5/architectures/lm.gin", "runs/finetune.gin"],
    MODEL_DIR=str(tmp_path / "run"), TASK="words_text_to_text", INIT_FROM=None, TRAIN_STEPS=60, BATCH_SIZE=8,
    CORPUS_FILES=dict.fromkeys(("train", "validation"), str(tmp_path / "rows.jsonl")), CACHE_DIR=str(tmp_path / "c"),
    LENGTHS={"inputs": 16, "targets": 6}, PACK=False, EMBED_DIM=32, MLP_DIM=64, NUM_HEADS=2, NUM_DECODER_LAYERS=1,
    DROPOUT_RATE=0.0, FINETUNE_LEARNING_RATE=0.05, EVAL_LOSS_PERIOD=60, EVAL_EXAMPLES=1, LOG_PERIOD=10, EVAL_PERIOD=0,
    **{"train.loss_on_inputs": True},
  )  # fmt: skip
  t5like.train(experiment)
  assert "the loss is on inputs and targets, in evaluations on targets" in (tmp_path / "run/run_card.txt").read_text()
  records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
  found = {record["kind"].split("/")[0]: record for record in records}
  # The target is always the same. The word is a surprise, which costs ln(8) in each row of at most 22 tokens.
  assert found["train"]["loss"] > math.log(8) / 22 > found["eval_loss"]["loss"]
  assert found["eval_loss"]["target_tokens"] < 8 * 6
  assert json.loads((tmp_path / "run/data_settings.json").read_text())["train.loss_on_inputs"] is True
