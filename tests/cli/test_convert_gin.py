"""`t5like convert gin` on T5X's configurations of T5 1.1: values, and a dry run of the result."""

from pathlib import Path

import jax.numpy as jnp
import optax
import pytest

from t5like import configuration
from t5like.experiments.reading import read_experiment
from t5like.objectives.span_corruption import SpanCorruption

EXAMPLES = Path(__file__).parents[1] / "data" / "t5x_gin" / "t5x" / "examples"
T5X, DECODERS = EXAMPLES / "t5" / "t5_1_1" / "examples", EXAMPLES / "decoder_only" / "examples"


@pytest.fixture
def translated(t5like, tmp_path, token_caches):
  """Returns the experiment of a translated file: converted, loaded and checked by a dry run."""

  def translate(name, *overrides, folder=T5X, train=("--gin.INIT_FROM=None",)):
    out = tmp_path / f"{Path(name).stem}.gin"
    done = t5like("convert", "gin", folder / name, f"--out={out}", *overrides)
    options = [f"--gin.MODEL_DIR={tmp_path}/run", "--gin.VOCABULARY=tiny", f"--gin.CACHE_DIR={token_caches}"]
    card = t5like("train", f"--gin_file={out}", *options, *train, "--dry_run", devices=8).stdout
    return configuration.build("train"), out.read_text(), done, card

  return translate


def rate(experiment, step) -> float:
  return float(experiment.optimizer.learning_rate(jnp.int32(step)))


def test_fine_tuning(translated):
  run, text, done, card = translated("base_wmt_finetune.gin", "--gin.MIXTURE_OR_TASK_NAME=snli")
  assert "# T5X: 1020000, which includes the 1000000 steps of pre-training\nTRAIN_STEPS = 20000" in text
  assert "INIT_FROM = 'gs://t5-data/pretrained_models/t5x/t5_1_1_base/checkpoint_1000000'" in text
  assert (run.steps, run.batch_size, run.task, run.pack) == (20_000, 128, "snli", True)
  assert run.lengths == {"inputs": 256, "targets": 256}
  config = run.model.config
  assert (config.dropout_rate, config.embed_dim, config.num_encoder_layers, config.gated_mlp) == (0.1, 768, 12, True)
  assert run.loss_normalizer == 2048 * 114
  assert rate(run, 0) == rate(run, 19_999) == pytest.approx(0.001)
  assert (run.checkpoint_period, run.keep.every, run.eval_period, run.eval_loss_period) == (5000, 5000, 100, 100)
  assert run.decoding == {"beams": 4, "length_penalty": 0.6} and "num_decodes" not in text
  assert "dropout 0.1" in card


def test_a_task_of_the_t5_package_with_a_counterpart(t5like):
  text = t5like("convert", "gin", T5X / "base_wmt_finetune.gin").stdout
  assert "# T5X: wmt_t2t_ende_v003\nTASK = 'wmt_en_de'" in text and "TASK_MODULES" not in text


def test_pre_training(translated):
  run, text, *_ = translated("base_c4_pretrain.gin", "--gin.MIXTURE_OR_TASK_NAME=novels_span_corruption", train=())
  assert (run.task, run.objective.name, run.steps, run.batch_size) == ("novels", "span_corruption", 100_000, 256)
  assert run.lengths == {"inputs": 512, "targets": 114} and run.model.config.dropout_rate == 0.0
  assert rate(run, 0) == pytest.approx(0.01) and rate(run, 40_000) == pytest.approx(0.005)
  assert (run.eval_split, run.eval_period, run.eval_loss_period, run.eval_loss_batches) == ("validation", 0, 2000, 20)
  assert run.checkpoint_period == 1000 and run.init_from is None


def test_mesh_microbatches_smoothing_and_kept_checkpoints(translated):
  run, text, *_ = translated("base_wmt19_ende_train.gin", "--gin.MIXTURE_OR_TASK_NAME=snli",
                             "--gin.MIXTURE_OR_TASK_MODULE=None", train=("--gin.TASK_MODULES=[]",))  # fmt: skip
  assert (run.mesh.tensor, run.mesh.data, run.microbatches, run.label_smoothing) == (2, -1, 2, 0.1)
  assert (run.seed, run.steps, run.init_from, run.keep.last, run.log_period) == (0, 5000, None, 1, 250)


