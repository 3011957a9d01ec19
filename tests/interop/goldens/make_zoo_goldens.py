"""Writes tests/data/golden/zoo: the results of Hugging Face's encoders, one file per family.

Not a test; needs torch and transformers:

    python tests/interop/goldens/make_zoo_goldens.py [FAMILY ...]

FAMILY.npz has for each class: a description in JSON (config.json, and the shapes of all tensors, whose values
zoo_weights.draw gives), the inputs, logits, loss, and gradients, flattened and joined in the order of the names.
Made with transformers 5.22, torch 2.13.
"""

import sys
from pathlib import Path

import numpy as np
from drawn_models import describe
from head_cases import run
from zoo_cases import FAMILIES, make_inputs, make_model

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "zoo"
USELESS = ("transformers_version", "use_cache", "_name_or_path", "dtype", "add_cross_attention", "is_decoder")


def main(families: list[str]) -> None:
  for family in families or FAMILIES:
    arrays: dict[str, np.ndarray] = {}
    for seed, (name, fields, head) in enumerate(FAMILIES[family]):
      model, case = make_model(name, fields, head, seed), f"{name}For{head}"
      case = case if f"{case}/loss" not in arrays else f"{case}-{seed}"
      inputs = make_inputs(model, head, seed)
      logits, loss, gradients = run(model, inputs)
      description, tensors = describe(model, seed, USELESS)
      joined = np.concatenate([gradients[n].ravel() for n in sorted(gradients)])
      values = {n: x.astype(np.int8) if x.dtype == np.int64 else x for n, x in inputs.items()}
      values |= dict(logits=logits, loss=np.float32(loss), gradients=joined, description=description)
      arrays |= {f"{case}/{n}": x for n, x in values.items()}
      if tensors != sorted(gradients):
        print(case, "tensors that differ from the parameters:", sorted(set(tensors) ^ set(gradients)))
    GOLDEN.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(GOLDEN / f"{family}.npz", **arrays)


if __name__ == "__main__":
  main(sys.argv[1:])
