"""Runs with heads, from a task's name to its scores: train, evaluate in the loop and as a command, infer."""

import functools
import json
from pathlib import Path

import labeled_tasks
import pytest
from infer_models import folder_of

import t5like
from t5like.cli.main import main
from t5like.errors import UserError
from t5like.experiments.reading import load_experiment
from t5like.finetuning.methods import LoRA
from t5like.models import BERT, GPT, T5, TransformerConfig
from t5like.models.heads import ClassificationHead, SpanHead, TaggingHead, WithHead
from t5like.parallel import MeshAxes
from t5like.runs.forecast.planned_work import planned_work
from t5like.runs.preparing import prepare
from t5like.training.checkpoints.arrays import stored_arrays
from t5like.training.guards.early_stopping import EarlyStopping
from t5like.training.records.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

SIZES = dict(embed_dim=16, mlp_dim=32, num_heads=2)
MODELS = {
  "bert": (
    "bert_uncased",
    BERT(
      TransformerConfig(
        vocab_size=30522,
        **SIZES,
        num_encoder_layers=1,
        positions="learned",
        max_positions=64,
        num_token_types=2,
        norm="layer",
        norm_position="post",
        embedding_norm=True,
        use_bias=True,
        pooler=True,
        mlm_head=True,
        nsp_head=True,
        scale_attention=True,
        final_dropout=False,
      )  # fmt: skip
    ),
  ),
  "t5": ("tiny", T5(TransformerConfig(vocab_size=4224, **SIZES, num_encoder_layers=1, num_decoder_layers=1))),
  "gpt": ("tiny", GPT(TransformerConfig(vocab_size=4224, **SIZES, num_decoder_layers=1, final_dropout=False))),
}
TASKS = (
  "toy_classification",
  "toy_marks_classification",
  "toy_scores_classification",
  "toy_choices_classification",
  "toy_tagging",
  "toy_spans",
)
# The best score that a run of the test can be expected to reach; guessing reaches 50, 50, 0, 33, 0 and about 3.
EXPECTED = {
  "toy_classification": ("accuracy", 100.0),
  "toy_marks_classification": ("f1_macro", 95.0),
  "toy_scores_classification": ("pearson_corrcoef", 90.0),
  "toy_choices_classification": ("accuracy", 90.0),
  "toy_tagging": ("f1", 90.0),
  "toy_spans": ("em", 60.0),
}


@pytest.fixture
def run_command(request):
  """The command line, under another name than the package, which these tests use."""
  return request.getfixturevalue("t5like")


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
  """The folder of the token caches."""
  return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def cached(caches, request):
  """Builds the token caches of a task of labeled_tasks.py by the real command, once."""
  run_here = request.getfixturevalue("t5like")

  @functools.cache
  def build(task, vocabulary):
    given = [f"--vocabulary={vocabulary}", f"--out={caches}", "--task_modules=labeled_tasks"]
    for split in ("train", "validation"):
      run_here("cache", task, f"--split={split}", *given)

  return build


@pytest.fixture
def settings(tmp_path, caches, cached):
  """Arguments of an experiment with a family and a task."""

  def make(family, task, **changes):
    vocabulary, model = MODELS[family]
    if task in TASKS:
      cached(task, vocabulary)
    given = dict(
      model_dir=str(tmp_path / f"{family}_{task}"), model=model, vocabulary=vocabulary, task=task,
      lengths={"inputs": 32}, batch_size=16, steps=60, optimizer=t5like.optimizers.adamw(0.01), z_loss=0.0,
      cache_dir=str(caches), log_period=20, eval_split="validation", task_modules=["labeled_tasks"],
    )  # fmt: skip
    return given | changes

  return make


def trained(settings, *arguments, **changes):
  return t5like.train(t5like.Experiment(**settings(*arguments, **changes)))


