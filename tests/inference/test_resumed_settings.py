"""What an output file is tied to, and warnings about a model's vocabulary."""

import json

import pytest
from infer_models import folder_of

from t5like.inference import load
from t5like.inference.batch_inference import _header, vocabulary_warnings
from t5like.inference.job_settings import Generate, Rank
from t5like.inference.jobs import Limits


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return load(folder_of("gpt2", tmp_path_factory.mktemp("models") / "gpt2", eos=12))


def test_a_file_is_tied_to_the_average_and_to_how_candidates_are_ranked(model):
  assert model.at(average=True).average and not model.at().average
  headers = [_header(each, Generate(), Limits()) for each in (model, model.at(average=True))]
  assert [header["model"]["average"] for header in headers] == [False, True]
  assert len({Rank(field="x", per_token=per_token).identity(model)["per_token"] for per_token in (False, True)}) == 2


@pytest.mark.parametrize("configured", [11, 12])
def test_another_end_of_sequence_in_the_configuration_is_noticed(model, tmp_path, configured):
  folder = folder_of("gpt2", tmp_path / "other", eos=12)
  config = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": configured}))
  other = load(folder, vocabulary=str(model.folder))
  assert other.vocabulary.eos_id == 12
  warnings = [text.split(" ends ")[1] for text in vocabulary_warnings(other) if " ends " in text]
  assert warnings == ([] if configured == 12 else ["outputs at id 12, but the model's configuration has 11"])
