"""`t5like infer` on a seqio task, and prompt formats of different kinds of training."""

import json
import shutil

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5like import configuration
from t5like.experiments.reading import register_configurables
from t5like.inference.prompts import prompt_form
from t5like.interop import huggingface
from t5like.models import GPT, T5, TransformerConfig
from t5like.vocabularies import load_vocabulary, vocabulary_path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A Hugging Face T5 with the vocabulary of the embedded tasks."""
  folder = tmp_path_factory.mktemp("models") / "t5"
  sizes = {"embed_dim": 16, "mlp_dim": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
  made = T5(TransformerConfig(vocab_size=4224, **sizes))
  token = np.ones((1, 1), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  params = jax.jit(made.init)(jax.random.key(0), batch)["params"]
  folder.mkdir()
  huggingface.save(folder, made, nn.meta.unbox(params))
  shutil.copy(vocabulary_path("tiny"), folder / "spiece.model")
  return folder


def test_a_task_is_answered_from_its_token_cache(model, token_caches, t5like, tmp_path):
  command = ["infer", f"--model={model}", "--vocabulary=tiny", f"--cache_dir={token_caches}"]
  done = t5like(*command, "--task=snli", "--examples=5", "--max_length=4")
  rows = [json.loads(line) for line in done.stdout.splitlines()]
  assert [row["row"] for row in rows] == [0, 1, 2, 3, 4]
  assert {row["targets"] for row in rows} <= {"entailment", "neutral", "contradiction"}
  # The same texts from a file get the same answers, with the vocabulary of the folder.
  (tmp_path / "in.jsonl").write_text(done.stdout)
  again = t5like("infer", f"--model={model}", f"--input={tmp_path}/in.jsonl", "--max_length=4").stdout.splitlines()
  assert [json.loads(line)["outputs"] for line in again] == [row["outputs"] for row in rows]
  # Likelihoods of the targets equal those of the same words as candidates.
  scored = t5like(*command, "--task=snli", "--examples=5", "--score", "--batch_size=8").stdout.splitlines()
  (tmp_path / "labels.txt").write_text("entailment\nneutral\ncontradiction\n")
  ranked = t5like(
    "infer", f"--model={model}", f"--input={tmp_path}/in.jsonl", f"--candidates={tmp_path}/labels.txt", "--batch_size=8"
  ).stdout.splitlines()
  for row, score, ranking in zip(rows, map(json.loads, scored), map(json.loads, ranked), strict=True):
    likelihoods = {entry["text"]: entry["score"] for entry in ranking["ranking"]}
    assert likelihoods[row["targets"]] == pytest.approx(score["score"], abs=1e-4)
  corpus = t5like(*command, "--task=novels", "--split=train", status=2)
  assert "has no inputs for T5" in corpus.stderr and corpus.stdout == ""


# Per objective: the special tokens around a text in training. <s> starts a decoder, </s> ends a text.
FORMS = [
  ("T5", "runs/finetune.gin", [], "text </s>"),
  ("T5", "runs/pretrain.gin", ["objectives/span_corruption.gin"], "text </s>"),
  ("GPT", "runs/finetune.gin", [], "<s> text </s>"),
  ("GPT", "runs/pretrain.gin", ["objectives/causal_lm.gin"], "text"),
  ("GPT", "runs/pretrain.gin", ["objectives/full_lm.gin"], "<s> text"),
  ("GPT", "runs/pretrain.gin", ["objectives/prefix_lm.gin"], "<s> text </s>"),
]


@pytest.mark.parametrize("family, run, objectives, expected", FORMS, ids=lambda x: str(x).replace("/", "_"))
def test_prompts_are_formatted_as_in_training(family, run, objectives, expected):
  register_configurables()
  files = ["models/t5/tiny.gin" if family == "T5" else "models/gpt2/small.gin", *objectives, run]
  task = ("TASK", "snli") if "finetune" in run else ("TASK", "novels")
  lengths = ("LENGTHS", "{'inputs': 32, 'targets': 8}" if "finetune" in run else "{'inputs': 32}")
  given = [task, lengths, ("MODEL_DIR", "nowhere"), ("VOCABULARY", "tiny")]
  configuration.load(files, given + ([("INIT_FROM", "None")] if "finetune" in run else []), [])
  experiment = configuration.build("train")
  vocabulary = load_vocabulary("tiny")
  assert isinstance(experiment.model, T5 if family == "T5" else GPT)
  marks = {"<s>": 0, "</s>": vocabulary.eos_id, "text": 77}
  assert prompt_form(experiment.model, vocabulary, experiment).tokens([77]) == [
    marks[word] for word in expected.split()
  ]