def test_includes_of_a_checkout_are_followed_and_adamw_is_translated(translated):
  run, text, done, _ = translated("base_wmt_from_scratch_adamw.gin", "--gin.MIXTURE_OR_TASK_NAME=snli",
                                  train=("--gin.TASK_MODULES=[]",))  # fmt: skip
  assert (run.steps, run.mesh.tensor, run.eval_period, run.pack) == (50_000, 2, 500, True)
  # optax's defaults; elementwise gradient clipping is not supported
  assert run.optimizer.description == "adamw(b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.0001)"
  assert "optax.clip.max_delta = 1.0" in done.stderr and "optax.clip.max_delta = 1.0" in text
  theirs = optax.warmup_cosine_decay_schedule(0.0, 1e-4, 1000, 50_000, 0.0)
  for step in (0, 500, 1000, 20_000, 50_000):
    assert rate(run, step) == pytest.approx(float(theirs(step)), abs=1e-12)


def from_file(t5like, tmp_path, token_caches, *lines):
  """Returns the experiment of a T5X file that pre-trains from scratch, and the untranslated lines."""
  (tmp_path / "theirs.gin").write_text(
    "include 't5x/examples/t5/t5_1_1/small.gin'\ninclude 't5x/configs/runs/pretrain.gin'\nTRAIN_STEPS = 1000\n"
    "MIXTURE_OR_TASK_NAME = 'novels_span_corruption'\nTASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 20}\n"
    + "\n".join(lines) + "\n"
  )  # fmt: skip
  out = tmp_path / "ours.gin"
  done = t5like("convert", "gin", tmp_path / "theirs.gin", f"--out={out}")
  options = [f"--gin.MODEL_DIR={tmp_path}/run", "--gin.VOCABULARY=tiny", f"--gin.CACHE_DIR={token_caches}"]
  t5like("train", f"--gin_file={out}", *options, "--gin.EVAL_SPLIT=''", "--gin.EVAL_LOSS_PERIOD=0", "--dry_run")
  return configuration.build("train"), done.stderr


OPTIMIZERS = [
  (
    ["OPTIMIZER = @optimizers.OptaxWrapper()", "optimizers.OptaxWrapper.optax_optimizer = @optax.adamw()",
     "optax.adamw.learning_rate = 0.002", "optax.adamw.b2 = 0.98", "optax.adamw.weight_decay = 0.1",
     "optax.adamw.mu_dtype = 'bfloat16'"],
    "adamw(b1=0.9, b2=0.98, eps=1e-08, weight_decay=0.1)", lambda step: 0.002,
  ),
  (
    ["OPTIMIZER = @optimizers.chain()", "optax.clip_by_global_norm.max_norm = 0.5",
     "optimizers.chain.transformations = [@optax.clip_by_global_norm(), @optax.lion()]",
     "optax.lion.learning_rate = @utils.create_learning_rate_scheduler()", "optax.lion.b2 = 0.98",
     "utils.create_learning_rate_scheduler.factors = 'constant * rsqrt_decay'",
     "utils.create_learning_rate_scheduler.base_learning_rate = 0.1"],
    "lion(b1=0.9, b2=0.98, weight_decay=0.001, clip_norm=0.5)", lambda step: 0.001,
  ),
  (
    ["OPTIMIZER = @optimizers.adam()", "optimizers.adam.learning_rate = @optax.linear_schedule()",
     "optax.linear_schedule:", "  init_value = 0.01", "  end_value = 0.001", "  transition_steps = 800"],
    "adamw(b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.0)", optax.linear_schedule(0.01, 0.001, 800),
  ),
  (
    ["OPTIMIZER = @optimizers.lion()", "optimizers.lion.learning_rate = @optax.cosine_decay_schedule()",
     "optax.cosine_decay_schedule.init_value = 0.01", "optax.cosine_decay_schedule.decay_steps = 900",
     "optax.cosine_decay_schedule.alpha = 0.1"],
    "lion(b1=0.9, b2=0.99, weight_decay=0.001)", optax.cosine_decay_schedule(0.01, 900, 0.1),
  ),
]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lines, description, theirs", OPTIMIZERS, ids=["wrapper", "chain", "linear", "cosine"])
def test_optimizers_of_optax(t5like, tmp_path, token_caches, lines, description, theirs):
  run, listed = from_file(t5like, tmp_path, token_caches, *lines)
  assert run.optimizer.description == description and "not translated: 0" in listed
  for step in (0, 300, 800, 999):
    assert rate(run, step) == pytest.approx(float(theirs(step)))


