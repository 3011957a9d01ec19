"""t5like as a library: no gin, no exit, no global state; every extension point used from outside of the package."""

import dataclasses
import json
import re
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import t5like
from t5like.errors import UserError, command_line
from t5like.experiments.reading import load_experiment
from t5like.experiments.writing import config_text
from t5like.models import T5, TransformerConfig
from t5like.objectives import Lengths, Pairs, Ragged, catalogue
from t5like.training.checkpoints import CheckpointRetention
from t5like.training.step import train_step

REPOSITORY = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.usefixtures("one_device")
SMALL = dict(
  vocab_size=4224, embed_dim=16, mlp_dim=32, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1
)


@pytest.fixture
def run_command(request):
  """The command line, under another name than the package, which these tests use."""
  return request.getfixturevalue("t5like")


@pytest.fixture
def settings(tmp_path, token_caches):
  """Arguments of an experiment in plain Python."""
  return dict(
    model_dir=str(tmp_path / "run"),
    model=T5(TransformerConfig(**SMALL)),
    vocabulary="tiny",
    task="novels_span_corruption",
    lengths={"inputs": 16},
    batch_size=8,
    steps=2,
    optimizer=t5like.optimizers.adafactor(1e-2),
    cache_dir=str(token_caches),
    log_period=1,
  )


def test_importing_it_loads_nothing_heavy():
  """Checks the loaded modules instead of the time."""
  code = (
    "import sys, t5like; dir(t5like); print([m for m in ('jax', 'numpy', 'gin', 'tensorflow') if m in sys.modules])"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
  assert done.stdout.strip() == "[]"


def test_every_public_name_has_a_docstring():
  for name in t5like.__all__:
    assert getattr(t5like, name).__doc__, name
  with pytest.raises(AttributeError, match="no attribute 'trian'"):
    t5like.trian  # noqa: B018


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda e, m: t5like.train(e, init="runs/full"), "not initial parameters: 'runs/full'"),
    (lambda e, m: t5like.train(e, signals="SIGTERM"), "not signals: 'SIGTERM'"),
    (lambda e, m: t5like.plan(e, 8), "not a machine: 8"),
    (lambda e, m: t5like.evaluate(m, ["snli"]), "not the name of a task"),
    (lambda e, m: t5like.evaluate(m, "snli", examples="10"), "examples='10' is invalid"),
    (lambda e, m: t5like.evaluate(m, "snli", files={"train": 3}), "files={'train': 3} is invalid"),
    (lambda e, m: t5like.load(m.folder, adapters="formal"), "not adapters: 'formal'"),
    (lambda e, m: m.score(Table(), "b"), "not a text: a Table"),
    (lambda e, m: t5like.register_objective(3, e.objective), "invalid objective name: 3"),
    (lambda e, m: t5like.register_objective("mine", object()), "not an objective: <object"),
    (lambda e, m: t5like.save_examples([{"text": "a"}], folder=None), "invalid folder: None"),
  ],
)
def test_wrong_arguments_are_named_before_anything_starts(call, message, settings, small_folder):
  with pytest.raises(UserError, match=re.escape(message)):
    call(t5like.Experiment(**settings), t5like.load(small_folder))
  assert not Path(settings["model_dir"]).exists()


class Table:
  columns = ("text", "label")

  def __iter__(self):
    return iter(self.columns)


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory, token_caches):
  """The directory of a trained model."""
  folder = tmp_path_factory.mktemp("small") / "run"
  experiment = t5like.Experiment(
    str(folder), model=T5(TransformerConfig(**SMALL)), vocabulary="tiny", task="novels_span_corruption",
    lengths={"inputs": 16}, batch_size=8, steps=1, optimizer=t5like.optimizers.adafactor(1e-2),
    cache_dir=str(token_caches),
  )  # fmt: skip
  return t5like.train(experiment).model_dir


