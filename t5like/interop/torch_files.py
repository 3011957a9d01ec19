"""Reads the tensors of `torch.save` files (pytorch_model.bin) without torch, and without executing their pickle.

A pickle is a program: `pickle.load` calls whatever functions it names. The interpreter here knows only the operations
that build dictionaries, lists and numbers; a function is never called, and the few that torch uses to describe a tensor
are recognized by name. Everything else is rejected. Files of torch 1.6 and later are zip archives, older ones a stream
of pickles followed by the data.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from t5like.errors import UserError

# Classes of storages -> safetensors' names of dtypes, and numpy's.
_STORAGES = {
  "FloatStorage": ("F32", np.float32), "HalfStorage": ("F16", np.float16), "DoubleStorage": ("F64", np.float64),
  "BFloat16Storage": ("BF16", ml_dtypes.bfloat16), "LongStorage": ("I64", np.int64), "IntStorage": ("I32", np.int32),
  "ShortStorage": ("I16", np.int16), "CharStorage": ("I8", np.int8), "ByteStorage": ("U8", np.uint8),
  "BoolStorage": ("BOOL", np.bool_),
}  # fmt: skip
_REBUILD = ("_rebuild_tensor_v2", "_rebuild_tensor")
_GLOBALS = {
  "collections OrderedDict", "torch Size", "torch._utils _rebuild_parameter",
  *(f"torch._utils {name}" for name in _REBUILD), *(f"torch {name}" for name in _STORAGES),
}  # fmt: skip
_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of an old file
_OLD_PROTOCOL = 1001
_MAX_PICKLE = 64 * 2**20  # bytes; a state dict of 10,000 tensors has about 2 MB
_CONVERT = (
  'on a machine with torch: python -c "import sys, torch, safetensors.torch as s; t = torch.load(sys.argv[1], '
  "weights_only=True); s.save_file({k: v.clone().contiguous() for k, v in t.items()}, 'model.safetensors', "
  "{'format': 'pt'})\" "
)


class Rejected(Exception):
  """The file is not a plain dictionary of tensors, or is damaged."""


# Whatever zipfile and numpy raise for damaged files.
_UNREADABLE = (Rejected, zipfile.BadZipFile, struct.error, EOFError, OSError, ValueError, RuntimeError, OverflowError)


@dataclasses.dataclass(frozen=True)
class _Global:
  name: str  # "module name"


@dataclasses.dataclass(frozen=True)
class _Storage:
  kind: str  # a key of _STORAGES
  key: str
  size: int  # elements


@dataclasses.dataclass(frozen=True)
class _Tensor:
  storage: _Storage
  offset: int  # in elements, like the strides
  shape: tuple[int, ...]
  strides: tuple[int, ...]


_MARK = object()


class TorchFile:
  """The tensors of one file by name; each is read from the file when it is requested."""

  def __init__(self, path: Path):
    """Reads the names and shapes. Raises UserError for any file but an intact dictionary of tensors."""
    self.path = path
    self._last: tuple[str, np.ndarray] | None = None  # tensors often share a storage with the one before
    try:
      self._data = _ZipData(path) if zipfile.is_zipfile(path) else _OldData(path)
      self._tensors = _tensors(self._data.state)
      for tensor in self._tensors.values():
        _check_bounds(tensor)
    except _UNREADABLE as error:
      raise self._error(error) from None

  def keys(self) -> Iterable[str]:
    return self._tensors.keys()

  def dtype(self, name: str) -> str:
    """Returns safetensors' name of the dtype, such as "F32"."""
    return _STORAGES[self._tensors[name].storage.kind][0]

  def get_tensor(self, name: str) -> np.ndarray:
    tensor = self._tensors[name]
    storage = tensor.storage
    if self._last is None or self._last[0] != storage.key:
      dtype = np.dtype(_STORAGES[storage.kind][1])
      try:
        content = self._data.read(storage.key, storage.size * dtype.itemsize)
      except _UNREADABLE as error:
        raise self._error(error) from None
      self._last = storage.key, np.frombuffer(content, dtype)
    flat = self._last[1]
    strides = [stride * flat.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides, writeable=False).copy()

  def _error(self, reason: Exception) -> UserError:
    return UserError(
      f"{self.path} cannot be read without executing it, or is damaged",
      reason=str(reason) or type(reason).__name__,
      expected="a dictionary of tensors, saved by torch.save(model.state_dict())",
      try_=f"model.safetensors; or, if you trust the file, {_CONVERT}{self.path}",
    )