@pytest.mark.parametrize("task", ["toy_classification", "toy_marks_classification", "toy_tagging"])
def test_a_misspelled_metric_is_refused_at_the_start(task, settings):
  name = f"eval/{task}/{EXPECTED[task][0]}"
  for metric in (f"{name}x", f"eval/{task}/bleu"):
    with pytest.raises(UserError, match="EARLY_STOPPING.metric = .* is not computed in this run") as error:
      trained(settings, "bert", task, early_stopping=EarlyStopping(metric))
    assert name in error.value.lines["expected"]
  for metric in (name, f"eval/{task}/f1_of_a_rare_class") if task == "toy_tagging" else (name,):
    prepare(t5like.Experiment(**settings("bert", task, early_stopping=EarlyStopping(metric))))


OWN_ROWS = {
  "rated_classification": [{"text": "good", "label": 4.5}, {"text": "bad", "label": 1}],
  "marked_classification": [{"text": "good", "label": ["praise", "any"]}, {"text": "bad", "label": ["any"]}],
  "places_spans": [
    {"question": "where", "context": "it was in rome", "answers": ["rome"]},
    {"question": "who", "context": "by an actor", "answers": ["actor"]},
  ],
  "towns_tagging": [{"tokens": ["in", "rome"], "tags": ["other", "B-place"]}, {"tokens": ["so"], "tags": ["other"]}],
}


SCORES_OF_OWN = {
  "rated_classification": ["pearson_corrcoef", "spearman_corrcoef", "mean_squared_error"],
  "marked_classification": ["f1_micro", "f1_macro", "exact_match"],
  "places_spans": ["em", "f1"],
  "towns_tagging": ["precision", "recall", "f1", "token_accuracy"],
}


@pytest.mark.parametrize("task", OWN_ROWS)
def test_rows_of_ones_own(task, settings, run_children_here, tmp_path):
  """Without a validation split, evaluations can be left out."""
  files = {"train": t5like.save_examples(OWN_ROWS[task] * 8, str(tmp_path))}
  own = dict(corpus_files=files, steps=30, cache_dir=str(tmp_path / "caches"), task_modules=())
  with pytest.raises(UserError, match="no split 'validation'\n +requested_by +EVAL_SPLIT\n +known +train\n") as error:
    trained(settings, "bert", task, **own)
  assert error.value.lines["try"] == "--gin.EVAL_SPLIT='' (no evaluations)"
  with pytest.raises(UserError, match="no split 'validation'") as error:
    trained(settings, "bert", task, **own | {"corpus_files": files | {"dev": files["train"]}})
  assert error.value.lines["try"].startswith("--gin.EVAL_SPLIT=dev, or ")
  assert not (tmp_path / "caches").exists()  # nothing was tokenized
  model = t5like.load(trained(settings, "bert", task, **own, eval_split="").model_dir)
  hint = model.source.task_hint(own["cache_dir"])
  assert f"t5like cache {task} --files=train={files['train']} --vocabulary=" in hint and "--lengths=inputs=" in hint
  rows = OWN_ROWS[task][:1] * 3
  new = t5like.evaluate(model, f"new_{task}", rows=rows, cache_dir=own["cache_dir"])  # classes as in training
  assert len(new.rows) == 3 and set(new.scores) >= set(SCORES_OF_OWN[task])
  again = t5like.evaluate(model, task, "train", cache_dir=own["cache_dir"])
  assert len(again.rows) == 16  # the rows of the run, not the new ones
  if task == "marked_classification":
    with pytest.raises(UserError, match="label of the training split"):
      t5like.evaluate(model, f"odd_{task}", rows=[{"text": "good", "label": ["new"]}], cache_dir=own["cache_dir"])
  if task == "rated_classification":
    assert new.scores["mean_squared_error"] < 1 and [row["target"] for row in new.rows] == [4.5] * 3
    assert model.classify("good") > model.classify("bad") + 1
  elif task == "marked_classification":
    good, bad = (model.classify(text).probabilities["praise"] for text in ("good", "bad"))
    assert good > 0.5 > bad
  elif task == "places_spans":
    assert model.answer("where", "it was in rome").answer == "rome" and new.scores["em"] == 100
  else:
    assert [tag.label for tag in model.tag([["in", "rome", "\u200b"]])[0]] == ["other", "B-place", "O"]  # no piece


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", TASKS)
def test_a_head_of_every_form_learns_its_task(task, settings, caches):
  result = trained(settings, "bert", task)
  name, expected = EXPECTED[task]
  score = result.scores[f"eval/{task}/{name}"]
  assert score >= expected
  model = t5like.load(result.model_dir)
  again = t5like.evaluate(model, task, cache_dir=str(caches), task_modules=("labeled_tasks",))
  assert again.scores[name] == pytest.approx(score, abs=1e-4)
  assert len(again.rows) == (48 if "choices" in task else 16)
  _check_methods(task, model)


