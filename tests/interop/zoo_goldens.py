"""Reads golden results of transformers for families of models: make_zoo_goldens.py, make_decoder_goldens.py."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from zoo_weights import draw

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@functools.cache
def family(name: str) -> dict[str, dict]:
  """Returns the arrays of each class of a family, by name."""
  cases: dict[str, dict] = {}
  with np.load(
    next(path for folder in ("zoo", "decoders", "") for path in (GOLDEN / folder).glob(f"{name}.npz"))
  ) as arrays:
    for path in arrays.files:
      case, _, array = path.partition("/")
      cases.setdefault(case, {})[array] = arrays[path]
  return cases


def all_cases(folder: str) -> list[tuple[str, str]]:
  """Returns families and classes in a folder."""
  return [(path.stem, case) for path in sorted((GOLDEN / folder).glob("*.npz")) for case in family(path.stem)]


def parameters(cases: Iterable[tuple[str, str]], *default: str) -> list:
  """Returns parameters of a test; those that are not in `default` are slow."""
  return [
    pytest.param(name, case, id=case, marks=[] if case in default else [pytest.mark.slow]) for name, case in cases
  ]


def golden(name: str, case: str, folder: Path) -> dict[str, np.ndarray]:
  """Writes the folder of a model, as `save_pretrained` does; returns inputs and results."""
  arrays = dict(family(name)[case])
  described = json.loads(arrays.pop("description").tobytes())
  folder.mkdir(exist_ok=True)
  (folder / "config.json").write_text(json.dumps(described["config"]))
  save_file(draw(described["tensors"], described["seed"]), folder / "model.safetensors")
  return arrays | {"shapes": {n: tuple(shape) for n, shape in sorted(described["tensors"].items())}}


def take_results(arrays: dict) -> tuple[np.ndarray, float, dict[str, np.ndarray]]:
  """Removes logits, loss and gradients from the arrays of a case, and returns them."""
  logits, loss, joined, shapes = (arrays.pop(key) for key in ("logits", "loss", "gradients", "shapes"))
  cuts = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
  return logits, float(loss), {n: x.reshape(shapes[n]) for n, x in zip(shapes, np.split(joined, cuts), strict=True)}
