"""Gin files, overrides, and error messages for mistakes in them."""

import gin
import pytest

from t5like import configuration
from t5like.configuration.statements import Permissions, parse_override_value, read_text
from t5like.errors import UserError, command_line
from t5like.experiments.reading import read_experiment

pytestmark = pytest.mark.usefixtures("clean_gin")
MODEL, OBJECTIVE, RUN = "models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin"


def load(*overrides, files=(MODEL, OBJECTIVE, RUN), model_dir="/tmp/x", **kwargs):
  given = [("MODEL_DIR", model_dir)] if model_dir else []
  configuration.load(files, [*given, *overrides], **kwargs)


def message_of(*args, **kwargs) -> str:
  with command_line():
    with pytest.raises(UserError) as error:
      load(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
  ("typed", "source"),
  [
    ("50", "50"),
    ("1e-3", "1e-3"),
    ("-1", "-1"),
    ("~/runs/demo", "'~/runs/demo'"),
    ("gs://bucket/x y", "'gs://bucket/x y'"),
    ("snli", "'snli'"),
    ("'quoted'", "'quoted'"),
    ("{'inputs': 64}", "{'inputs': 64}"),
    ("['a', 'b']", "['a', 'b']"),
    ("@adamw()", "@adamw()"),
    ("%SEED", "%SEED"),
    ("true", "True"),
    ("False", "False"),
    ("none", "None"),
    ("1,2", "'1,2'"),
    ("", "''"),
    ("it's", '"it\'s"'),
  ],
)  # fmt: skip
def test_values_need_no_inner_quotes(typed, source):
  assert parse_override_value(typed) == source


def test_later_files_and_overrides_win(tmp_path):
  mine = tmp_path / "mine.gin"
  mine.write_text("SEED = 7\nTRAIN_STEPS = 11\n")
  load(("TRAIN_STEPS", "13"), files=(MODEL, OBJECTIVE, RUN, str(mine)))
  experiment = configuration.build("train")
  assert (experiment.seed, experiment.steps) == (7, 13)


def test_files_are_found_in_added_search_paths(tmp_path):
  (tmp_path / "sub").mkdir()
  (tmp_path / "sub/mine.gin").write_text("include 'runs/pretrain.gin'\nSEED = 3\n")
  load(files=(MODEL, OBJECTIVE, "sub/mine.gin"), search_paths=[str(tmp_path)])
  assert configuration.build("train").seed == 3


def test_a_dotted_override_reaches_a_parameter():
  load(("MESH.tensor", "4"), ("span_corruption.mean_span_length", "5"))
  experiment = configuration.build("train")
  assert experiment.mesh.tensor == 4
  assert experiment.objective.mean_span_length == 5


def test_a_misspelled_macro_is_reported_with_the_nearest():
  message = message_of(("TRAIN_STEP", "50"))
  assert "unused macro: TRAIN_STEP" in message and "--gin.TRAIN_STEP" in message
  assert "nearest  TRAIN_STEPS" in message


def test_a_misspelled_macro_in_a_file_is_reported_with_its_line(tmp_path):
  mine = tmp_path / "mine.gin"
  mine.write_text("# a comment\nBATCHSIZE = 4\n")
  message = message_of(files=(MODEL, OBJECTIVE, RUN, str(mine)))
  assert f"{mine}:2" in message and "BATCH_SIZE" in message


def test_a_misspelled_macro_as_a_value_is_reported_with_its_line(tmp_path):
  """Also if the parameter has a default, which a shipped file need not repeat."""
  mine = tmp_path / "mine.gin"
  mine.write_text("\nspan_corruption.noise_density = %NOISEDENSITY\n")
  message = message_of(files=(MODEL, OBJECTIVE, RUN, str(mine)))
  assert f"{mine}:2" in message and "NOISEDENSITY" in message
  mine.write_text("train.norms_period = %NORMS_PERIOD\n")  # as runs/train.gin leaves it to the default
  configuration.load([MODEL, OBJECTIVE, RUN, str(mine)], [("MODEL_DIR", "/tmp/x")])