def _check_methods(task, model):
  if task == "toy_classification":
    one, two = model.classify(["sea good came calm sea sea", "bad was ship was the the"])
    assert (one.label, two.label) == ("positive", "negative")
    assert one.probability == one.probabilities["positive"] == pytest.approx(1 - one.probabilities["negative"])
    assert model.classify("sea good came calm sea sea").label == one.label
    with pytest.raises(t5like.UserError, match="tag does not support ClassificationHead"):
      model.tag("the sea")
    with pytest.raises(t5like.UserError, match="too long: .* 64 positions"):
      model.classify("sea " * 80)
    assert model.classify("good " * 80, truncate=True).label == "positive"
  elif task == "toy_marks_classification":
    texts = [labeled_tasks.marked(number)["first"] for number in (0, 3)]
    none, both = model.classify(texts)
    assert (none.labels, both.labels) == ([], ["good", "bad"]) and set(none.probabilities) == {"good", "bad"}
    assert model.classify(texts[0], threshold=0.0).labels == ["good", "bad"]
  elif task == "toy_scores_classification":
    low, high = model.classify([(labeled_tasks.values(number)["first"], "") for number in (0, 3)])
    assert high > low + 1 and isinstance(model.classify(("the sea", "")), float)
  elif task == "toy_tagging":
    tags = model.tag("the ship came from Berlin")
    assert [tag.word for tag in tags] == ["the", "ship", "came", "from", "Berlin"]
    assert [tag.label for tag in tags] == ["O", "O", "O", "O", "B-location"] and tags[-1].probability > 0.5
    assert model.tag([["the", "Berlin"], ["a"]])[0] == model.tag([["the", "Berlin"]])[0]
    for wrong in (None, 3, b"x", ["a", None], [["a", 3]]):
      with pytest.raises(t5like.UserError, match="not a text or a list of words"):
        model.tag(wrong)
    with pytest.raises(t5like.UserError, match=r"no words to tag\Z"):
      model.tag("")
    words = [tag.word for tag in tags]
    rows, answers = Path(model.folder) / "rows.jsonl", Path(model.folder) / "answers.jsonl"
    text = " ".join(words)  # in outputs, `tokens` is their number, or are their ids
    given = [{"words": words}, {"tokens": words}, {"text": text}, {"words": None, "tokens": words}]
    given += [{"inputs": text, "tokens": 5}, {"inputs": text, "tokens": [5, 6]}]
    rows.write_text("".join(json.dumps(row) + "\n" for row in given))
    assert main(["infer", f"--model={model.folder}", f"--input={rows}", f"--output={answers}"]) == 0
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [answer["tags"] for answer in found] == [[tag.label for tag in tags]] * 6
    rows.write_text('{"words": "the ship"}\n')
    assert main(["infer", f"--model={model.folder}", f"--input={rows}", f"--output={answers}.2"]) == 1
  elif task == "toy_spans":
    found = model.answer("which city ?", "the sea was calm and a ship came from Berlin a ship")
    assert found.answer == "Berlin" and 0 < found.probability <= 1 and found.score > found.null_score
    assert [a.answer for a in model.answer(["which city ?"] * 2, "a ship came Berlin far")] == ["Berlin"] * 2
    with pytest.raises(UserError, match="1 questions but 2 passages"):
      model.answer("which city ?", ["a ship", "Berlin"])
    with pytest.raises(UserError, match="not a text: None"):
      model.answer("which city ?", None)
    with pytest.raises(UserError, match=r"texts\[1\]: a window of .* is too short for a passage"):
      model.answer(["which city ?", "which city " * 40], "a ship")
    _check_threshold(model)


