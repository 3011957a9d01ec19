"""Runs that train sentence embeddings on JSON lines: from CORPUS_FILES to scores, vectors and neighbors."""

import contextlib
import functools
import json
import random

import numpy as np
import pytest
from test_head_runs import MODELS

import t5like
from t5like.errors import UserError
from t5like.models.heads import EmbeddingHead
from t5like.runs.preparing import prepare
from t5like.training.guards.early_stopping import EarlyStopping

pytestmark = pytest.mark.usefixtures("one_device")

WORDS = "the sea was calm and a ship came from far".split()
TOPICS = "cat dog bird fish horse cow sheep goat lion wolf bear fox house tree car boat".split()


def sentence(topic, rng):
  return " ".join([rng.choice(WORDS), topic, rng.choice(WORDS)])


def rows_of(kind, count, seed):
  """Sentences are similar if they have the same topic, one of sixteen words."""
  rng = random.Random(seed)
  for number in range(count):
    topic, other = TOPICS[number % 16], TOPICS[(number + 1 + number % 7) % 16]
    if kind == "triplets":
      texts = (sentence(topic, rng), sentence(topic, rng), sentence(other, rng))
      yield dict(zip(("anchor", "positive", "negative"), texts, strict=True))
    elif kind == "scores":
      same = number % 2
      yield {
        "sentence1": sentence(topic, rng), "sentence2": sentence(topic if same else other, rng), "score": 5.0 * same,
      }  # fmt: skip
    elif kind == "pairs":
      yield {"query": sentence(topic, rng), "positive": sentence(topic, rng)}


@pytest.fixture(scope="module")
def own_files(tmp_path_factory, request):
  """A folder, JSON lines in it by task and split, and what builds their token caches there by the real command."""
  run_here, folder = request.getfixturevalue("t5like"), tmp_path_factory.mktemp("own")
  files = {}
  for kind, counts in {"triplets": (128, 16), "scores": (32, 24), "pairs": (16, 16)}.items():
    files[f"{kind}_embedding"] = named = {}
    for split, count in zip(("train", "validation"), counts, strict=True):
      path = folder / f"{kind}.{split}.jsonl"
      path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(kind, count, len(named))))
      named[split] = str(path)

  @functools.cache
  def build(task, vocabulary="bert_uncased"):
    given = [f"--files={name}={path}" for name, path in files[task].items()]
    for split in files[task]:
      run_here("cache", task, f"--split={split}", f"--vocabulary={vocabulary}", f"--out={folder}", *given)

  return folder, files, build


@pytest.fixture
def settings(tmp_path, own_files):
  folder, files, build = own_files

  def make(task, family="bert", **changes):
    vocabulary, model = MODELS[family]
    build(task, vocabulary)
    given = dict(
      model_dir=str(tmp_path / "run"), model=model, vocabulary=vocabulary, task=task, lengths={"inputs": 12},
      batch_size=16, steps=60, optimizer=t5like.optimizers.adamw(0.02), z_loss=0.0, cache_dir=str(folder),
      log_period=20, eval_split="validation", corpus_files=files[task],
    )  # fmt: skip
    return given | changes

  return make


def test_triplets_from_files_to_scores_vectors_and_neighbors(settings, own_files, request, tmp_path):
  """In-batch ranking in microbatches, scored in the loop on triplets, scores and retrieval; then the commands."""
  tasks = ["triplets_embedding", "scores_embedding", "pairs_embedding"]
  for task in tasks:
    own_files[2](task)
  experiment = t5like.Experiment(**settings("triplets_embedding", microbatches=2, eval_tasks=tasks))
  result = t5like.train(experiment)
  assert result.scores["eval/triplets_embedding/accuracy"] >= 90
  assert result.scores["eval/scores_embedding/spearman_corrcoef"] >= 70  # half of the scores are ties
  assert result.scores["eval/pairs_embedding/accuracy@1"] >= 70

  model = t5like.load(result.model_dir)
  head = model.module.head
  assert (head.loss, head.texts, head.pooling) == ("ranking", 3, "mean")
  again = t5like.evaluate(model, "pairs_embedding", cache_dir=str(own_files[0]))
  for name, value in again.scores.items():
    assert value == pytest.approx(result.scores[f"eval/pairs_embedding/{name}"], abs=1e-6), name
  # Trained with rows of 12 tokens: longer texts are cut to that.
  long = "the cat " * 10
  np.testing.assert_allclose(model.embed(long), model.embed("the cat " * 5), rtol=1e-4, atol=1e-5)

  run_here = request.getfixturevalue("t5like")
  (tmp_path / "corpus.txt").write_text("".join(f"the {topic}\n" for topic in TOPICS))
  (tmp_path / "queries.txt").write_text("a goat came\na fish came\n")
  command = ["infer", f"--model={result.model_dir}"]
  run_here(*command, f"--input={tmp_path}/corpus.txt", "--embed", f"--output={tmp_path}/v.npy")
  for place in ("corpus.txt", "v.npy"):
    done = run_here(*command, f"--input={tmp_path}/queries.txt", f"--neighbours={tmp_path / place}", "--top=2")
    found = [json.loads(line)["neighbors"][0] for line in done.stdout.splitlines()]
    assert [near["line"] for near in found] == [8, 4]
    assert [near.get("text") for near in found] == (["the goat", "the fish"] if "txt" in place else [None, None])