def test_a_misspelled_parameter_and_configurable_are_reported_with_the_nearest():
  message = message_of(("span_corruption.noise_densty", "0.1"))
  assert "no parameter 'noise_densty'" in message and "noise_density" in message
  message = message_of(("OPTIMIZER", "@adafacto()"))
  assert "unknown configurable: 'adafacto'" in message and "adafactor" in message


def test_a_missing_file_is_reported_with_the_nearest_and_the_search_path(tmp_path):
  message = message_of(files=("models/t5/tyny.gin", RUN))
  assert "models/t5/tiny.gin" in message and "searched" in message
  mine = tmp_path / "mine.gin"
  mine.write_text("\ninclude 'runs/pretrian.gin'\n")
  message = message_of(files=(str(mine),))
  assert f"{mine}:2" in message and "runs/pretrain.gin" in message


def test_a_value_that_a_later_file_replaces_is_reported():
  """BATCH_SIZE = %HEAD_BATCH_SIZE, and then BATCH_SIZE = 128."""
  files, given = ("finetune/bert.gin", "models/bert/tiny.gin"), ("HEAD_BATCH_SIZE", "8")
  required = [(name, "'x'") for name in ("HEAD_TASK", "METRIC")] + [("INIT_FROM", "None"), ("EXAMPLES", "96")]
  message = message_of(given, *required, files=files)
  assert "HEAD_BATCH_SIZE has no effect: models/transformer.gin:" in message and "finetune/bert.gin:" in message
  assert "replaces BATCH_SIZE, which read it" in message and "--gin.BATCH_SIZE=... instead" in message
  load(given, *required, files=files[::-1])
  load(("BATCH_SIZE", "4"), given, *required, files=files[::-1])  # replaced by the user


def test_a_value_that_an_earlier_line_of_the_user_replaces_is_reported(tmp_path):
  mine = tmp_path / "mine.gin"
  mine.write_text(f"include '{RUN}'\ntrain.steps = 77\n")
  message = message_of(("TRAIN_STEPS", "5"), files=(MODEL, OBJECTIVE, str(mine)))
  assert f"TRAIN_STEPS has no effect: {mine}:2 replaces train.steps, which read it" in message
  assert "--gin.train.steps=... instead" in message
  mine.write_text(f"include '{RUN}'\nTRAIN_STEPS = 5\ntrain.steps = 77\n")
  load(files=(MODEL, OBJECTIVE, str(mine)))
  assert configuration.build("train").steps == 77


def test_a_scope_that_nothing_uses_is_reported():
  message = message_of(("train_eval/adafactor.decay_rate", "0.5"))
  assert "train_eval/adafactor.decay_rate has no effect: nothing uses @train_eval/..." in message
  assert "adafactor.decay_rate, without the scope" in message
  assert "nearest  big" in message_of(("OPTIMIZER", "@big/adafactor()"), ("bgi/adafactor.decay_rate", "0.5"))
  for scope, optimizer in (("big", "@big/adafactor()"), ("OPTIMIZER", "@adafactor()")):  # a macro is a scope, too
    load(("OPTIMIZER", optimizer), (f"{scope}/adafactor.decay_rate", "0.5"))
    assert "decay_rate=0.5" in configuration.build("train").optimizer.description


def test_configurables_may_have_their_full_names():
  assert "'train' has no parameter 'sed'" in message_of(("experiment.train.sed", "9"))
  assert "invalid train.seed: 'x'" in message_of(("experiment.train.seed", "'x'"))
  load(("experiment.train.seed", "9"))
  assert configuration.build("train").seed == 9


def test_required_values_within_others_and_in_scopes():
  assert "missing required values: LENGTHS" in message_of(("LENGTHS", "{'inputs': %gin.REQUIRED, 'targets': 4}"))
  optimizer = [("OPTIMIZER", "@big/adafactor()"), ("big/adafactor.decay_rate", "%gin.REQUIRED")]
  assert "--gin.big/adafactor.decay_rate=..." in message_of(*optimizer)


def test_constants_of_modules():
  gin.constant("test_loading.FOUR", 4)
  load(("BATCH_SIZE", "%test_loading.FOUR"))
  assert configuration.build("train").batch_size == 4


