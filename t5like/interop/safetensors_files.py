"""Reads and writes safetensors folders (one file, or shards with an index) with numpy, without torch."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from t5like.errors import UserError, nearest
from t5like.files import storage

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = ("F32", "BF16", "F16")


class TensorFolder:
  """The tensors of a checkpoint by name, read one at a time to save memory."""

  def __init__(self, folder: Path):
    self.folder = folder
    self._files = {}  # name -> open file
    for path in _paths(folder):
      opened = _open(path)
      self._files |= dict.fromkeys(opened.keys(), opened)

  def names(self) -> list[str]:
    return list(self._files)

  def read(self, name: str) -> np.ndarray:
    if name not in self._files:
      raise UserError(f"no tensor {name} in {self.folder}", nearest=nearest(name, self._files))
    dtype = self._files[name].get_slice(name).get_dtype()
    if dtype not in _DTYPES:  # integers and 8-bit floats are quantized weights, useless without scales
      raise UserError(
        f"the tensor {name} in {self.folder} has dtype {dtype}",
        expected=", ".join(_DTYPES),
        try_="in transformers: model.float().save_pretrained(folder), after dequantizing a quantized model",
      )
    return self._files[name].get_tensor(name)


def _paths(folder: Path) -> list[Path]:
  if not folder.is_dir():
    raise UserError(f"no such folder: {folder}", expected=f"a folder with config.json and {SINGLE_FILE}")
  if (folder / INDEX).is_file():
    weights = read_json(folder / INDEX).get("weight_map", {})
    names = weights.values() if isinstance(weights, dict) else [weights]
    if outside := [shard for shard in names if not storage.is_plain_name(shard)]:
      raise UserError(
        f"{folder / INDEX} refers to shards outside of its folder",
        found=repr(outside[0])[:100],
        expected="file names such as model-00001-of-00002.safetensors",
      )
    shards = sorted(set(weights.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing or not shards:
      raise UserError(f"{folder / INDEX} refers to missing shards", missing=", ".join(missing) or "all of them")
    return [folder / shard for shard in shards]
  if (folder / SINGLE_FILE).is_file():
    return [folder / SINGLE_FILE]
  has_torch = any(folder.glob("pytorch_model*.bin"))
  raise UserError(
    f"no {SINGLE_FILE} (or {INDEX}) in {folder}",
    found=", ".join(sorted(p.name for p in folder.iterdir())[:8]),
    try_="in transformers: model.save_pretrained(folder), which writes safetensors" if has_torch else "",
  )


def _open(path: Path):
  try:
    return safe_open(path, framework="numpy")
  except SafetensorError as error:
    raise UserError(
      f"{path} is a truncated or damaged safetensors file",
      reason=error,
      size=f"{path.stat().st_size:,} bytes",
      try_="download or copy it again",
    ) from error


def write(folder: Path, tensors: dict[str, np.ndarray]) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  # transformers rejects files without this metadata.
  save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})
  (folder / SINGLE_FILE).chmod(0o644)  # safetensors makes it readable by the owner only


def read_json(path: Path) -> dict:
  try:
    return storage.read_json(path)
  except ValueError as error:
    raise UserError(f"{path} is invalid", reason=error, expected="a JSON object") from error
