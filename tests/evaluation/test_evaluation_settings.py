"""Evaluation settings: validation, identities, and compatibility with earlier versions."""

import pytest

from t5like.errors import InvalidSetting, UserError
from t5like.evaluation.few_shot import Template
from t5like.evaluation.settings import EvaluationSettings, TextLossSettings, description

TEMPLATE = Template("", "{inputs} ", "\n")


@pytest.mark.parametrize(
  ("given", "text"),
  [
    ({}, ""),
    ({"examples": 16}, "first 16"),
    ({"rank": "sum", "seed": 3}, "rank sum"),  # nothing is sampled
    ({"beams": 4, "length_penalty": 0.0}, "beams 4, length_penalty 0.0"),
    ({"rank": "mean", "candidates": "labels.txt", "average": True}, "rank mean, candidates labels.txt, average"),
    ({"shots": 0}, "shots 0 prompt 17d20a54"),
    (
      {"shots": 2, "seed": 1, "rank": "sum", "shots_split": "dev", "infill": True, "inputs_length": 9, "examples": 5},
      "rank sum, seed 1, shots 2 prompt 17d20a54 infill, from dev, inputs 9, first 5",
    ),
    ({"stop": ("\n",), "batch_size": 4, "cache_dir": "x"}, "stop ['\\n']"),
  ],
)
def test_an_identity_and_its_text(given, text):
  identity = EvaluationSettings.of(**given).identity(TEMPLATE)
  assert description(identity) == text
  assert not set(identity) & {"batch_size", "cache_dir", "task_modules", "split"}  # they do not affect scores


def test_an_identity_has_what_differs_from_the_defaults():
  assert EvaluationSettings().identity() == {}
  found = EvaluationSettings(rank="sum", decoding={"seed": 1}, examples=8).identity()
  assert found == {"rank": "sum", "examples": 8}
  assert EvaluationSettings.of(top_p=0.5, seed=1).identity() == {"decoding": {"seed": 1, "top_p": 0.5}}


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"examples": -1}, "examples=-1 is invalid"),
    ({"batch_size": 0}, "batch_size=0 is invalid"),
    ({"rank": "median"}, "rank=median is invalid"),
    ({"rank": "sum", "beams": 4}, "rank does not decode"),
    ({"candidates": "labels.txt"}, "candidates requires rank"),
    ({"n_best": 2}, "n_best: only the best answer is evaluated"),
  ],
)
def test_invalid_settings(given, message):
  with pytest.raises(InvalidSetting, match=f"^{message}") as error:
    EvaluationSettings.of(**given)
  assert error.value.as_option().what.replace(" --", " ") == f"--{message}"
  with pytest.raises(InvalidSetting, match="stride=0 is invalid"):
    TextLossSettings(stride=0)
  with pytest.raises(UserError, match="(?s)unknown setting 'shot'.*nearest +shots"):
    EvaluationSettings.of(shot=2)