def test_threads_read_their_own_experiments(tmp_path):
  def read(number):
    files = ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"]
    experiment = t5like.read_experiment(files, MODEL_DIR=str(tmp_path / str(number)), SEED=number)
    folder = Path(experiment.model_dir)
    folder.mkdir()
    (folder / "config.gin").write_text(config_text(experiment))
    loaded = load_experiment(folder)
    return [(each.seed, each.model_dir) for each in (experiment, loaded)]

  with ThreadPoolExecutor(4) as threads:
    found = list(threads.map(read, range(12)))
  assert found == [[(number, str(tmp_path / str(number)))] * 2 for number in range(12)]


@pytest.mark.usefixtures("one_device")
def test_the_readmes_python_runs_as_printed(tmp_path, monkeypatch, capsys, token_caches):
  """Runs in a temporary home with the token caches of the embedded tasks, and with a smaller model than tiny."""
  read = t5like.read_experiment
  size = {
    "EMBED_DIM": 16,
    "MLP_DIM": 32,
    "NUM_HEADS": 2,
    "HEAD_DIM": 8,
    "NUM_ENCODER_LAYERS": 1,
    "NUM_DECODER_LAYERS": 1,
  }

  def read_smaller(files, **given):
    encoder = "models/bert/tiny.gin" in files
    return read(files, **{k: v for k, v in size.items() if not encoder or k != "NUM_DECODER_LAYERS"} | given)

  monkeypatch.setattr(t5like, "read_experiment", read_smaller)
  monkeypatch.setenv("HOME", str(tmp_path))
  (tmp_path / ".cache").mkdir()
  (tmp_path / ".cache/t5like").symlink_to(token_caches)
  (code,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
  exec(compile(code, "README.md", "exec"), {})
  printed = capsys.readouterr().out
  assert "(2, " in printed and printed.count("eval/snli/accuracy") == 1 and "step 10" in printed
  assert "films_classification (validation, 2 examples)" in printed and "{'no': " in printed


def test_a_run_built_in_python_is_read_back_by_the_command_line(settings, run_command):
  result = t5like.train(t5like.Experiment(**settings))
  assert (result.step, result.stopped) == (2, "finished") and np.isfinite(result.metrics["loss"])
  run = Path(settings["model_dir"])
  before = (run / "config.gin").read_text()
  rows = run.parent / "rows.txt"
  rows.write_text("the sea was\n")
  assert run_command("infer", f"--model={run}", f"--input={rows}", "--max_length=4").stdout
  run_command("train", f"--gin_file={run / 'config.gin'}", "--gin.train.steps=3")
  assert [p.name for p in sorted((run / "checkpoints").iterdir()) if p.name.isdigit()] == ["2", "3"]
  after = (run / "config.gin").read_text()
  assert "train.steps = 2" in before and "train.steps = 3" in after


def test_two_experiments_never_see_each_others_configuration(tmp_path):
  files = ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"]
  one = t5like.read_experiment(files, MODEL_DIR=str(tmp_path / "one"), SEED=1)
  two = t5like.read_experiment(
    ["models/gpt2/small.gin", "runs/finetune.gin"], MODEL_DIR="two", TASK="snli", INIT_FROM=None, SEED=2
  )
  assert "SEED = 1" in config_text(one) and "GPT" not in config_text(one)
  assert "SEED = 2" in config_text(two) and "T5(" not in config_text(two)


@pytest.mark.parametrize(
  "files",
  [
    ["models/t5/tiny.gin", "objectives/ul2.gin", "runs/pretrain.gin"],
    ["models/bert/base.gin", "objectives/bert_mlm_nsp.gin", "runs/pretrain.gin", "optimizers/adamw.gin"],
    ["models/gpt2/small.gin", "objectives/causal_lm.gin", "runs/pretrain.gin", "optimizers/muon.gin"],
  ],
)
def test_an_experiment_written_from_its_fields_is_read_back_the_same(files, tmp_path):
  read = t5like.read_experiment(files, MODEL_DIR="somewhere", **{"MESH.fsdp": 2, "KEEP.every": 7})
  changed = dataclasses.replace(read, steps=7)
  assert read.config_text and not changed.config_text  # the text would have another number of steps
  (tmp_path / "config.gin").write_text(config_text(changed))
  back = t5like.read_experiment([str(tmp_path / "config.gin")])
  for field in dataclasses.fields(back):
    if field.compare and field.name != "optimizer":
      one, two = getattr(back, field.name), getattr(changed, field.name)
      assert one == two or repr(one) == repr(two), field.name
  assert back.optimizer.description == changed.optimizer.description
  steps = jnp.arange(0, 5000, 500)
  np.testing.assert_array_equal(
    jax.vmap(back.optimizer.learning_rate)(steps), jax.vmap(changed.optimizer.learning_rate)(steps)
  )


def test_defaults_are_those_of_gin(tmp_path, settings):
  """Every field that a gin file does not set has its Python default."""
  read = t5like.read_experiment(["models/t5/tiny.gin", "runs/finetune.gin"], MODEL_DIR="x", TASK="snli", INIT_FROM=None)
  given = {"model_dir", "model", "vocabulary", "task", "lengths", "batch_size", "steps", "optimizer", "config_text"}
  preset = {"eval_split", "eval_period"}  # set by finetune.gin
  labeled = {k: v for k, v in settings.items() if k in given} | {
    "task": "snli",
    "lengths": {"inputs": 8, "targets": 4},
  }
  plain = t5like.Experiment(**labeled)
  for field in dataclasses.fields(plain):
    if field.name not in given | preset:
      same = (getattr(read, field.name), getattr(plain, field.name))
      assert repr(same[0]) == repr(same[1]) or same[0] == same[1] or set(map(repr, same)) == {"[]", "()"}, field.name
  assert plain.packs and not t5like.Experiment(**settings).packs


@pytest.mark.slow
def test_an_optax_optimizer_trains_and_its_model_can_be_loaded(settings):
  import optax

  built = t5like.optimizers.adafactor(1e-2)
  custom = dataclasses.replace(built, transformation=optax.sgd(0.1), description="plain SGD", factory_call=None)
  result = t5like.train(t5like.Experiment(**settings | {"optimizer": custom}))
  assert t5like.load(result.model_dir).score("the sea", "calm") < 0
  read = t5like.read_experiment([str(result.model_dir / "config.gin")])
  with pytest.raises(t5like.UserError, match="optimizer was built in Python: plain SGD"):
    t5like.train(dataclasses.replace(read, model_dir=f"{settings['model_dir']}_again"))


def test_a_custom_step_hook_and_initial_parameters(settings):
  seen, calls = [], []

  def still_step(model, optimizer, settings, state, batch):
    """Counts the step without changing the parameters."""
    calls.append(1)
    after, metrics = train_step(model, optimizer, settings, state, batch)
    return after.replace(params=state.params), metrics | {"stillness": jnp.float32(1.0)}

  model = settings["model"]
  token = np.ones((1, 1), np.int32)
  batch = {"encoder_input_tokens": token, "decoder_input_tokens": token}
  params = nn.unbox(jax.jit(model.init)(jax.random.key(3), batch))["params"]
  hook = t5like.Hook(every=1, action=lambda state: seen.append(int(state.step)))
  result = t5like.train(t5like.Experiment(**settings, step=still_step), init=params, hooks=[hook])
  assert calls and seen == [1, 2] and result.metrics["stillness"] == 1.0
  jax.tree.map(np.testing.assert_array_equal, t5like.load(result.model_dir).params, params)
  read = t5like.read_experiment([str(result.model_dir / "config.gin")], **{"train.steps": 3})
  with pytest.raises(UserError, match="was built in Python, with .*still_step"):
    t5like.train(read)
  assert t5like.train(dataclasses.replace(read, step=still_step)).step == 3


def test_a_custom_step_without_metrics_is_an_error_before_the_first_step(settings):
  def state_only(*arguments):
    return train_step(*arguments)[0]

  with pytest.raises(t5like.UserError, match=r"state_only must return \(state, metrics\)"):
    t5like.train(t5like.Experiment(**settings), step=state_only)


def test_a_rollback_before_the_first_checkpoint_returns_to_the_given_parameters(settings, capsys):
  first = t5like.train(t5like.Experiment(**settings | {"model_dir": f"{settings['model_dir']}_first", "seed": 3}))
  params = t5like.load(first.model_dir).params
  failures = iter([np.float32(np.nan)])

  def fails_once(model, optimizer, settings, state, batch):
    after, metrics = train_step(model, optimizer, settings, state, batch)
    added = io_callback(lambda: next(failures, np.float32(0)), jax.ShapeDtypeStruct((), jnp.float32))
    return after.replace(params=state.params), metrics | {"finite": jnp.isfinite(metrics["loss"] + added)}

  result = t5like.train(t5like.Experiment(**settings, nonfinite="rollback"), init=params, step=fails_once)
  assert "rolling back to step 0" in capsys.readouterr().out and result.step == 2
  jax.tree.map(np.testing.assert_array_equal, t5like.load(result.model_dir).params, params)


EVALUATED = dict(
  lengths={"inputs": 32, "targets": 4},
  eval_split="validation",
  eval_examples=4,
  eval_loss_period=2,
  eval_loss_batches=1,
)


def remove_row(file: Path, kind: str) -> str:
  """Removes the row of a kind, as if the run had been killed before it."""
  lines = file.read_text().splitlines()
  (row,) = [line for line in lines if f'"{kind}"' in line]
  file.write_text("".join(f"{line}\n" for line in lines if line != row))
  return row


def test_a_finished_run_returns_its_scores_and_its_best_checkpoint_again(settings):
  keep = CheckpointRetention(metric="eval_loss/snli/accuracy", higher_is_better=False)
  more = EVALUATED | {"task": "snli", "eval_loss_period": 1, "steps": 3, "keep": keep, "log_period": 100}
  experiment = t5like.Experiment(**settings | more)
  first, again = t5like.train(experiment), t5like.train(experiment)
  assert first.scores == again.scores and {"eval/snli/accuracy", "eval_loss/snli/loss"} <= set(first.scores)
  rows = [json.loads(line) for line in (first.model_dir / "metrics.jsonl").read_text().splitlines()]
  found = {row["step"]: row["accuracy"] for row in rows if row["kind"] == "eval_loss/snli"}
  model = t5like.load(first.model_dir)
  assert first.best_step == again.best_step == model.best_step == min(found, key=lambda step: (found[step], step))
  assert model.at(model.best_step).step() == model.best_step
  plain = t5like.Experiment(**settings | {"model_dir": f"{settings['model_dir']}_2", "steps": 1})
  assert t5like.train(plain).best_step is None


def test_the_last_evaluation_of_a_killed_run_is_made_up_for(settings):
  experiment = t5like.Experiment(**settings | EVALUATED | {"task": "snli"})
  file = t5like.train(experiment).model_dir / "metrics.jsonl"
  row = remove_row(file, "eval_loss/snli")
  t5like.train(experiment)
  assert remove_row(file, "eval_loss/snli") == row


@pytest.mark.slow  # builds the cache of a task
def test_an_evaluation_killed_between_two_tasks_is_repeated(settings):
  films = [{"inputs": f"film {n}", "targets": "good" if n % 2 else "bad"} for n in range(16)]
  files = {"train": t5like.save_examples(films), "validation": t5like.save_examples(films[:4])}
  own = {"task": "films_text_to_text", "mix": {"films_text_to_text": 1.0, "snli": 1.0}, "corpus_files": files}
  file = t5like.train(t5like.Experiment(**settings | EVALUATED | own)).model_dir / "metrics.jsonl"
  row = json.loads(remove_row(file, "eval_loss/snli"))
  t5like.train(t5like.Experiment(**settings | EVALUATED | own | {"steps": 3}))
  assert row in map(json.loads, file.read_text().splitlines())


def test_an_error_of_another_process_is_in_the_exception(settings):
  with pytest.raises(t5like.UserError) as error:
    t5like.train(t5like.Experiment(**settings | {"task": "snil", "lengths": {"inputs": 16, "targets": 4}}))
  assert "no task 'snil'" in str(error.value) and "nearest  snli" in str(error.value)


def test_a_notebook_that_is_interrupted_loses_nothing(settings):
  def press_stop(state):
    if int(state.step) == 1:
      signal.raise_signal(signal.SIGINT)

  experiment = t5like.Experiment(**settings | {"steps": 4})
  handler = signal.getsignal(signal.SIGINT)
  with pytest.raises(KeyboardInterrupt, match="saved at step 1"):
    t5like.train(experiment, hooks=[t5like.Hook(every=1, action=press_stop)])
  assert signal.getsignal(signal.SIGINT) is handler
  assert [path.name for path in Path(settings["model_dir"], "checkpoints").iterdir()] == ["1"]
  assert t5like.train(experiment).step == 4


@pytest.mark.slow
def test_a_step_named_in_gin(tmp_path, monkeypatch, run_command, small_model, token_caches):
  (tmp_path / "my_steps.py").write_text(
    textwrap.dedent(
      """
      import gin
      from t5like.training.checkpoints import CheckpointRetention
from t5like.training.step import train_step

      @gin.configurable
      def twice(model, optimizer, settings, state, batch, factor=2.0):
        state, metrics = train_step(model, optimizer, settings, state, batch)
        return state, metrics | {"factor": factor + 0.0 * metrics["loss"]}
      """
    )
  )
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / "mine.gin").write_text("import my_steps\ntrain.step = @twice\ntwice.factor = 3.0\n")
  run_command(
    "train", *small_model, "--gin_file=objectives/span_corruption.gin", "--gin_file=runs/pretrain.gin",
    "--gin_file=mine.gin", "--gin.MODEL_DIR=run", "--gin.TRAIN_STEPS=2", "--gin.LOG_PERIOD=1",
    "--gin.LENGTHS={'inputs': 16}", f"--gin.CACHE_DIR={token_caches}",
  )  # fmt: skip
  assert '"factor": 3.0' in (tmp_path / "run/metrics.jsonl").read_text()