def test_a_value_that_one_of_two_settings_reads_has_an_effect(tmp_path):
  mine = tmp_path / "mine.gin"
  mine.write_text("include 'finetune/bert.gin'\nLOG_PERIOD = %HEAD_BATCH_SIZE\n")
  required = [(name, "'x'") for name in ("HEAD_TASK", "METRIC")] + [("INIT_FROM", "None"), ("EXAMPLES", "96")]
  load(("HEAD_BATCH_SIZE", "8"), *required, files=(str(mine), "models/bert/tiny.gin"))


def test_a_complete_configuration_may_be_changed_by_a_shipped_file(tmp_path):
  """It sets all macros, also those of the optimizer that the file replaces."""
  given = dict(HEAD_TASK="x", METRIC="accuracy", EXAMPLES=96, INIT_FROM=None, MODEL_DIR="x")
  complete = tmp_path / "config.gin"
  complete.write_text(read_experiment(["models/bert/tiny.gin", "finetune/bert.gin"], **given).config_text)
  assert "lamb" in read_experiment([complete, "optimizers/lamb.gin"]).optimizer.description


def test_a_value_of_a_model_without_a_model_file_names_what_is_missing():
  assert "no model file: add --gin_file=" in message_of(("EMBED_DIM", "64"), files=("runs/pretrain.gin",))
  assert "no run file: add --gin_file=" in message_of(("EMBED_DIM", "64"), files=())
  assert "no run file: add --gin_file=" in message_of(("BATCH_SIZE", "64"), files=("models/bert/tiny.gin",))


def test_all_required_values_are_listed_at_once():
  message = message_of(files=("models/t5/tiny.gin", "runs/finetune.gin"), model_dir=None)
  for name in ("MODEL_DIR", "TASK", "INIT_FROM"):
    assert f"--gin.{name}=..." in message
  assert "runs/finetune.gin:" in message and "runs/train.gin:" in message


def test_a_run_without_a_model_lists_the_macros_and_where_they_are_used():
  message = message_of(files=(OBJECTIVE, RUN))
  assert "MODEL " in message and "VOCABULARY" in message and "runs/train.gin:" in message


def test_a_missing_run_file_is_reported():
  configuration.load([], [])
  with pytest.raises(UserError, match="not configured") as error:
    configuration.build("train")
  assert "runs/pretrain.gin" in str(error.value)


def test_a_syntax_error_is_reported_with_file_and_line(tmp_path):
  mine = tmp_path / "mine.gin"
  mine.write_text("SEED = 1\nTASK = = 2\n")
  assert f"{mine}:2" in message_of(files=(MODEL, OBJECTIVE, RUN, str(mine)))


def test_files_that_include_each_other_are_refused(tmp_path):
  (tmp_path / "a.gin").write_text("include 'b.gin'\n")
  (tmp_path / "b.gin").write_text("include 'a.gin'\n")
  assert "circular include" in message_of(files=("a.gin",), search_paths=[str(tmp_path)])


def test_wrong_types_and_values_are_refused():
  for override, part in [
    (("TRAIN_STEPS", "0"), "invalid TRAIN_STEPS: 0"),
    (("TRAIN_STEPS", "many"), "an integer"),
    (("BATCH_SIZE", "-4"), "invalid BATCH_SIZE: -4"),
    (("OPTIMIZER", "@adafactor"), "with parentheses"),
    (("LENGTHS", "{'outputs': 3}"), "LENGTHS"),
    (("NOISE_DENSITY", "1.5"), "noise_density"),
    (("SEED", str(2**32)), "below 2^32"),
    (("MODEL_DIR", ""), "invalid MODEL_DIR: ''"),
    (("Z_LOSS", "-1"), "invalid Z_LOSS: -1"),
    (("PROFILE_STEPS", "5"), "invalid PROFILE_STEPS: 5"),
    (("PROFILE_STEPS", "(5, 1)"), "(10, 14)"),
    (("PHASES", "5"), "a list such as"),
    (("TASK_MODULES", "my.tasks"), "['my.tasks']"),
    (("EVAL_TASKS", "glue_cola"), "['glue_stsb_classification']"),
    (("EVAL_TASKS", "snli"), "a list of names"),
    (("EVAL_LOSS_PERIOD", "5"), "EVAL_SPLIT is empty"),
    (("train.label_smoothing", "1.0"), "invalid LABEL_SMOOTHING: 1.0"),
    (("OPTIMIZER", "@adamw()"), "adamw needs learning_rate"),
  ]:
    with pytest.raises(UserError) as error:
      load(override)
      configuration.build("train")
    assert part in error.value.render()


