"""Folders of tiny BART and mBART models with the weights and results of make_bart_goldens.py."""

import functools
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from zoo_weights import draw

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "bart"
BART, MBART = "BartForConditionalGeneration", "MBartForConditionalGeneration"


@functools.cache
def arrays_of(case: str) -> dict[str, np.ndarray]:
  with np.load(GOLDEN / "models.npz") as arrays:
    return {name.partition("/")[2]: arrays[name] for name in arrays.files if name.startswith(f"{case}/")}


def write_folder(case: str, folder: Path) -> dict[str, tuple[int, ...]]:
  """Writes the folder of a model, as `save_pretrained` does; returns the shapes of its tensors."""
  described = json.loads(arrays_of(case)["description"].tobytes())
  tensors = draw(described["tensors"], described["seed"])
  if case == BART:
    tensors["final_logits_bias"][:] = 0
  folder.mkdir(exist_ok=True)
  (folder / "config.json").write_text(json.dumps(described["config"]))
  save_file(tensors, folder / "model.safetensors")
  return {name: x.shape for name, x in tensors.items()}