@dataclasses.dataclass(frozen=True)
class Backwards(t5like.Objective):
  """The targets are the text in reverse."""

  name: ClassVar[str] = "backwards"

  def lengths(self, inputs: int) -> Lengths:
    return Lengths(inputs - 1, inputs, inputs)

  def __call__(self, rows, draws, special):
    turned = [np.r_[row[:n][::-1], row[n:]] for row, n in zip(rows.tokens, rows.lengths, strict=True)]
    return Pairs(Ragged(rows.tokens, rows.lengths), Ragged(np.array(turned), rows.lengths))


def test_an_objective_by_name(settings):
  t5like.register_objective("backwards", Backwards())
  experiment = t5like.Experiment(**settings | {"task": "novels_backwards"})
  assert experiment.objective == Backwards() and experiment.task == "novels"
  result = t5like.train(experiment)
  assert t5like.load(result.model_dir).experiment.objective == Backwards()  # named in its config.gin
  del catalogue.CATALOGUE["backwards"]  # other tests compare it with the shipped files


def test_an_objective_of_a_cell_that_runs_again(monkeypatch):
  monkeypatch.setattr(catalogue, "CATALOGUE", dict(catalogue.CATALOGUE))
  for density in (0.1, 0.2):
    cell = {"__name__": "__main__", "t5like": t5like, "dataclasses": dataclasses}
    exec("@dataclasses.dataclass(frozen=True)\nclass Mine(t5like.Objective):\n  density: float", cell)
    objective = t5like.register_objective("of_a_cell", cell["Mine"](density))
    assert catalogue.find_objective("of_a_cell") is objective
  with pytest.raises(UserError, match="already registered"):
    t5like.register_objective("of_a_cell", Backwards())


