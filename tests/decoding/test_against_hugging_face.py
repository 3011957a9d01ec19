"""Outputs equal those of Hugging Face's `generate`, token by token, in the golden files of make_goldens.py."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from t5like import parallel
from t5like.decoding import DecodeSettings
from t5like.inference.generation import Generator
from t5like.interop import huggingface

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
EARLY_STOPPING = {True: "first", False: "heuristic", "never": "never"}


def to_settings(options: dict, new_tokens: int) -> DecodeSettings:
  """Translates options of `generate`."""
  given = {
    "max_length": new_tokens,
    "min_length": options.get("min_new_tokens", 0),
    "repetition_penalty": options.get("repetition_penalty", 1.0),
  }
  if "num_beams" in options:
    given |= {
      "method": "beam",
      "beams": options["num_beams"],
      "n_best": options.get("num_return_sequences", 1),
      "length_penalty": options["length_penalty"],
      "penalty_form": "power",
      "early_stopping": EARLY_STOPPING[options["early_stopping"]],
    }
  return DecodeSettings(**given)


def to_batch(model, prompts: list[list[int]]) -> dict[str, np.ndarray]:
  longest = max(map(len, prompts))
  tokens = np.array([p + [0] * (longest - len(p)) for p in prompts], np.int32)
  if model.batch_layout == "encoder_decoder":
    return {"encoder_input_tokens": tokens}
  lengths = np.array([[len(p)] for p in prompts])
  return {"decoder_input_tokens": tokens, "decoder_segment_ids": (np.arange(longest) < lengths).astype(np.int32)}


# One of each kind; the others are slow, because each case is compiled.
CASES = [
  ("t5_1_1", "greedy"), ("t5_1_1", "4 beams, no penalty"),
  ("t5_1_0", "4 beams, first"), ("gpt2", "greedy"), ("gpt2", "4 beams, no penalty"),
  ("gpt2", "2 beams, short ones"),
]  # fmt: skip
REST = [
  (path.stem, case)
  for path in sorted((GOLDEN / "decoding").glob("*.json"))
  for case in json.loads(path.read_text())["cases"]
  if (path.stem, case) not in CASES
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  ("name", "case"),
  CASES + [pytest.param(*pair, marks=pytest.mark.slow) for pair in REST],
)
def test_outputs_equal_hugging_face(name, case):
  golden = json.loads((GOLDEN / "decoding" / f"{name}.json").read_text())
  imported = huggingface.load(GOLDEN / name)
  expected = golden["cases"][case]
  settings = to_settings(expected["options"], golden["new_tokens"])
  mesh = parallel.make_mesh(parallel.MeshAxes(), jax.devices()[:1])
  generator = Generator(imported.model, mesh, golden["eos_id"])
  decoded = generator(imported.params, to_batch(imported.model, golden["prompts"]), settings)
  rows = [row.tolist() for outputs in decoded.tokens for row in outputs]
  for ours, theirs in zip(rows, expected["sequences"], strict=True):
    assert ours == theirs + [0] * (len(ours) - len(theirs))
  if expected["scores"] is not None:
    np.testing.assert_allclose(decoded.ranking.reshape(-1), expected["scores"], rtol=0, atol=1e-4)
