"""Writes tests/data/golden/heads: Hugging Face's classes with heads, tiny and random, with logits, loss and gradients.

Not a test; needs torch and transformers:

    python tests/interop/goldens/make_head_goldens.py

Each folder has config.json, model.safetensors, and outputs.npz: inputs with padding, logits, loss, and the gradients of
all tensors of the file, flattened and joined in the order of their names. Made with transformers 5.22, torch 2.13.
"""

from pathlib import Path

import numpy as np
from head_cases import CASES, make_inputs, make_model, run

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "heads"


def main() -> None:
  for seed, case in enumerate(CASES):
    model, inputs = make_model(case, seed, layers=1), make_inputs(case, seed)
    logits, loss, gradients = run(model, inputs)
    model.save_pretrained(GOLDEN / case)
    (GOLDEN / case / "generation_config.json").unlink(missing_ok=True)
    arrays = {name: x.astype(np.int8) if x.dtype == np.int64 else x for name, x in inputs.items()}
    joined = np.concatenate([gradients[name].ravel() for name in sorted(gradients)])
    arrays |= dict(logits=logits, loss=np.float32(loss), gradients=joined)
    np.savez_compressed(GOLDEN / case / "outputs.npz", **arrays)


if __name__ == "__main__":
  main()
