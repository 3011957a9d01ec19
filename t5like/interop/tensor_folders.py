"""Reads the tensors of a checkpoint folder (one file, or shards with an index) into numpy; writes safetensors."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from t5like.errors import UserError, nearest
from t5like.files import storage
from t5like.files.system_errors import as_os_error
from t5like.interop.torch_files import TorchFile

SINGLE_FILE = "model.safetensors"
# In order of preference: safetensors, then the files of older uploads.
_FORMATS = (
  (SINGLE_FILE, "model-00001-of-00002.safetensors"),
  ("pytorch_model.bin", "pytorch_model-00001-of-00002.bin"),
)
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")  # patterns of all of them
_DTYPES = ("F32", "BF16", "F16")


class Tensors:
  """The tensors of files by name, read one at a time to save memory."""

  def __init__(self, folder: Path, paths: Iterable[Path]):
    self.folder = folder
    self._files: dict[str, _SafetensorsFile | TorchFile] = {}  # by the name of a tensor
    for path in paths:
      opened = _SafetensorsFile(path) if path.suffix == ".safetensors" else TorchFile(path)
      self._files |= dict.fromkeys(opened.keys(), opened)

  def names(self) -> list[str]:
    return list(self._files)

  def read(self, name: str) -> np.ndarray:
    if name not in self._files:
      raise UserError(f"no tensor {name} in {self.folder}", nearest=nearest(name, self._files))
    dtype = self._files[name].dtype(name)
    if dtype not in _DTYPES:  # integers and 8-bit floats are quantized weights, useless without scales
      raise UserError(
        f"the tensor {name} in {self.folder} has dtype {dtype}",
        expected=", ".join(_DTYPES),
        try_="in transformers: model.float().save_pretrained(folder), after dequantizing a quantized model",
      )
    return self._files[name].get_tensor(name)


class TensorFolder(Tensors):
  """The tensors of a checkpoint folder."""

  def __init__(self, folder: Path):
    super().__init__(folder, _paths(folder))


class _SafetensorsFile:
  def __init__(self, path: Path):
    try:
      self._opened = safe_open(path, framework="numpy")
    except SafetensorError as error:
      raise UserError(
        f"{path} is a truncated or damaged safetensors file",
        reason=error,
        size=f"{path.stat().st_size:,} bytes",
        try_="download or copy it again",
      ) from error
    self.keys, self.get_tensor = self._opened.keys, self._opened.get_tensor

  def dtype(self, name: str) -> str:
    return self._opened.get_slice(name).get_dtype()


def _paths(folder: Path) -> list[Path]:
  """Returns the weight files of a folder: of the first format that it has, shards before a single file."""
  if not folder.is_dir():
    raise UserError(f"no such folder: {folder}", expected=f"a folder with config.json and {SINGLE_FILE}")
  for single, example in _FORMATS:
    if (folder / f"{single}.index.json").is_file():
      return _shards(folder, folder / f"{single}.index.json", example)
    if (folder / single).is_file():
      return [folder / single]
  other = [name for name in ("tf_model.h5", "flax_model.msgpack") if (folder / name).is_file()]
  raise UserError(
    f"no {' or '.join(single for single, _ in _FORMATS)} (or .index.json) in {folder}",
    found=", ".join(sorted(p.name for p in folder.iterdir())[:8]),
    try_="in transformers 4: AutoModel.from_pretrained(folder, "
    f"from_{'tf' if other[0] == 'tf_model.h5' else 'flax'}=True).save_pretrained(folder)"
    if other
    else "",
  )


def _shards(folder: Path, index: Path, example: str) -> list[Path]:
  weights = read_json(index).get("weight_map", {})
  names = weights.values() if isinstance(weights, dict) else [weights]
  suffix = Path(example).suffix
  if outside := [shard for shard in names if not storage.is_plain_name(shard)]:
    raise UserError(
      f"{index} refers to shards outside of its folder",
      found=repr(outside[0])[:100],
      expected=f"file names such as {example}",
    )
  shards = sorted(set(names))
  missing = [shard for shard in shards if not (folder / shard).is_file()]
  if missing or not shards:
    raise UserError(f"{index} refers to missing shards", missing=", ".join(missing) or "all of them")
  if other := [shard for shard in shards if not shard.endswith(suffix)]:
    raise UserError(f"{index} refers to {other[0][:100]!r}", expected=f"file names such as {example}")
  return [folder / shard for shard in shards]


def write(folder: Path, tensors: dict[str, np.ndarray], name: str = SINGLE_FILE) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  with as_os_error():
    # transformers rejects files without this metadata.
    save_file(tensors, folder / name, metadata={"format": "pt"})
  (folder / name).chmod(0o644)  # safetensors makes it readable by the owner only


def read_json(path: Path) -> dict:
  try:
    return storage.read_json(path)
  except ValueError as error:
    raise UserError(f"{path} is invalid", reason=error, expected="a JSON object") from error