def test_scores_choose_the_cosine_loss_on_t5_and_gpt_and_cosent_by_name(settings):
  """What a run would train, without training it."""
  loss = lambda **given: prepare(t5like.Experiment(**settings(**given)), dry_run=True).experiment.model.head.loss  # noqa: E731
  assert loss(task="scores_embedding") == "cosine"
  assert loss(task="scores_embedding", head=EmbeddingHead("cosent")) == "cosent"
  assert loss(task="triplets_embedding", family="t5") == loss(task="triplets_embedding", family="gpt") == "ranking"
  assert loss(task="triplets_embedding", head=EmbeddingHead("simcse", "cls")) == "simcse"


@pytest.mark.parametrize(
  ("task", "head", "message"),
  [
    ("triplets_embedding", EmbeddingHead("cosine"), "the loss 'cosine' does not fit task 'triplets_embedding'"),
    ("scores_embedding", EmbeddingHead("ranking"), "the loss 'ranking' does not fit task 'scores_embedding'"),
    ("pairs_embedding", EmbeddingHead("triplet"), "the loss 'triplet' does not take 2 texts per row"),
    ("pairs_embedding", EmbeddingHead("ranking", texts=3), "has 2 texts per row, and the head embeds 3"),
  ],
)
def test_mismatches_are_found_before_anything_is_compiled(settings, task, head, message):
  with pytest.raises(UserError, match=message):
    prepare(t5like.Experiment(**settings(task, head=head)), dry_run=True)


def test_a_loss_that_compares_rows_needs_several(settings):
  for given, refused in (("pairs", True), ("triplets", False), ("scores", False)):  # a triplet has its own negative
    experiment = t5like.Experiment(**settings(f"{given}_embedding", batch_size=1))
    with pytest.raises(UserError, match="BATCH_SIZE = 1: the loss 'ranking'") if refused else contextlib.nullcontext():
      prepare(experiment, dry_run=True)
  with pytest.raises(UserError, match="BATCH_SIZE = 1: the loss 'simcse'"):
    prepare(t5like.Experiment(**settings("pairs_embedding", head=EmbeddingHead("simcse"), batch_size=1)), dry_run=True)


@pytest.mark.parametrize(
  "task, right, wrong",
  [
    ("pairs_embedding", "ndcg@10", "accuracy"),
    ("triplets_embedding", "accuracy", "ndcg@10"),
    ("scores_embedding", "spearman_corrcoef", "ndcg@10"),
  ],
)
def test_a_score_of_other_rows_is_refused_at_the_start(settings, task, right, wrong):
  with pytest.raises(UserError, match="EARLY_STOPPING.metric = .* is not computed in this run") as error:
    prepare(t5like.Experiment(**settings(task, early_stopping=EarlyStopping(f"eval/{task}/{wrong}"))))
  assert f"eval/{task}/{right}" in error.value.lines["expected"]
  prepare(t5like.Experiment(**settings(task, early_stopping=EarlyStopping(f"eval/{task}/{right}"))))


def test_untrained_models_are_scored_by_their_pooled_states(settings, own_files, request, tmp_path):
  """`eval --embed` of a model without a head, and the same in Python."""
  own_files[2]("scores_embedding")
  result = t5like.train(t5like.Experiment(**settings("triplets_embedding", steps=1, eval_split="")))
  model = t5like.load(result.model_dir)
  scored = [
    t5like.evaluate(model.pooled(pooling), "scores_embedding", cache_dir=str(own_files[0])).scores
    for pooling in ("mean", "max")
  ]
  assert scored[0] != scored[1]
  done = request.getfixturevalue("t5like")(
    "eval", f"--model_dir={result.model_dir}", "--task=scores_embedding", "--embed=max",
    f"--cache_dir={own_files[0]}", "--show=0",
  )  # fmt: skip
  assert f"spearman_corrcoef {scored[1]['spearman_corrcoef']:.2f}" in done.stdout
