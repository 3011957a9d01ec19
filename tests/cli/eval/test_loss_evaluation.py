"""Teacher-forced losses equal an independent computation, on any number of devices and hosts."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from loss_evaluations import CONFIG, LENGTHS, evaluations, experiment_of, snli
from ports import free_port

from t5like import data, parallel
from t5like.errors import UserError
from t5like.experiments.phases import Phase
from t5like.experiments.token_caches import CachedTask
from t5like.models.bert import BERT
from t5like.models.config import TransformerConfig
from t5like.models.t5 import T5
from t5like.objectives import CATALOGUE, SpecialTokens
from t5like.runs.loss_evaluation import evaluation_rows, means

REPOSITORY = Path(__file__).resolve().parents[3]
EIGHT = parallel.MeshAxes(data=2, fsdp=4)
MESH = parallel.make_mesh(EIGHT)


def log_softmax(logits):
  """Computes in float64, like all sums here."""
  logits = np.asarray(logits, np.float64)
  logits = logits - logits.max(-1, keepdims=True)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def mean_loss(logits, targets, weights):
  of_targets = np.take_along_axis(log_softmax(logits), targets[..., None], -1)[..., 0]
  return -(of_targets * weights).sum() / weights.sum()


def by_hand(cache, params):
  """Computes the loss of all examples in one batch, with rows padded, shifted and weighted here."""
  rows = [cache.example(n) for n in range(cache.examples)]
  inputs, targets = (np.zeros((len(rows), length), np.int32) for length in (LENGTHS.inputs, LENGTHS.targets))
  weights = np.zeros(targets.shape)
  for row, example in enumerate(rows):
    for out, name in ((inputs, "inputs"), (targets, "targets")):
      text = [*example[name][: out.shape[1] - 1], 1]  # 1 is EOS
      out[row, : len(text)] = text
    weights[row, : len(text)] = 1
  batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1]}
  logits = jax.jit(T5(CONFIG).apply)({"params": jax.device_get(params)}, batch)["logits"]
  loss = mean_loss(logits, targets, weights)
  right = (np.asarray(logits).argmax(-1) == targets) * weights
  return {
    "loss": loss,
    "perplexity": math.exp(loss),
    "accuracy": right.sum() / weights.sum(),
    "target_tokens": weights.sum(),
  }


@pytest.fixture(scope="module")
def on_eight_devices(token_caches):
  """Evaluates in batches of 240, which do not divide 2,000 examples."""
  return snli(token_caches, 240, False, parallel.make_mesh(EIGHT))


@pytest.fixture(scope="module")
def expected(on_eight_devices):
  _, params, cache = on_eight_devices
  assert cache.examples == 2000 and (cache.lengths("inputs") >= LENGTHS.inputs).any()  # some are truncated
  values = by_hand(cache, params)
  assert (
    values["target_tokens"] > 4000
    and 4 < values["loss"] < 30
    and 30 < values["accuracy"] * values["target_tokens"] < 4000
  )
  return values


def test_every_example_counts_exactly_once(on_eight_devices, expected):
  evaluation, params, _ = on_eight_devices
  progress = []
  values = evaluation(params, lambda done, total: progress.append((done, total)))
  assert values == pytest.approx(expected, rel=1e-5)
  assert values["target_tokens"] == expected["target_tokens"]
  assert progress[-1] == (9, 9) and len(progress) > 3
  assert evaluation(params) == values


def test_one_device_and_packed_rows_give_the_same(token_caches, expected):
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  evaluation, params, _ = snli(token_caches, 77, True, mesh)
  values = evaluation(params)
  assert values == pytest.approx(expected, rel=1e-5)
  assert values["target_tokens"] == expected["target_tokens"]
  assert evaluation._rows.rows < 1900  # some rows have several examples


@pytest.mark.slow
def test_two_hosts_give_the_values_of_one(token_caches, expected):
  port = free_port()
  hosts = [
    subprocess.Popen(
      [sys.executable, Path(__file__).with_name("loss_evaluations.py"), token_caches],
      env={
        **os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_NUM_CPU_DEVICES": "4", "T5LIKE_NUM_PROCESSES": "2",
        "T5LIKE_COORDINATOR": f"localhost:{port}", "T5LIKE_PROCESS_ID": str(number),
      },
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    for number in range(2)
  ]  # fmt: skip
  try:
    outputs = [host.communicate(timeout=400)[0] for host in hosts]
  finally:
    for host in hosts:
      host.kill()
  for output in outputs:
    found = [json.loads(line.removeprefix("values ")) for line in output.splitlines() if line.startswith("values ")]
    assert found, output
    assert found[0] == pytest.approx(expected, rel=1e-5)
    assert found[0]["target_tokens"] == expected["target_tokens"]


SPECIAL = SpecialTokens(vocab_size=128, pad=0, eos=1, mask=99, cls=98, sep=97, sentence_ends=(5,))
BERT_CONFIG = TransformerConfig(
  vocab_size=128, embed_dim=16, mlp_dim=32, num_heads=2, num_encoder_layers=1, mlm_head=True, pooler=True,
  nsp_head=True, num_token_types=2, positions="learned", max_positions=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """20 documents of 40 tokens, written as numbers."""
  rng = np.random.default_rng(0)
  documents = [{"targets": " ".join(map(str, rng.integers(2, 90, 40)))} for _ in range(20)]
  folder = tmp_path_factory.mktemp("corpus") / "cache"
  data.write_cache(
    folder, documents, ["targets"], lambda texts, threads=1: [[int(n) for n in text.split()] for text in texts],
    {"name": "n", "size": 128, "fingerprint": "f"}, {"task": "numbers", "split": "s", "source_files": []},
    {"postprocessor": None, "metrics": []},
  )  # fmt: skip
  return data.open_cache(folder, rebuild_command="")


OBJECTIVE = CATALOGUE["bert_mlm_nsp"]
PHASE = Phase(OBJECTIVE.lengths(32), 16)


def encoder(batches=2, seed=0):
  settings = dict(lengths={"inputs": 32}, objective=OBJECTIVE, seed=seed, eval_loss_batches=batches)
  return experiment_of(BERT(BERT_CONFIG), "numbers", "unused", **settings)


def test_an_encoder_sees_the_same_batches_in_every_evaluation(corpus):
  mesh, member = parallel.make_mesh(EIGHT), CachedTask("numbers", corpus)
  made, params = evaluations(encoder(), PHASE, [member], SPECIAL, mesh)
  batches = list(evaluation_rows(encoder(), PHASE, member, SPECIAL, MESH))
  assert len(batches) == 2
  joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
  outputs = jax.jit(BERT(BERT_CONFIG).apply)({"params": jax.device_get(params)}, joined)
  values = made["numbers"](params)
  weights, labels = joined["encoder_loss_weights"], joined["labels"]
  assert values["target_tokens"] == weights.sum() > 32 and set(labels.tolist()) == {0, 1}
  loss = mean_loss(outputs["logits"], joined["encoder_target_tokens"], weights)
  assert values["loss"] == pytest.approx(loss, rel=1e-5)
  assert values["sentence_loss"] == pytest.approx(mean_loss(outputs["nsp_logits"], labels, np.ones(32)), rel=1e-5)
  right = np.asarray(outputs["nsp_logits"]).argmax(-1) == labels
  assert values["sentence_accuracy"] == pytest.approx(right.mean())
  assert made["numbers"](params) == values
  again = evaluation_rows(encoder(seed=5), PHASE, member, SPECIAL, MESH)  # another run
  assert all(np.array_equal(batch[name], again[n][name]) for n, batch in enumerate(batches) for name in batch)


def test_a_small_corpus_is_read_about_once(corpus):
  rows = evaluation_rows(encoder(1000), PHASE, CachedTask("numbers", corpus), SPECIAL, MESH)
  assert len(rows) == -(-rows.source.rows_per_epoch // 16) < 10 and all(len(b["labels"]) == 16 for b in rows)


def test_labeled_examples_take_no_objective(on_eight_devices):
  with pytest.raises(UserError, match="takes no objective"):
    evaluation_rows(encoder(), PHASE, CachedTask("snli", on_eight_devices[2]), SPECIAL, MESH)


def test_means_without_tokens_and_with_infinite_perplexity():
  nothing = means({"loss": 0.0, "accuracy": 0.0, "target_tokens": 0.0})
  assert math.isnan(nothing["loss"]) and math.isnan(nothing["perplexity"])
  assert means({"loss": 8000.0, "accuracy": 0.0, "target_tokens": 8.0})["perplexity"] == math.inf
  assert means({"loss": 2.0 * math.log(8), "accuracy": 1.0, "target_tokens": 2.0}) == pytest.approx(
    {"loss": math.log(8), "perplexity": 8.0, "accuracy": 0.5, "target_tokens": 2.0}
  )


def test_sentences_and_losses_that_a_model_adds_have_counts_of_their_own():
  totals = {"loss": 6.0, "target_tokens": 3.0, "sentence_loss": 2.0, "sentence_accuracy": 3.0, "sentences": 4.0}
  found = means(totals | {"balance": 4.0, "balance_count": 8.0, "routing": 0.0, "routing_count": 0.0})
  assert found == {
    "loss": 2, "target_tokens": 3, "sentence_loss": 0.5, "sentence_accuracy": 0.75, "balance": 0.5, "routing": 0,
  }  # fmt: skip