def _check_threshold(model):
  """The threshold that evaluation found at a step is used, and kept by copies of the model."""
  asked = ("which city ?", "a ship came Berlin far")
  margin = model.answer(*asked).null_score - model.answer(*asked).score
  assert model.no_answer_threshold is None and model.answer(*asked, threshold=margin - 0.1).answer == ""
  row = {"step": model.step(), "kind": "eval/squad_v2_spans", "best_f1_thresh": margin - 0.1}
  with (model.folder / "metrics.jsonl").open("a") as file:
    file.write(json.dumps(row) + "\n" + json.dumps(row | {"step": 1, "best_f1_thresh": 100.0}) + "\n")
  assert model.answer(*asked).answer == "" and model.answer(*asked, unanswerable=False).answer == "Berlin"
  assert model.answer(*asked, threshold=margin).answer == "Berlin"  # not above the threshold
  assert t5like.load(model.save(f"{model.folder}_copy")).no_answer_threshold == row["best_f1_thresh"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "gpt"])
def test_t5_and_gpt_with_heads(family, settings):
  head = ClassificationHead(lm_loss_weight=0.5) if family == "gpt" else "task"
  result = trained(settings, family, "toy_classification", head=head, eval_loss_period=30)
  assert result.scores["eval/toy_classification/accuracy"] == 100.0
  assert ("lm_loss" in result.metrics) == (family == "gpt")
  model = t5like.load(result.model_dir)
  assert model.kind in ("T5", "GPT") and model.module.head.labels == ("negative", "positive")
  assert model.classify("good far calm far came came").label == "positive" and model.embed("a ship").shape == (16,)


@pytest.mark.slow
def test_padding_to_buckets_changes_no_loss(settings, use_devices):
  """Rows have 9 to 12 tokens: batches of four are padded to 11 or 32; a stopped run resumes with the same shapes."""
  task, axes = "toy_scores_classification", MeshAxes(data=4, tensor=2)
  given = dict(batch_size=4, log_period=1, eval_split="", mesh=axes, optimizer=t5like.optimizers.adamw(1e-3))
  with use_devices(8):
    trained(settings, "bert", task, steps=3, length_buckets=[4, 11], **given)
    found = trained(settings, "bert", task, steps=6, length_buckets=[4, 11], **given)
    full = trained(settings, "bert", task, steps=6, **given, model_dir=f"{found.model_dir}_full")
  losses, tokens = [], []
  for result in (found, full):
    rows = [row for row in read_metrics(result.model_dir) if row["kind"] == "train"]
    losses.append([row["loss"] for row in rows])
    tokens.append({round(row["tokens_per_second"] / row["steps_per_second"]) for row in rows})
  assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) == 6
  assert tokens == [{4 * 11, 4 * 32}, {4 * 32}]
  assert "padded to 4, 11 or 32 tokens" in (Path(found.model_dir) / "run_card.txt").read_text()


@pytest.mark.slow
def test_the_configuration_of_a_run_names_its_head_and_a_stopped_run_resumes(settings):
  first = trained(settings, "bert", "toy_tagging", steps=2, log_period=1)
  experiment = load_experiment(Path(first.model_dir))
  assert isinstance(experiment.model, WithHead) and experiment.model.head.labels == ("O", "B-location")
  assert not experiment.model.config.pooler and not experiment.model.config.mlm_head
  with pytest.raises(t5like.UserError, match="the labels of the head have changed since this checkpoint"):
    trained(settings, "bert", "toy_tagging", steps=4, head=TaggingHead(("B-0", "0")))
  again = trained(settings, "bert", "toy_tagging", steps=4, log_period=1)
  straight = trained(settings, "bert", "toy_tagging", steps=4, log_period=1, model_dir=f"{first.model_dir}_straight")
  assert (again.step, again.metrics["loss"]) == (4, straight.metrics["loss"])
  card = json.loads((Path(first.model_dir) / "run_card.json").read_text())
  assert card["model"]["head"]["class"] == "TaggingHead" and "BERT with a TaggingHead" in card["text"]["model"]


