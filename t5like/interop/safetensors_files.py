"""A folder of safetensors: one file or many with an index. Reads into numpy; needs no torch."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from t5like.errors import UserError, nearest
from t5like.files import storage

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = ("F32", "BF16", "F16")


class TensorFolder:
  """The tensors of a checkpoint by name, read one at a time so that a large model fits."""

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
    if dtype not in _DTYPES:  # integers and 8-bit floats are quantized weights, nothing without their scales
      raise UserError(
        f"the tensor {name} in {self.folder} has dtype {dtype}",
        expected=", ".join(_DTYPES),
        try_="in transformers: model.float().save_pretrained(folder); a quantized model, dequantized before that",
      )
    return self._files[name].get_tensor(name)


def _paths(folder: Path) -> list[Path]:
  if not folder.is_dir():
    raise UserError(f"no folder {folder}", expected=f"a folder with config.json and {ONE}")
  if (folder / INDEX).is_file():
    weights = read_json(folder / INDEX).get("weight_map", {})
    names = weights.values() if isinstance(weights, dict) else [weights]
    if outside := [shard for shard in names if not storage.is_plain_name(shard)]:
      raise UserError(
        f"{folder / INDEX} names shards outside of its folder",
        found=repr(outside[0])[:100],
        expected="file names such as model-00001-of-00002.safetensors",
      )
    shards = sorted(set(weights.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing or not shards:
      raise UserError(f"{folder / INDEX} names shards that are not there", missing=", ".join(missing) or "all of them")
    return [folder / shard for shard in shards]
  if (folder / ONE).is_file():
    return [folder / ONE]
  has_torch = any(folder.glob("pytorch_model*.bin"))
  raise UserError(
    f"no {ONE} (or {INDEX}) in {folder}",
    found=", ".join(sorted(p.name for p in folder.iterdir())[:8]),
    try_="in transformers: model.save_pretrained(folder), which writes safetensors" if has_torch else "",
  )


def _open(path: Path):
  try:
    return safe_open(path, framework="numpy")
  except SafetensorError as error:
    raise UserError(
      f"{path} is not a whole safetensors file",
      reason=error,
      size=f"{path.stat().st_size:,} bytes",
      try_="download or copy it again: it is truncated or damaged",
    ) from error


def write(folder: Path, tensors: dict[str, np.ndarray]) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  # transformers refuses files that do not say which framework's layout they follow.
  save_file(tensors, folder / ONE, metadata={"format": "pt"})
  (folder / ONE).chmod(0o644)  # the library leaves it readable by its owner only


def read_json(path: Path) -> dict:
  try:
    return storage.read_json(path)
  except ValueError as error:
    raise UserError(f"{path} is not valid", reason=error, expected="a JSON object") from error