def test_paths_and_hooks_of_other_types(settings, tmp_path):
  files = ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"]
  corpora = {"train": tmp_path / "a.txt", "validation": "b.txt"}
  experiment = t5like.read_experiment(
    files, MODEL_DIR=tmp_path / "run", INIT_FROM=tmp_path / "base", CORPUS_FILES=corpora
  )
  assert experiment.corpus_files == {"train": f"{tmp_path}/a.txt", "validation": "b.txt"}
  assert (experiment.model_dir, experiment.init_from) == (str(tmp_path / "run"), str(tmp_path / "base"))
  assert t5like.read_experiment(files, MODEL_DIR="x", TRAIN_STEPS=np.int64(7)).steps == 7
  with pytest.raises(UserError, match="missing required values"):
    t5like.read_experiment("runs/pretrain.gin")
  for wrong in (None, 5, [5]):
    with pytest.raises(UserError, match="invalid files"):
      t5like.read_experiment(wrong)
  with pytest.raises(UserError, match=r"invalid overrides: \('EPOCHS', 2\)"):
    t5like.read_experiment("runs/pretrain.gin", [("EPOCHS", 2)])
  for call in (t5like.train, t5like.plan):
    with pytest.raises(UserError, match="not an experiment: 'x'"):
      call("x")
  with pytest.raises(UserError, match="not a model: 'x'"):
    t5like.evaluate("x", "snli")
  for wrong in ((-1, print), (1.5, print), (5, None), (5, print, False, "5"), (5, print, False, -1)):
    with pytest.raises(UserError, match="invalid Hook"):
      t5like.Hook(*wrong)
  for hooks in ([print], t5like.Hook(1, print), None):
    with pytest.raises(UserError, match="not a list of hooks"):
      t5like.train(t5like.Experiment(**settings), hooks=hooks)
  with pytest.raises(UserError, match="step is not a function"):
    t5like.train(t5like.Experiment(**settings), step=3)
  with pytest.raises(UserError, match="invalid batch size: 0"):
    t5like.read_experiment(
      ["models/bert/tiny.gin", "finetune/bert.gin"], MODEL_DIR=tmp_path, INIT_FROM=None, METRIC="accuracy",
      HEAD_TASK="glue_sst2_classification", EXAMPLES=8, HEAD_BATCH_SIZE=0,
    )  # fmt: skip
  with pytest.raises(UserError, match="row 1 has no document"):
    t5like.save_examples([{"query": "a", "document": "b"}, {"query": "c"}], tmp_path)
  with pytest.raises(UserError, match="not a path: 5"):
    t5like.load(t5like.train(t5like.Experiment(**settings | {"steps": 1})).model_dir).save(5)
  with pytest.raises(UserError, match="cannot write the rows"):
    t5like.save_examples([{"text": "a"}], "/proc/t5like")


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"EPOCS": 3}, "unused macro: EPOCS\n  file     EPOCS\n  nearest  EPOCHS"),
    ({"EPOCHS": "many"}, "invalid EPOCHS: 'many'\n  expected  a number\n  try       EPOCHS=..."),
    ({"HEAD_BATCH_SIZE": 0}, "invalid batch size: 0\n  expected  a positive number"),
    ({"HEAD": "ClassificationHead"}, "invalid HEAD: 'ClassificationHead'.*\n +try       HEAD=..."),
    ({"TRAINABLE": "@FrozenBelow()"}, "FrozenBelow needs layer\n  try  FrozenBelow.layer=..."),
    ({"CORPUS_FILES": "x.jsonl"}, "invalid CORPUS_FILES: 'x.jsonl'\n.*\n  try       CORPUS_FILES=..."),
  ],
)
def test_errors_of_a_notebook_name_arguments(settings, message):
  """Not options of the command line, and without the call stack that gin appends."""
  given = dict(
    HEAD_TASK="glue_sst2_classification", METRIC="accuracy", EXAMPLES=96, INIT_FROM=None, MODEL_DIR="x", EPOCHS=1
  )
  with pytest.raises(UserError) as error:
    t5like.read_experiment(["models/bert/tiny.gin", "finetune/bert.gin"], **given | settings)
  assert re.fullmatch(message, str(error.value), re.DOTALL)