def test_every_value_is_checked_against_the_type_of_its_parameter(tmp_path):
  """By the annotations: integers, numbers, strings and booleans, also through chains of macros."""
  for name, text, expected, suggestion in [
    ("EMBED_DIM", "[16]", "an integer", "..."),
    ("EMBED_DIM", "16.5", "an integer", "..."),
    ("HEAD_DIM", "8.0", "an integer or None", "8"),
    ("WARMUP_STEPS", "1e4", "an integer", "10000"),
    ("BATCH_SIZE", "'4'", "an integer", "4"),
    ("VOCAB_SIZE", "True", "an integer", "..."),
    ("DROPOUT_RATE", "lots", "a number", "..."),
    ("Z_LOSS", "[1]", "a number", "..."),
    ("LOSS_NORMALIZER", "'2.5'", "a number or None", "2.5"),
    ("LEARNING_RATE", "fast", "a number or a reference such as @NAME()", "..."),
    ("KEEP.last", "x", "an integer", "..."),
    ("MESH.fsdp", "2.0", "an integer", "2"),
    ("EARLY_STOPPING.metric", "5", "a string", "\"'5'\""),
    ("INIT_FROM", "2024", "a string or None", "\"'2024'\""),
    ("adafactor.weight_decay", "x", "a number or a list", "..."),
    ("adafactor.multiply_by_parameter_scale", "1", "True or False", "..."),
  ]:
    lines = {line[:10].strip(): line[10:].strip() for line in message_of((name, text)).split("\n")[1:]}
    assert lines == {"expected": expected, "try": f"--gin.{name}={suggestion}"}, name
  for name, text in [("Z_LOSS", "0"), ("LOSS_NORMALIZER", "None"), ("LEARNING_RATE", "1"), ("SEED", "%TRAIN_STEPS")]:
    load((name, text))

  (tmp_path / "mine.gin").write_text("WIDTH = 'wide'\nEMBED_DIM = %WIDTH\n")
  message = message_of(files=(MODEL, OBJECTIVE, RUN, "mine.gin"), search_paths=[str(tmp_path)])
  assert "invalid WIDTH: 'wide'" in message and "mine.gin:1" in message
  assert "circular macros" in message_of(("SEED", "%BATCH_SIZE"), ("BATCH_SIZE", "%SEED"))


def test_the_operative_config_builds_the_same_run(tmp_path):
  load(("SEED", "5"), ("LENGTHS", "{'inputs': 64}"))
  first = configuration.build("train")
  saved = tmp_path / "config.gin"
  saved.write_text(configuration.operative_config())
  configuration.load([str(saved)])
  again = configuration.build("train")
  assert again.model.config == first.model.config
  assert (again.seed, again.lengths, again.objective) == (first.seed, first.lengths, first.objective)


def test_old_names_keep_working(capsys, tmp_path):
  """In config.gin files of old runs, and on the command line."""
  (tmp_path / "old.gin").write_text("LOSS_NORMALISER = 7.0\ntrain.loss_normaliser = %LOSS_NORMALISER\n")
  files = ["models/t5/tiny.gin", "objectives/span_corruption.gin", "runs/pretrain.gin", str(tmp_path / "old.gin")]
  configuration.load(files, [("MODEL_DIR", "x")])
  assert configuration.build("train").loss_normalizer == 7.0
  notices = capsys.readouterr().err
  assert notices.count("LOSS_NORMALISER has been renamed to LOSS_NORMALIZER") == 1 and "old.gin:1" in notices


def test_a_text_that_is_parsed_once_has_its_own_values_and_places():
  text, anything = "A = [1, {'b': 2}]\nB = %A\n", Permissions([])
  first, _ = read_text(text, "one.gin", anything)
  first.value[1]["b"] = 3
  again, _ = read_text(text, "two.gin", anything)
  assert again.value == [1, {"b": 2}] and (first.where, again.where) == ("one.gin:1", "two.gin:1")
  for name in ("one.gin", "two.gin"):
    with pytest.raises(UserError, match=f"{name}:2"):
      read_text("A = 1\nB 2\n", name, anything)
