"""Invalid input gives one readable message and exit status 2, before compilation, and damages nothing."""

import shutil

import pytest


@pytest.fixture
def refused(t5like, t5like_process, pretrain, tmp_path):
  """Runs a command that must be refused; returns the message."""

  def run(*overrides, base=None, process=False, devices=1, model_dir=tmp_path / "run"):
    arguments = [*(pretrain if base is None else base), f"--gin.MODEL_DIR={model_dir}", *overrides]
    done = (t5like_process if process else t5like)(*arguments, status=2, devices=devices)
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert "compiled" not in done.stdout
    return done.stderr

  return run


def test_a_misspelled_macro(refused, tmp_path):
  assert "TRAIN_STEPS" in refused("--gin.TRAIN_STEP=50")
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("option", "hint"),
  [
    ("--batch_size=8", "try  --gin.BATCH_SIZE=8"),
    ("--model-dir=/tmp/x", "try  --gin.MODEL_DIR=/tmp/x"),
    ("--task_modules=mine", "try  --gin.TASK_MODULES=mine"),
    ("--restrats=3", "nearest  --restarts"),
  ],
)
def test_a_setting_as_an_option(refused, option, hint):
  message = refused(option)
  assert "unrecognized arguments" in message and hint in message


def test_a_missing_gin_file(refused):
  assert "models/t5/tiny.gin" in refused("--gin_file=models/t5/tinny.gin")


@pytest.mark.slow
def test_an_unknown_task(refused, tmp_path):
  message = refused("--gin.TASK=novel", process=True)  # reported by the process that builds the cache
  assert "no task 'novel'" in message and "nearest  novels" in message
  assert not (tmp_path / "run").exists()


def test_an_unknown_task_module(refused):
  assert "my.tasks" in refused("--gin.TASK=mine", "--gin.TASK_MODULES=['my.tasks']")


def test_a_foreign_model_dir(refused, tmp_path):
  folder = tmp_path / "thesis"
  folder.mkdir()
  (folder / "chapter1.txt").write_text("dear reader")
  message = refused(model_dir=folder)
  assert "has other files" in message and "chapter1.txt" in message
  assert [p.name for p in folder.iterdir()] == ["chapter1.txt"]


def test_a_model_dir_that_is_a_file(refused, tmp_path):
  (tmp_path / "file").write_text("x")
  assert "is a file" in refused(model_dir=tmp_path / "file")


def test_an_unwritable_model_dir(refused):
  # Nobody can create folders in /proc; root ignores permission bits.
  assert "cannot be written" in refused(model_dir="/proc/t5like/run")


def test_a_cloud_path_is_not_read_as_a_local_folder(refused, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert "gs://BUCKET" in refused(model_dir="s3://bucket/run")
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("steps", ["0", "-1", "1.5", "soon"])
def test_invalid_steps(refused, steps):
  assert "TRAIN_STEPS" in refused(f"--gin.TRAIN_STEPS={steps}")


@pytest.mark.parametrize("weight", ["1e999", "-1", "'much'"])
def test_an_invalid_z_loss(refused, weight):
  assert "z_loss" in refused(f"--gin.Z_LOSS={weight}", "--dry_run").lower()


def test_a_learning_rate_that_climbs(refused):
  assert "invalid learning rate at step 1: -1" in refused("--gin.LEARNING_RATE=-1")


def test_a_batch_size_that_is_not_divisible(refused):
  message = refused("--gin.BATCH_SIZE=12", devices=8)
  assert "invalid batch size: 12 (must be divisible by the 8 data shards)" in message
  assert "--gin.BATCH_SIZE=8 or --gin.BATCH_SIZE=16" in message


def test_a_mesh_that_does_not_cover_the_devices(refused):
  message = refused("--gin.MESH.tensor=3", devices=8)
  assert "8 devices" in message and "--gin.MESH.tensor=1" in message


def test_a_number_of_heads_that_is_not_divisible(refused):
  message = refused("--gin.MESH.tensor=8", devices=8)
  assert "num_heads = 2 is not divisible by the size 8 of the 'tensor' axis" in message
  assert "mesh  data=1 fsdp=1 tensor=8" in message and "--gin.MESH.tensor=2" in message


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["tokens", "index"])
def test_a_corrupt_token_cache(refused, token_caches, tmp_path, kind):
  copy = tmp_path / "tokens"
  shutil.copytree(token_caches, copy)
  path = next((copy / "novels").rglob(f"shard-00000.{kind}"))
  content = bytearray(path.read_bytes())
  content[100] ^= 0xFF
  path.write_bytes(content)
  message = refused(f"--gin.CACHE_DIR={copy}")
  assert "corrupt" in message and str(path) in message
  assert "t5like cache novels --vocabulary=tiny --split=train" in message and "--repair=shard-00000" in message
  assert path.read_bytes() == bytes(content)