@pytest.mark.parametrize(
  ("option", "argument"),
  [
    ("--gin.EVAL_SPLIT='' (no evaluations)", "EVAL_SPLIT='' (no evaluations)"),
    ("--gin.LENGTHS={'inputs': 9, 'targets': 2}, or less", "LENGTHS={'inputs': 9, 'targets': 2}, or less"),
    ("--gin.TASK_MODULES=\"['my.module']\": a list", "TASK_MODULES=['my.module']: a list"),
    ("--gin.EmbeddingHead.pooling=mean; --gin.HEAD=@SpanHead()", 'EmbeddingHead.pooling="mean"; HEAD="@SpanHead()"'),
    ("--gin_search_paths=FOLDER, --gin_file", 'search_paths=["FOLDER"], files'),
    ("takes no --gin options", "takes no gin options"),
    ("candidates require --rank; or --step=3", "candidates require rank; or step=3"),
    ("--task_modules=my.tasks, if you trust it", 'task_modules="my.tasks", if you trust it'),
    ("XLA_FLAGS=--xla_dump_to=x", "XLA_FLAGS=--xla_dump_to=x"),
    ("--gin.INIT_FROM=/a/100: a fresh optimizer", 'INIT_FROM="/a/100": a fresh optimizer'),
    ("--gin.LENGTHS={'inputs': {'a': 1}} or", "LENGTHS={'inputs': {'a': 1}} or"),
    ("--gin.LENGTHS=[{'a': 1}], or", "LENGTHS=[{'a': 1}], or"),
    (
      "t5like train --gin_file=runs/finetune.gin --gin.TASK=x",
      "t5like train --gin_file=runs/finetune.gin --gin.TASK=x",
    ),
  ],
)
def test_options_are_named_as_arguments(option, argument):
  error = UserError("something is wrong", try_=option)
  assert str(error) == f"something is wrong\n  try  {argument}"
  with command_line():
    with command_line():
      pass
    assert str(error) == f"something is wrong\n  try  {option}"


