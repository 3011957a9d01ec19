"""Writes tests/data/objectives/t5.json: the output of the original library's token functions on random masks.

Needs the `t5` library (0.9.4), which t5like does not depend on:

    python tests/objectives/make_goldens.py
"""

import json
import types
from pathlib import Path

import numpy as np
from t5.data import preprocessors as t5

FUNCTIONS = (
  "noise_token_to_sentinel", "noise_span_to_sentinel", "nonnoise_span_to_sentinel", "noise_span_to_unique_sentinel",
  "nonnoise_span_to_unique_sentinel", "drop_noise_tokens", "drop_nonnoise_tokens",
)  # fmt: skip
OUT = Path(__file__).parents[1] / "data/objectives/t5.json"


def token_functions() -> list[dict]:
  rng = np.random.default_rng(0)
  vocabulary = types.SimpleNamespace(vocab_size=32_100)
  cases = []
  for length in (1, 2, 3, 5, 8, 13, 40, 64, 64, 64):
    for density in (0.15, 0.5, 0.85):
      tokens, mask = rng.integers(3, 32_000, length), rng.random(length) < density
      outputs = {name: getattr(t5, name)(tokens, mask, vocabulary, ()).numpy().tolist() for name in FUNCTIONS}
      cases.append({"tokens": tokens.tolist(), "mask": mask.astype(int).tolist(), **outputs})
  return cases


def lengths() -> list[list]:
  cases = []
  for inputs in (16, 64, 100, 128, 256, 512, 1024, 2048):
    for density in (0.1, 0.15, 0.25, 0.3, 0.5):
      for mean in (1.0, 2.0, 3.0, 5.0, 10.0):
        raw, targets = t5.random_spans_helper(inputs, density, mean, 1, 1)
        cases.append([inputs, density, mean, raw, targets])
  return cases


if __name__ == "__main__":
  OUT.parent.mkdir(exist_ok=True)
  OUT.write_text(json.dumps({"token_functions": token_functions(), "lengths": lengths()}, separators=(",", ":")) + "\n")