def _tensors(state: Any) -> dict[str, _Tensor]:
  """Returns the tensors of a state dict, also of one under "state_dict" or (fastai) "model"; ignores other values."""
  for name in ("state_dict", "model"):
    if isinstance(state, dict) and isinstance(state.get(name), dict):
      state = state[name]
  if not isinstance(state, dict):
    raise Rejected(f"it holds a {type(state).__name__.strip('_').lower()}, not a dictionary")
  found = {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, _Tensor)}
  if not found:
    raise Rejected("it holds no tensors")
  return found


def _check_bounds(tensor: _Tensor) -> None:
  """Raises Rejected for a tensor that is not within its storage, or much larger than it."""
  numbers = (tensor.offset, *tensor.shape, *tensor.strides)
  dimensions = len(tensor.shape)
  if (
    not all(type(n) is int and 0 <= n < 2**48 for n in numbers) or dimensions > 32 or dimensions != len(tensor.strides)
  ):
    raise Rejected("a tensor has an invalid shape")
  elements = math.prod(tensor.shape)
  last = tensor.offset + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
  if elements and (last >= tensor.storage.size or elements > tensor.storage.size):
    raise Rejected(f"a tensor of shape {tensor.shape} exceeds its data of {tensor.storage.size:,} elements")


class _ZipData:
  """A file of torch 1.6 or later: NAME/data.pkl, and NAME/data/KEY for each storage. Nothing is compressed."""

  def __init__(self, path: Path):
    self._zip = zipfile.ZipFile(path)
    pickles = [name for name in self._zip.namelist() if name.endswith("/data.pkl")]
    if len(pickles) != 1:
      raise Rejected("a zip archive without a data.pkl" if not pickles else "more than one data.pkl")
    self._root = pickles[0].removesuffix("data.pkl")
    order = f"{self._root}byteorder"
    if order in self._zip.namelist() and self._entry(order, 16) != b"little":
      raise Rejected("its numbers are big-endian")
    self.state = _interpret(io.BytesIO(self._entry(pickles[0], _MAX_PICKLE)))

  def read(self, key: str, size: int) -> bytes:
    content = self._entry(f"{self._root}data/{key}", size)
    if len(content) != size:
      raise Rejected(f"data/{key} has {len(content):,} bytes, expected {size:,}")
    return content

  def _entry(self, name: str, limit: int) -> bytes:
    try:
      info = self._zip.getinfo(name)
    except KeyError:
      raise Rejected(f"the archive has no {name}") from None
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:  # a few bytes could expand to gigabytes
      raise Rejected(f"{name} is compressed or larger than {limit:,} bytes")
    return self._zip.read(info)  # compares the checksum


class _OldData:
  """A file of torch before 1.6: five pickles, then the storages, each with its number of elements."""

  def __init__(self, path: Path):
    self._path, self._length = path, path.stat().st_size
    with path.open("rb") as file:
      if file.read(1) != b"\x80":
        raise Rejected("it is neither a zip archive nor a pickle")
      file.seek(0)
      if _interpret(file) != _MAGIC or _interpret(file) != _OLD_PROTOCOL:
        raise Rejected("it is not a file of torch.save")
      system = _interpret(file)
      if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise Rejected("its numbers are big-endian")
      storages: dict[str, _Storage] = {}
      self.state = _interpret(file, storages)
      keys = _interpret(file)
      if not isinstance(keys, list) or not all(isinstance(key, str) and key in storages for key in keys):
        raise Rejected("its list of storages does not match its tensors")
      self._places = self._find(file, [storages[key] for key in keys])

  def _find(self, file: IO[bytes], storages: list[_Storage]) -> dict[str, int]:
    places = {}
    for storage in storages:
      header, place = file.read(8), file.tell()
      size = storage.size * np.dtype(_STORAGES[storage.kind][1]).itemsize
      if len(header) < 8 or struct.unpack("<q", header)[0] != storage.size or place + size > self._length:
        raise Rejected("it is truncated")
      places[storage.key] = place
      file.seek(place + size)
    return places

  def read(self, key: str, size: int) -> bytes:
    if key not in self._places:
      raise Rejected(f"it has no data for the storage {key!r}")
    with self._path.open("rb") as file:
      file.seek(self._places[key])
      return file.read(size)