def test_commands_train_evaluate_and_infer(cached, run_command, caches, tmp_path):
  """As a user: gin files, a head of gin with settings of its own, and the files that commands write."""
  cached("toy_classification", "bert_uncased")
  sizes = dict(EMBED_DIM=16, MLP_DIM=32, HEAD_DIM=8, NUM_ENCODER_LAYERS=1)
  small = [f"--gin.{name}={value}" for name, value in sizes.items()]
  run, shared = tmp_path / "run", [f"--cache_dir={caches}", "--task_modules=labeled_tasks"]
  run_command(
    "train", "--gin_file=models/bert/tiny.gin", *small, "--gin_file=runs/finetune.gin", "--gin.TASK=toy_classification",
    "--gin.INIT_FROM=None", f"--gin.MODEL_DIR={run}", f"--gin.CACHE_DIR={caches}", "--gin.BATCH_SIZE=16",
    "--gin.TASK_MODULES=['labeled_tasks']", "--gin.TRAIN_STEPS=3", "--gin.LENGTHS={'inputs': 16}",
    "--gin.HEAD=@ClassificationHead()", "--gin.ClassificationHead.pooling='mean'",
    "--gin.ClassificationHead.mix_layers=True",
  )  # fmt: skip
  head = load_experiment(run).model.head
  assert (head.pooling, head.mix_layers, head.labels) == ("mean", True, ("negative", "positive"))
  printed = run_command("eval", f"--model={run}", "--task=toy_classification", "--batch_size=6", *shared).stdout
  (written,) = (run / "predictions").glob("toy_classification-validation-3.jsonl")
  rows = [json.loads(line) for line in written.read_text().splitlines()]
  assert "accuracy" in printed and "(always 'negative': " in printed
  assert len(rows) == 16 and sum(rows[0]["probabilities"].values()) == pytest.approx(1)
  (tmp_path / "texts.jsonl").write_text('{"inputs": "a good ship"}\n{"inputs": "a", "second": "bad ship"}\n')
  lines = run_command("infer", f"--model={run}", f"--input={tmp_path / 'texts.jsonl'}").stdout.splitlines()
  assert [json.loads(line)["label"] in ("negative", "positive") for line in lines] == [True, True]
  (tmp_path / "rows.jsonl").write_text('{"text": "a good ship"}\n{"text": "a", "text_pair": "bad ship"}\n')  # to train
  same = run_command("infer", f"--model={run}", f"--input={tmp_path / 'rows.jsonl'}").stdout.splitlines()
  assert [json.loads(line)["probabilities"] for line in same] == [json.loads(line)["probabilities"] for line in lines]
  lines = run_command(
    "infer", f"--model={run}", "--task=toy_classification", "--examples=3", *shared
  ).stdout.splitlines()
  assert [json.loads(line)["target"] for line in lines] == [0, 1, 0]
  error = run_command("infer", f"--model={run}", f"--input={tmp_path / 'texts.jsonl'}", "--beams=4", status=2).stderr
  assert "a head does not decode: --beams" in error
  error = run_command("eval", f"--model={run}", "--task=toy_classification", "--rank", *shared, status=2).stderr
  assert "--rank needs a model that generates text" in error


def test_a_plan_counts_the_head(settings):
  experiment = t5like.Experiment(**settings("bert", "toy_choices_classification"))
  (work,) = planned_work(experiment)
  assert work.model.head.choices == 3 and work.batch["encoder_input_tokens"].shape == (16, 3, 32)