class WithLengthHead(nn.Module):
  """T5 with a head on its first decoder state that predicts the number of target tokens of a row."""

  config: TransformerConfig

  def setup(self):
    self.backbone, self.head = T5(self.config), nn.Dense(1)

  @property
  def batch_layout(self) -> str:
    return "encoder_decoder"

  def __call__(self, batch, deterministic=True):
    hidden = self.backbone.hidden_states(batch, deterministic)
    return {"lengths": self.head(hidden[:, 0].astype(jnp.float32))[:, 0]}

  def loss(self, outputs, batch, settings, divide_by):
    true = jnp.sum(batch["decoder_loss_weights"], axis=1)
    error = jnp.sum((outputs["lengths"] - true) ** 2) / divide_by.rows
    return error, {"loss": error, "length_error": jnp.sqrt(error)}


def test_a_head_with_its_own_loss(settings):
  """It learns: the rows of a denoising objective all have the same number of targets."""
  model = WithLengthHead(TransformerConfig(**SMALL))
  optimizer = t5like.optimizers.adamw(0.1)
  result = t5like.train(t5like.Experiment(**settings | {"model": model, "steps": 30, "optimizer": optimizer}))
  assert result.metrics["length_error"] < 1.5
  with pytest.raises(t5like.UserError, match=r"built in Python, with .*WithLengthHead"):
    t5like.load(result.model_dir)


def test_invalid_input_is_an_error_before_anything_is_written(settings, use_devices):
  with use_devices(8), pytest.raises(t5like.UserError, match="MODEL_DIR|batch"):
    t5like.train(t5like.Experiment(**settings | {"batch_size": 7}))
  assert not Path(settings["model_dir"]).exists()
  with pytest.raises(t5like.UserError, match="invalid MODEL_DIR: <object object"):
    t5like.read_experiment(["runs/pretrain.gin"], MODEL_DIR=object())


def test_settings_may_be_references_as_in_gin():
  files, given = ["models/t5/tiny.gin", "runs/finetune.gin"], dict(TASK="snli", INIT_FROM=None, MODEL_DIR="unused")
  experiment = t5like.read_experiment(files, **given, TRAINABLE="@HeadOnly()")
  assert type(experiment.trainable).__name__ == "HeadOnly"
  with pytest.raises(t5like.UserError) as error:
    t5like.read_experiment(files, **given, TRAINABLE=experiment.trainable)
  assert 'TRAINABLE="@NAME()"' in error.value.render()