def _interpret(file: IO[bytes], storages: dict[str, _Storage] | None = None) -> Any:
  """Returns the value that a pickle describes; `storages` collects those that it mentions, by key.

  Raises Rejected for any operation or function outside of the lists here.
  """
  stack: list[Any] = []
  memo: dict[int, Any] = {}

  def since_mark() -> list[Any]:
    at = len(stack) - 1 - next((i for i, value in enumerate(reversed(stack)) if value is _MARK), len(stack))
    if at < 0:
      raise Rejected("a damaged pickle")
    values = stack[at + 1 :]
    del stack[at:]
    return values

  limit = _Limited(file)
  try:
    for operation, value, _ in pickletools.genops(limit):
      name = operation.name
      if name in ("PROTO", "FRAME"):
        continue
      if name == "STOP":
        return stack.pop()
      if name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
      elif name in _LITERALS:
        stack.append(value)
      elif name in ("EMPTY_DICT", "EMPTY_LIST"):
        stack.append({} if name == "EMPTY_DICT" else [])
      elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
        memo[len(memo) if name == "MEMOIZE" else value] = stack[-1]
      elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[value])
      elif name in _TUPLES:
        count = _TUPLES[name]
        values = tuple(stack[-count:])
        if len(values) < count:
          raise Rejected("a damaged pickle")
        stack[-count:] = [values]
      elif name == "TUPLE":
        stack.append(tuple(since_mark()))
      elif name in ("APPEND", "APPENDS"):
        values = [stack.pop()] if name == "APPEND" else since_mark()
        _expect(stack[-1], list).extend(values)
      elif name in ("SETITEM", "SETITEMS"):
        values = [stack.pop(-2), stack.pop()] if name == "SETITEM" else since_mark()
        for key, item in zip(values[::2], values[1::2], strict=True):
          _expect(stack[-1], dict)[_key(key)] = item
      elif name in ("GLOBAL", "STACK_GLOBAL"):
        if name == "STACK_GLOBAL":
          attribute, module = _expect(stack.pop(), str), _expect(stack.pop(), str)
          value = f"{module} {attribute}"
        if value not in _GLOBALS:
          raise Rejected(f"it refers to {value.replace(' ', '.')[:100]}, which is not needed for tensors")
        stack.append(_Global(value))
      elif name == "REDUCE":
        arguments = _expect(stack.pop(), tuple)
        stack.append(_describe(_expect(stack.pop(), _Global).name, arguments))
      elif name == "BINPERSID":
        storage = _storage(stack.pop())
        if storages is not None and storages.setdefault(storage.key, storage) != storage:
          raise Rejected("two storages with one key")
        stack.append(storage)
      elif name == "BUILD":
        stack.pop()  # attributes of an OrderedDict: versions of modules
        _expect(stack[-1], dict)
      else:
        raise Rejected(f"the operation {name}")
  except (IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
    raise Rejected(f"a damaged pickle ({str(error)[:100]})") from None
  raise Rejected("a damaged pickle")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}
_LITERALS = {
  "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING",
}  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Limited:
  """A file that ends after `_MAX_PICKLE` bytes, whatever lengths a pickle names."""

  def __init__(self, file: IO[bytes]):
    self._file, self._left = file, _MAX_PICKLE

  def read(self, size: int) -> bytes:
    return self._take(self._file.read(min(size, self._left)))

  def readline(self) -> bytes:
    return self._take(self._file.readline(self._left))

  def tell(self) -> int:
    return self._file.tell()

  def _take(self, content: bytes) -> bytes:
    self._left -= len(content)
    return content


def _expect(value: Any, kind: type) -> Any:
  if not isinstance(value, kind):
    raise Rejected("a damaged pickle")
  return value


def _key(value: Any) -> str | int:
  if type(value) not in (str, int):
    raise Rejected("a key that is neither text nor a number")
  return value


def _describe(function: str, arguments: tuple) -> Any:
  """Returns the description of what torch would build by calling a function."""
  name = function.split()[1]
  if name == "OrderedDict" and len(arguments) <= 1:
    pairs = _expect(arguments[0], list) if arguments else []  # as Python 2 wrote it
    return {_key(key): value for key, value in (_expect(pair, list | tuple) for pair in pairs)}
  if name == "Size" and len(arguments) == 1:
    return _expect(arguments[0], tuple)
  if name == "_rebuild_parameter" and arguments:
    return _expect(arguments[0], _Tensor)
  if name in _REBUILD and len(arguments) >= 4:
    storage, offset, shape, strides = arguments[:4]
    return _Tensor(_expect(storage, _Storage), offset, _expect(shape, tuple), _expect(strides, tuple))
  raise Rejected(f"unexpected use of {function.replace(' ', '.')}")


def _storage(identifier: Any) -> _Storage:
  """Returns the storage of ("storage", class, key, device, size), in old files followed by a view, which is None."""
  if not isinstance(identifier, tuple) or len(identifier) not in (5, 6) or identifier[0] != "storage":
    raise Rejected("an unknown kind of storage")
  kind, key, _, size = identifier[1:5]
  kind = _expect(kind, _Global).name.split()[1]
  if kind not in _STORAGES or identifier[5:] not in ((), (None,)):
    raise Rejected("an unknown kind of storage")
  if type(key) is not str or type(size) is not int or not 0 <= size < 2**48:
    raise Rejected("a storage with an invalid name or size")
  return _Storage(kind, key, size)