def test_a_vocabulary_larger_than_the_embedding(refused):
  message = refused("--gin.VOCAB_SIZE=4000")
  assert "4100 ids" in message and "--gin.VOCAB_SIZE=4224" in message


def test_a_corpus_without_objective_and_labels_with_one(refused, finetune):
  assert "needs an objective" in refused("--gin.TASK=novels", base=[a for a in finetune if "TASK" not in a])
  assert "takes no objective" in refused("--gin.TASK=snli")


def test_an_encoder_for_a_text_to_text_objective(refused):
  message = refused("--gin_file=models/bert/tiny.gin", "--gin.VOCABULARY=tiny", "--gin.VOCAB_SIZE=4224")
  assert "BERT is an encoder, but span_corruption needs a decoder" in message


@pytest.mark.slow
def test_a_checkpoint_of_another_model(refused, t5like, pretrain, tmp_path):
  t5like(*pretrain, f"--gin.MODEL_DIR={tmp_path}/run", "--gin.TRAIN_STEPS=1")
  before = sorted(p for p in (tmp_path / "run").rglob("*"))
  message = refused("--gin.MLP_DIM=64", "--gin.TRAIN_STEPS=2")
  assert "mlp_dim" in message and "saved 32, now 64" in message
  message = refused("--gin.MLP_DIM=64", f"--gin.INIT_FROM={tmp_path}/run", model_dir=tmp_path / "other")
  assert "saved 32, now 64" in message
  assert sorted(p for p in (tmp_path / "run").rglob("*")) == before


def test_an_empty_init_from(refused, tmp_path):
  assert "no checkpoint found" in refused(f"--gin.INIT_FROM={tmp_path}/nothing")


def test_eval_of_nothing(t5like, tmp_path):
  assert f"no model in {tmp_path}" in t5like("eval", f"--model_dir={tmp_path}", status=2).stderr


def test_cache_of_a_missing_split(t5like, tmp_path):
  message = t5like("cache", "snli", "--split=dev", f"--out={tmp_path}", status=2).stderr
  assert "no split 'dev'" in message and "validation" in message


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("BATCH_SIZE", "1000000000000"),
    ("VOCAB_SIZE", "1000000000000"),
    ("LENGTHS", "{'inputs': 1000000000000}"),
    ("TRAIN_STEPS", "100000000000000000000"),
    ("NUM_ENCODER_LAYERS", "1000000000"),
    ("LOADER_THREADS", "1000000000"),
    ("LOADER_PROCESSES", "1000000"),
    ("PHASES", "[{'steps': 100000000000000000000, 'batch_size': 8}]"),
  ],
)
def test_unrealistic_sizes_are_refused_immediately(refused, name, value):
  assert name.lower() in refused(f"--gin.{name}={value}").lower()


def test_a_step_of_too_many_tokens(refused):
  message = refused("--gin_file=objectives/prefix_lm.gin", "--gin.BATCH_SIZE=4194304", "--gin.LENGTHS={'inputs': 4096}")
  assert "a step of" in message and "is too large" in message


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", ["../../etc", "a//b", "..", "a\0b", "t" * 5000])
def test_a_task_name_that_escapes_the_cache_folder(refused, task):
  assert "invalid task name" in refused(f"--gin.TASK={task}", "--gin.OBJECTIVE=@span_corruption()")


@pytest.mark.parametrize("path", ["/tmp/a\0b", "/tmp/" + "x" * 300, "/tmp/" + "x/" * 3000])
def test_an_invalid_path(refused, path):
  assert "invalid path" in refused(model_dir=path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("raise RuntimeError('out of cheese')\n", "RuntimeError: out of cheese"),
    ("import sys; sys.exit(7)\n", "SystemExit: 7"),
    ("def (:\n", "SyntaxError"),
    ("import a_package_that_is_missing\n", "a_package_that_is_missing"),
  ],
)
def test_a_module_that_cannot_be_imported(refused, tmp_path, monkeypatch, text, expected):
  """As a task module, and imported by a gin file."""
  name = f"module_{abs(hash(text))}"
  (tmp_path / f"{name}.py").write_text(text)
  monkeypatch.syspath_prepend(str(tmp_path))
  assert expected in refused("--gin.TASK=quiz_span_corruption", f"--gin.TASK_MODULES=['{name}']")
  (tmp_path / "import.gin").write_text(f"import {name}\n")
  assert expected in refused(f"--gin_file={tmp_path}/import.gin")
