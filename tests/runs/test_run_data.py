"""What a run evaluates: the tasks of a mixture that have metrics."""

import numpy as np
import pytest

from t5like import data
from t5like.errors import UserError
from t5like.experiments.reading import read_experiment
from t5like.experiments.token_caches import CachedTask
from t5like.runs.run_data import check_evaluation, scored_members
from t5like.vocabularies import load_vocabulary

ACCURACY = {"function": "t5like.tasks.metrics:accuracy", "keywords": {}}


@pytest.fixture
def member(tmp_path):
  """Returns a function that writes the token cache of a task."""
  vocabulary = load_vocabulary("tiny")

  def write(name, metrics=()):
    rows = [{"inputs": "a", "targets": word} for word in ("yes", "no")]
    about = {"name": "tiny", "size": vocabulary.vocab_size, "fingerprint": vocabulary.fingerprint}
    described = {"task": name, "split": "validation", "source_files": []}
    scoring = {"postprocessor": None, "metrics": list(metrics)}
    encode = lambda texts: [np.array(vocabulary.encode(text)) for text in texts]  # noqa: E731
    data.write_cache(tmp_path / name, rows, ["inputs", "targets"], encode, about, described, scoring)
    return CachedTask(name, data.open_cache(tmp_path / name, rebuild_command=""))

  return write


def test_the_tasks_of_a_mixture_without_metrics_are_not_evaluated(member, tmp_path, capsys):
  plain, scored = member("plain"), member("scored", [ACCURACY])
  experiment = read_experiment(
    ["models/t5/tiny.gin", "runs/finetune.gin"], TASK="mine", INIT_FROM=None, MODEL_DIR=str(tmp_path / "run")
  )
  vocabulary = load_vocabulary("tiny")
  assert scored_members([plain, scored]) == [scored] and scored_members([plain]) == [plain]
  check_evaluation(experiment, [scored], vocabulary)
  assert not capsys.readouterr().out
  check_evaluation(experiment, [plain, scored], vocabulary)
  assert capsys.readouterr().out == "note: not evaluated, as they have no metrics: plain\n"
  with pytest.raises(UserError, match="'plain' has no metric functions") as error:
    check_evaluation(experiment, [plain], vocabulary)
  assert "EVAL_TASKS" in str(error.value)