@pytest.mark.parametrize(
  "lines, words",
  [
    (["OPTIMIZER = @optimizers.sgd()"], ["OPTIMIZER = %gin.REQUIRED"]),
    (["OPTIMIZER = @optimizers.chain()", "optimizers.chain.transformations = [@optax.adamw(), @optax.clip()]"],
     ["OPTIMIZER = %gin.REQUIRED"]),
    (["OPTIMIZER = @optimizers.adamw()"], ["OPTIMIZER = @adamw()", "LEARNING_RATE = %gin.REQUIRED"]),
    (["OPTIMIZER = @optimizers.adamw()", "optimizers.adamw.learning_rate = @optax.polynomial_schedule()"],
     ["LEARNING_RATE = %gin.REQUIRED", "learning_rate = @optax.polynomial_schedule()"]),
    (["OPTIMIZER = @optimizers.adamw()", "optimizers.adamw.learning_rate = @optax.cosine_decay_schedule()",
      "optax.cosine_decay_schedule.init_value = 1.0", "optax.cosine_decay_schedule.decay_steps = 9",
      "optax.cosine_decay_schedule.exponent = 2.0"], ["LEARNING_RATE = %gin.REQUIRED"]),
    (["OPTIMIZER = @optimizers.adamw()", "optimizers.adamw.learning_rate = 0.1", "optimizers.adamw.mask = @mine",
      "optimizers.adamw.nesterov = True"],
     ["optimizers.adamw.mask = @mine", "optimizers.adamw.nesterov = True", "# Not translated:"]),
    (["TRAIN_STEPS = 5000", "utils.create_learning_rate_scheduler.factors = 'constant * cosine_decay'",
      "utils.create_learning_rate_scheduler.steps_per_cycle = 1000",
      "utils.create_learning_rate_scheduler.warmup_steps = 10"], ["LEARNING_RATE = %gin.REQUIRED"]),
    (["RANDOM_SEED = 42", "train/utils.DatasetConfig.seed = 3", "train/utils.DatasetConfig.shuffle = False"],
     ["SEED = 42", "train/utils.DatasetConfig.seed = 3", "train/utils.DatasetConfig.shuffle = False"]),
  ],
)  # fmt: skip
def test_unsupported_settings_are_listed_or_required(t5like, tmp_path, lines, words):
  (tmp_path / "theirs.gin").write_text("include 't5x/configs/runs/pretrain.gin'\n" + "\n".join(lines) + "\n")
  out = t5like("convert", "gin", tmp_path / "theirs.gin").stdout
  assert all(word in out for word in words), out


def test_an_unsupported_schedule_is_required_and_other_tasks_are_evaluated(t5like):
  done = t5like("convert", "gin", T5X / "base_wmt_finetune.gin",
                "--gin.utils.create_learning_rate_scheduler.factors=decay_every",
                "--gin.infer_eval/utils.DatasetConfig.mixture_or_task_name=glue_cola_v002")  # fmt: skip
  assert "LEARNING_RATE = %gin.REQUIRED" in done.stdout and "Required: MODEL_DIR, LEARNING_RATE." in done.stdout
  assert "EVAL_TASKS = ['glue_cola']" in done.stdout


def test_eval_and_infer_files_become_commands(t5like):
  done = t5like("convert", "gin", T5X / "base_wmt_eval.gin", "--gin.CHECKPOINT_PATH=/models/checkpoint_5")
  assert "t5like convert from_t5x /models/checkpoint_5 MODEL_DIR --gin_file=models/t5_1_1/base.gin" in done.stdout
  words = done.stdout.replace("\\\n", "").split()
  assert {"--model_dir=MODEL_DIR", "--task=wmt_en_de", "--split=test", "--batch_size=32"} <= set(words)
  assert "num_partitions = 2" in done.stderr
  words = t5like("convert", "gin", T5X / "base_wmt_infer.gin").stdout.replace("\\\n", "").split()
  assert {"infer", "--model=MODEL_DIR", "--max_inputs=64", "--max_length=64", "--truncate"} <= set(words)


def commands_of(t5like, tmp_path, *lines):
  (tmp_path / "theirs.gin").write_text("\n".join(lines) + "\n")
  done = t5like("convert", "gin", tmp_path / "theirs.gin")
  return done.stdout.replace("\\\n", "").split(), done.stderr