@pytest.mark.parametrize(
  ("family", "task", "changes", "message"),
  [
    ("bert", "toy_tagging", {"head": ClassificationHead()}, r"labels of task 'toy_tagging' \(tagging\) do not fit"),
    ("bert", "toy_classification", {"head": ClassificationHead(("yes", "no"))}, "classes of task .* are not those"),
    ("bert", "toy_classification", {"head": ClassificationHead(("0",))}, "invalid ClassificationHead.labels"),
    (
      "bert",
      "toy_classification",
      {"head": None, "lengths": {"inputs": 9, "targets": 2}},
      "BERT is an encoder: text-to-text tasks need a decoder",
    ),
    ("bert", "toy_spans", {"lengths": {"inputs": 65}}, "rows of 65 tokens are too long for a model with 64 learned"),
    ("bert", "toy_spans", {"lengths": {"inputs": 6}}, "a window of 6 tokens is too short"),
    ("bert", "toy_classification", {"stream": True}, "STREAM = True does not support a head"),
    ("bert", "toy_classification", {"pack": True}, "PACK = True does not support a head"),
    ("gpt", "toy_tagging", {"head": ClassificationHead(pooling="pooler")}, "do not fit"),
    ("t5", "toy_classification", {"head": ClassificationHead(pooling="pooler")}, "T5 has no pooler"),
    (
      "bert",
      "toy_classification",
      {"head": ClassificationHead(dropout_rate=2)},
      "invalid ClassificationHead.dropout_rate",
    ),
    ("bert", "toy_classification", {"head": ClassificationHead(pooled_dropout_rate=1.0)}, "0 <= rate < 1"),
    ("bert", "toy_classification", {"head": ClassificationHead(lm_loss_weight=-1)}, "a number from 0"),
    ("bert", "toy_tagging", {"head": TaggingHead(dropout_rate=-0.1)}, "invalid TaggingHead.dropout_rate"),
    ("bert", "toy_spans", {"head": SpanHead(dropout_rate="0.1")}, "invalid SpanHead.dropout_rate"),
  ],
)
def test_errors_come_before_anything_is_written(family, task, changes, message, settings):
  given = settings(family, task) | changes
  with pytest.raises(t5like.UserError, match=message):
    t5like.train(t5like.Experiment(**given))
  assert not (Path(given["model_dir"]) / "checkpoints").exists()


def test_a_task_without_labels_and_a_model_without_a_head(settings, token_caches, caches, tmp_path):
  with pytest.raises(t5like.UserError, match="task 'snli' has no labels for a head"):
    given = settings("bert", "snli", cache_dir=str(token_caches), vocabulary="tiny", task_modules=[])
    t5like.train(t5like.Experiment(**given))
  loaded = t5like.load(folder_of("bert", tmp_path / "bert", eos=2, cls=1, sep=2))
  with pytest.raises(t5like.UserError, match="BERT is an encoder without a head"):
    t5like.evaluate(loaded, "toy_classification", cache_dir=str(caches), task_modules=("labeled_tasks",))
  with pytest.raises(t5like.UserError, match="this BERT has no head for labels"):
    loaded.classify("the sea")


@pytest.mark.slow
def test_a_method_and_a_head_train_together(settings):
  """LoRA on a frozen backbone, and the head of the task: the checkpoint holds both and nothing else."""
  base = trained(settings, "bert", "toy_marks_classification", steps=1)
  result = trained(
    settings,
    "bert",
    "toy_classification",
    init_from=base.model_dir,
    trainable=LoRA(rank=4, targets=[".*/query", ".*/value"]),
  )
  stored = stored_arrays(Path(result.model_dir) / "checkpoints/60/params")
  assert all("lora" in path or path.startswith("head/") for path in stored) and any("lora" in path for path in stored)
  assert result.scores["eval/toy_classification/accuracy"] > 80
  answers = t5like.load(result.model_dir).classify(["good", "bad"])
  assert len(answers) == 2