def test_a_file_that_scores_becomes_a_command_without_decoding_options(t5like, tmp_path):
  lines = ["include 't5x/configs/runs/infer.gin'", "TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 16}",
           "decoding.temperature_sample.topk = 5", "decoding.temperature_sample.temperature = 0.7"]  # fmt: skip
  words, _ = commands_of(t5like, tmp_path, *lines)
  assert {"--max_length=16", "--top_k=5", "--temperature=0.7"} <= set(words) and "--score" not in words
  words, _ = commands_of(t5like, tmp_path, *lines, "infer_script.infer.mode = 'score'")
  assert "--score" in words and "--max_inputs=64" in words
  assert not any(word.startswith(("--max_length", "--top_k", "--temperature")) for word in words)


def test_the_sizes_of_a_tiny_model_are_options_of_the_conversion(t5like, tmp_path):
  lines = ["import functools", "include 't5x/examples/t5/t5_1_1/tiny.gin'", "include 't5x/configs/runs/eval.gin'",
           "utils.RestoreCheckpointConfig.mode = 'all'"]  # fmt: skip
  words, listed = commands_of(t5like, tmp_path, *lines)
  assert {"--gin.EMBED_DIM=8", "--gin.NUM_ENCODER_LAYERS=2", "--gin.HEAD_DIM=3"} <= set(words)
  assert not any("functools" in word for word in words) and "mode = 'all'" in listed


def test_span_corruption_of_c4_is_t5xs_and_a_changed_schedule_is_noted(t5like, tmp_path):
  out = tmp_path / "ours.gin"
  (tmp_path / "theirs.gin").write_text(
    "include 't5x/examples/t5/t5_1_1/small.gin'\ninclude 't5x/configs/runs/pretrain.gin'\nTRAIN_STEPS = 1100000\n"
    "MIXTURE_OR_TASK_NAME = 'c4_v220_span_corruption'\nTASK_FEATURE_LENGTHS = {'inputs': 512, 'targets': 114}\n"
    "utils.RestoreCheckpointConfig.path = '/models/checkpoint_1000000'\n"
  )
  t5like("convert", "gin", tmp_path / "theirs.gin", f"--out={out}")
  run = read_experiment([str(out)], [("MODEL_DIR", str(tmp_path / "run"))])
  assert (run.task, run.objective) == ("c4", SpanCorruption(variant="t5")) and run.steps == 100_000
  assert "# T5X continues at the checkpoint's step, here the schedule starts at 0\nWARMUP_STEPS" in out.read_text()


def test_other_lengths_and_splits_of_evaluations_are_listed(t5like, tmp_path):
  same = ["include 't5x/configs/runs/finetune.gin'", "MIXTURE_OR_TASK_NAME = 'snli'", "TRAIN_STEPS = 10",
          "TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 16}", "infer_eval/utils.DatasetConfig.split = 'test'",
          "train_eval/utils.DatasetConfig.split = 'test'",
          "train_eval/utils.DatasetConfig.task_feature_lengths = %TASK_FEATURE_LENGTHS",
          "infer_eval/utils.DatasetConfig.task_feature_lengths = None"]  # fmt: skip
  assert "not translated: 0" in commands_of(t5like, tmp_path, *same)[1]
  other = ["infer_eval/utils.DatasetConfig.task_feature_lengths = {'inputs': 256, 'targets': 16}",
           "train_eval/utils.DatasetConfig.split = 'validation'"]  # fmt: skip
  listed = commands_of(t5like, tmp_path, *same, *other)[1]
  assert "'inputs': 256" in listed and "train_eval/utils.DatasetConfig.split = 'validation'" in listed


SCHEDULES = [
  ("constant * linear_warmup * rsqrt_decay", 2.0, 100, {0: 2 / 10 / 100, 99: 0.2, 399: 2 / 399**0.5}),
  ("constant * rsqrt_normalized_decay", 0.5, 100, {0: 0.5, 400: 0.25}),
  ("linear_warmup * constant", 0.3, 10, {4: 0.15, 50: 0.3}),
  # utils.create_learning_rate_scheduler of T5X: a decay_factor of 1/20000 per step; cycles of 100,000 steps
  ("linear_decay", 0.4, 100, {99: 0.4, 100: 0.4, 10_100: 0.2, 20_100: 0.0}),
  ("constant * linear_decay", 0.4, 100, {100: 0.16, 10_100: 0.08}),
  ("constant * linear_warmup * cosine_decay", 0.4, 100, {0: 0.0, 50: 0.2, 100: 0.4, 50_100: 0.2}),
  ("constant * cosine_decay", 0.4, 100, {0: 0.4, 100: 0.4, 50_100: 0.2}),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("factors, base, warmup, expected", SCHEDULES)
def test_learning_rates(translated, factors, base, warmup, expected):
  name = "utils.create_learning_rate_scheduler"
  run, *_ = translated(
    "base_c4_pretrain.gin", "--gin.MIXTURE_OR_TASK_NAME=novels_span_corruption", f"--gin.{name}.factors='{factors}'",
    f"--gin.{name}.base_learning_rate={base}", f"--gin.{name}.warmup_steps={warmup}",
    f"--gin.{name}.decay_factor=5e-5", train=(),
  )  # fmt: skip
  assert {step: rate(run, step) for step in expected} == pytest.approx(expected, abs=1e-7)


def test_a_file_is_data(t5like, tmp_path):
  (tmp_path / "bad_module.py").write_text("raise SystemExit('imported')\n")
  (tmp_path / "theirs.gin").write_text(
    "import bad_module\ninclude '/etc/passwd.gin'\ninclude 'unknown.gin'\n"
    "include 't5x/configs/runs/finetune.gin'\nTASK_FEATURE_LENGTHS = {'inputs': %N, 'targets': 8}\nN = 16\n"
    "MIXTURE_OR_TASK_NAME = 'mine\\n# x'\nMINE = 3\n"
  )
  done = t5like("convert", "gin", tmp_path / "theirs.gin")
  assert "TASK_MODULES = ['bad_module']" in done.stdout and "LENGTHS = {'inputs': 16, 'targets': 8}" in done.stdout
  assert r"TASK = 'mine\n# x'" in done.stdout and "MINE = 3 (no equivalent in t5like)" in done.stderr
  assert "include 'unknown.gin'" in done.stderr and "include '/etc/passwd.gin'" in done.stderr
  assert "Required: MODEL_DIR, TRAIN_STEPS, INIT_FROM." in done.stdout


@pytest.mark.parametrize(
  "arguments, words",
  [
    (["{missing}"], ["cannot read the gin file"]),
    (["{file}", "elsewhere"], ["--out=elsewhere"]),
    (["{file}", "--out={file}"], ["already exists"]),
  ],
)
def test_invalid_input(t5like, tmp_path, arguments, words):
  (tmp_path / "file.gin").write_text("BATCH_SIZE = 3\n")
  arguments = [a.format(missing=tmp_path / "none.gin", file=tmp_path / "file.gin") for a in arguments]
  failed = t5like("convert", "gin", *arguments, status=2)
  assert all(word in failed.stderr for word in words), failed.stderr


def test_a_decoder_that_reads_the_inputs_in_both_directions(translated):
  run, text, *_ = translated("base_wmt_from_scratch.gin", "--gin.MIXTURE_OR_TASK_NAME=snli", folder=DECODERS, train=())
  config = run.model.config
  assert (type(run.model).__name__, config.prefix_lm, config.num_encoder_layers, config.num_decoder_layers) == (
    "GPT", True, 0, 12,
  )  # fmt: skip
  assert config.tie_embeddings and config.scale_logits and config.gated_mlp and config.mlp_dim == 2048
  assert not run.loss_on_inputs and "num_decodes = 8" in text and "buckets in both directions" in text
  assert run.decoding == {"temperature": 1.0, "top_k": 40}  # of T5X's model file


def test_a_causal_decoder(translated):
  name = "base_pretrain_causal_full_lm.gin"
  run, *_ = translated(name, folder=DECODERS, train=("--gin.TASK=novels", "--gin.BATCH_SIZE=8"))
  assert (run.objective.name, run.lengths, run.steps) == ("full_lm", {"inputs": 626}, 100_000)
  assert type(run.model).__name__ == "GPT" and not run.model.config.prefix_lm


def test_a_decoder_with_a_network_and_a_loss_of_its_own(t5like, tmp_path):
  path = tmp_path / "own.gin"
  path.write_text("""
MODEL = @models.DecoderOnlyModel()
models.DecoderOnlyModel:
  module = @network.DecoderWrapper()
  z_loss = 0.01
network.TransformerConfig:
  num_layers = 3
  emb_dim = 96
  logits_via_embedding = True
seqio.PrefixLMFeatureConverter.loss_on_targets_only = False
""")
  text = t5like("convert", "gin", path).stdout
  included = "include 'models/t5/base.gin'\ninclude 'models/t5/architectures/lm.gin'\n"
  assert included in text and "train.loss_on_inputs = True" in text and "Z_LOSS = 0.01" in text
  assert "NUM_DECODER_LAYERS = 3" in text and "EMBED_DIM = 96" in text and "Not translated" not in text
  path.write_text(path.read_text() + "models.DecoderOnlyModel.inputs_bidirectional_attention = True\n")
  text = t5like("convert", "gin", path).stdout
  assert "architectures/prefix_lm.gin" in text and "train.loss_on_inputs = True" not in text
  assert "#   seqio.PrefixLMFeatureConverter.loss_on_targets_only = False (train.loss_on" in text


FINE_TUNING = [
  "include 't5x/examples/t5/t5_1_1/small.gin'", "include 't5x/configs/runs/finetune.gin'",
  "MIXTURE_OR_TASK_NAME = 'snli'", "TRAIN_STEPS = 1000500", "TASK_FEATURE_LENGTHS = {'inputs': 64, 'targets': 16}",
  "INITIAL_CHECKPOINT_PATH = '/models/checkpoint_1000000'",
]  # fmt: skip


@pytest.mark.parametrize(
  "line",
  [
    "MODEL = @my_lab.models.MyModel()",
    "models.EncoderDecoderModel.module = @my_lab.models.Net()",
    "models.EncoderDecoderModel.module = @layers.Transformer()",  # imported below
    "models.EncoderDecoderModel.module = @my_lab.models.Transformer()",
    "models.EncoderDecoderModel.module = @their_lab.models.Transformer()",
    "models.EncoderDecoderModel.output_vocabulary = @seqio.ByteVocabulary()",
    "models.EncoderDecoderModel.optimizer_def = @optimizers.sgd()",
    "trainer.Trainer.learning_rate_fn = @my_lab.models.lr()",
    "train_script.train.trainer_cls = @my_lab.models.MyTrainer",
    "train_script.train.train_dataset_cfg = @mine/utils.DatasetConfig()",
    "network.Transformer.config = @my/network.T5Config()",
    "seqio.Evaluator.logger_cls = [@seqio.PyLoggingLogger, @my_lab.models.Logger]",
  ],
)
def test_objects_of_the_user_are_listed(t5like, tmp_path, line):
  lines = ["import my_lab.models", "from my_lab import layers", *FINE_TUNING, line]
  _, listed = commands_of(t5like, tmp_path, *lines)
  assert line.split("@")[1].split(",")[0] in listed


def test_objects_of_t5x_are_not_listed(t5like, tmp_path):
  lines = ["from t5x import models", *FINE_TUNING, "import seqio",
           "MODEL = @models.EncoderDecoderModel()", "models.EncoderDecoderModel.module = @network.Transformer()",
           "models.EncoderDecoderModel.output_vocabulary = %VOCABULARY",
           "trainer.Trainer.learning_rate_fn = @utils.create_learning_rate_scheduler()",
           "train_script.train.train_dataset_cfg = @train/utils.DatasetConfig()",
           "seqio.Evaluator.logger_cls = [@seqio.PyLoggingLogger, @seqio.JSONLogger]",
           "network.Transformer.config = @network.T5Config()",
           "network.DecoderWrapper.config = @network.TransformerConfig()"]  # fmt: skip
  assert "not translated: 0" in commands_of(t5like, tmp_path, *lines)[1]


def test_an_optimizer_and_a_rate_in_the_place_of_macros(t5like, tmp_path):
  lines = [*FINE_TUNING, "models.EncoderDecoderModel.optimizer_def = @optimizers.adamw()",
           "optimizers.adamw.learning_rate = 0.25"]  # fmt: skip
  words, _ = commands_of(t5like, tmp_path, *lines)
  assert "@adamw()" in words and "FINETUNE_LEARNING_RATE = 0.25" in " ".join(words)
  words, _ = commands_of(t5like, tmp_path, *FINE_TUNING, "trainer.Trainer.learning_rate_fn = @my.rate()")
  assert "LEARNING_RATE = %gin.REQUIRED" in " ".join(words)


def test_files_of_the_user_are_read_though_they_are_called_as_t5xs(t5like, tmp_path):
  for name, text in (
    ("my_lab/t5/t5_1_1/small.gin", "include 't5x/examples/t5/t5_1_1/base.gin'\nnetwork.T5Config.emb_dim = 96\n"),
    ("my_lab/configs/runs/finetune.gin", "include 't5x/configs/runs/finetune.gin'\n"
     "utils.create_learning_rate_scheduler.base_learning_rate = 3e-4\nBATCH_SIZE = 48\n"),
  ):  # fmt: skip
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
  own = ["include 'my_lab/t5/t5_1_1/small.gin'", "include 'my_lab/configs/runs/finetune.gin'", *FINE_TUNING[2:]]
  words, listed = commands_of(t5like, tmp_path, *own)
  text = " ".join(words)
  assert "include 'models/t5_1_1/base.gin' include 'runs/finetune.gin'" in text and "EMBED_DIM = 96" in text
  assert "FINETUNE_LEARNING_RATE = 0.0003" in text and "BATCH_SIZE = 48" in text and "not translated: 0" in listed
  _, listed = commands_of(t5like, tmp_path, "include 'other/runs/finetune.gin'", "TRAIN_STEPS = 5",
                          "include 't5x/contrib/moe/configs/runs/finetune.gin'")  # fmt: skip
  assert "include 'other/runs/finetune.gin'" in listed and "contrib/moe" in listed


def test_parameters_come_before_the_macros_that_they_replace(t5like, tmp_path):
  words, _ = commands_of(
    t5like,
    tmp_path,
    *FINE_TUNING,
    "train/utils.DatasetConfig.mixture_or_task_name = 'glue_cola_v002'",
    "utils.RestoreCheckpointConfig.path = '/other/checkpoint_1000100'",
  )
  text = " ".join(words)
  assert "INIT_FROM = '/other/checkpoint_1000100'" in text and "TRAIN_STEPS = 400" in text
  assert "TASK = 'glue_cola'" in text and "EVAL_TASKS = ['snli']" in text


@pytest.mark.parametrize(("lines", "decoding"), [
  (["predict_batch_with_aux.num_decodes = 4", "decoding.beam_search.alpha = 1.0"],
   "{'beams': 4, 'length_penalty': 1.0}"),
  (["models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample", "decoding.temperature_sample.topk = 0",
    "decoding.temperature_sample.temperature = 0.5", "decoding.temperature_sample.topp = 0.9"],
   "{'temperature': 0.5, 'top_p': 0.9}"),
  (["models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample"], None),  # T5X's top_k is 1: greedy
  (["models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample", "decoding.temperature_sample.topk = 40",
    "decoding.temperature_sample.temperature = 0.0"], None),
])  # fmt: skip
def test_evaluations_decode_as_in_t5x(t5like, tmp_path, lines, decoding):
  words, listed = commands_of(t5like, tmp_path, *FINE_TUNING, *lines)
  assert "not translated: 0" in listed
  assert (f"DECODING = {decoding}" in " ".join(words)) if decoding else ("DECODING" not in words)


def test_a_checkpoint_of_a_decoder_cannot_be_read(t5like, tmp_path):
  decoder = "include 't5x/examples/decoder_only/models/base.gin'"
  words, listed = commands_of(t5like, tmp_path, decoder, "include 't5x/configs/runs/eval.gin'",
                              "CHECKPOINT_PATH = '/x/checkpoint_10'")  # fmt: skip
  assert "/x/checkpoint_10" in listed and "from_t5x" not in words and "--top_k=40" in words
  evaluated = ["include 't5x/configs/runs/eval.gin'", "predict_batch_with_aux.num_decodes = 4"]
  words, listed = commands_of(t5like, tmp_path, decoder, *evaluated)
  assert "--beams=4" not in words and "num_decodes = 4" in listed
  words, _ = commands_of(t5like, tmp_path, FINE_TUNING[0], *evaluated, "decoding.beam_search.alpha = 1.0")
  assert {"--beams=4", "--length_penalty=1.0"} <= set(words)
  words, listed = commands_of(t5like, tmp_path, decoder, *FINE_TUNING[1:])
  assert "INIT_FROM = %gin.REQUIRED" in " ".join(words) and "/models/checkpoint_1000000" in listed
