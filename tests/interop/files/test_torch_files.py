"""pytorch_model.bin without torch: both formats of torch.save; hostile files are rejected."""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from t5like.errors import UserError
from t5like.interop import huggingface
from t5like.interop.torch_files import TorchFile

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
TORCH = GOLDEN / "torch"
FILES = ("tensors.zip.bin", "tensors.old.bin")


@pytest.mark.parametrize("name", FILES)
def test_tensors_have_the_bits_that_torch_wrote(name):
  found, expected = TorchFile(TORCH / name), np.load(TORCH / "expected.npz")
  assert sorted(found.keys()) == sorted(expected)
  for tensor, value in expected.items():
    read = found.get_tensor(tensor)
    if tensor == "brain":
      assert read.dtype == ml_dtypes.bfloat16
      read = read.view(np.uint16)
    assert read.dtype == value.dtype
    np.testing.assert_array_equal(read, value)
  assert [found.dtype(tensor) for tensor in ("plain", "half", "brain", "ids")] == ["F32", "F16", "BF16", "I64"]


def test_an_upload_of_2019_loads_like_the_same_model_of_today():
  """The old stream format, gamma and beta, and a config.json without model_type and architectures."""
  new = huggingface.load(GOLDEN / "heads" / "BertForNextSentencePrediction")
  old = huggingface.load(TORCH / "bert")
  assert old.model == new.model and old.model.config.nsp_head and old.model_type == "bert"
  assert old.report.unexpected == [] and any(name.endswith(".gamma") for name in old.report.used)
  jax.tree.map(np.testing.assert_array_equal, old.params, new.params)


def test_shards_of_both_formats(tmp_path):
  """Shards of torch.save, in a folder with an index; safetensors are preferred where a folder has both."""
  shutil.copy(GOLDEN / "bert" / "config.json", tmp_path)
  tensors = load_file(GOLDEN / "bert" / "model.safetensors")
  shards = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(tensors)}
  for shard in set(shards.values()):
    write_zip(tmp_path / shard, {name: tensors[name] for name in tensors if shards[name] == shard})
  index = tmp_path / "pytorch_model.bin.index.json"
  index.write_text(json.dumps({"weight_map": shards}))
  expected = huggingface.load(GOLDEN / "bert")
  jax.tree.map(np.testing.assert_array_equal, huggingface.load(tmp_path).params, expected.params)
  for other in ("model.safetensors", "../x.bin"):
    index.write_text(json.dumps({"weight_map": {"a": other}}))
    with pytest.raises(UserError, match="index.json refers to"):
      huggingface.load(tmp_path)
  shutil.copy(GOLDEN / "bert" / "model.safetensors", tmp_path)
  jax.tree.map(np.testing.assert_array_equal, huggingface.load(tmp_path).params, expected.params)


@pytest.mark.parametrize(
  "case, architectures, kind",
  [
    ("gpt2", ["GPT2LMHeadModel"], "gpt2"),
    ("gpt1", ["OpenAIGPTLMHeadModel"], "openai-gpt"),
    ("t5_1_1", ["T5WithLMHeadModel"], "t5"),
    ("mt5", ["MT5ForConditionalGeneration"], "mt5"),
    ("bert", ["BertForMaskedLM"], "bert"),
    ("gpt2", None, "gpt2"),
    ("gpt1", None, "openai-gpt"),
    ("t5_1_1", None, "t5"),
    ("bert", None, "bert"),
    ("bert", ["XLMWithLMHeadModel"], None),
    ("gpt2", ["<script>"], None),
    ("bert", [7], None),
  ],
)
def test_config_without_model_type(case, architectures, kind, tmp_path):
  shutil.copy(GOLDEN / case / "model.safetensors", tmp_path)
  fields = json.loads((GOLDEN / case / "config.json").read_text())
  kept = {k: v for k, v in fields.items() if k not in ("model_type", "architectures")}
  kept |= {} if architectures is None else {"architectures": architectures}
  (tmp_path / "config.json").write_text(json.dumps(kept))
  if kind is None:
    with pytest.raises(UserError, match="unsupported model_type ''"):
      huggingface.load(tmp_path)
  else:
    assert huggingface.load(tmp_path).model_type == kind


def test_a_roberta_config_is_not_taken_for_bert(tmp_path):
  fields = json.loads((TORCH / "bert" / "config.json").read_text()) | {"type_vocab_size": 1}
  shutil.copy(TORCH / "bert" / "pytorch_model.bin", tmp_path)
  (tmp_path / "config.json").write_text(json.dumps(fields))
  with pytest.raises(UserError, match="tensors of the model are missing"):  # RoBERTa's, whose names have another prefix
    huggingface.load(tmp_path)


# Hostile and damaged files.


class Call:
  """An object whose pickle calls a function."""

  def __init__(self, function, *arguments):
    self.function, self.arguments = function, arguments

  def __reduce__(self):
    return self.function, self.arguments


def write_pickle(path: Path, content: bytes, data: dict[str, bytes] | None = None, method=zipfile.ZIP_STORED) -> None:
  with zipfile.ZipFile(path, "w", method) as file:
    file.writestr("archive/data.pkl", content)
    for key, values in (data or {}).items():
      file.writestr(f"archive/data/{key}", values)


def text(value: str) -> bytes:
  return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
  coded = value.to_bytes(9, "little", signed=True)
  return b"\x8a" + bytes([len(coded)]) + coded


def numbers(values) -> bytes:
  return b"(" + b"".join(map(number, values)) + b"t"


def tensor(key: str, size: int, shape, strides, offset: int = 0, kind: str = "FloatStorage") -> bytes:
  """Returns the operations that describe a tensor, as torch writes them."""
  storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number(size) + b"tQ"
  arguments = b"(" + storage + number(offset) + numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)R"
  return b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"tR"


def state(tensors: dict[str, bytes]) -> bytes:
  return b"\x80\x02}" + b"".join(text(name) + ops + b"s" for name, ops in tensors.items()) + b"."


def write_zip(path: Path, tensors: dict[str, np.ndarray]) -> None:
  operations = {
    name: tensor(str(i), x.size, x.shape, [s // x.itemsize for s in x.strides])
    for i, (name, x) in enumerate(tensors.items())
  }
  write_pickle(path, state(operations), {str(i): x.tobytes() for i, x in enumerate(tensors.values())})


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("format", ["zip", "old"])
def test_nothing_is_executed(tmp_path, protocol, format):
  witness, path = tmp_path / "executed", tmp_path / "pytorch_model.bin"
  for call in (
    Call(os.system, f"touch {witness}"),
    Call(eval, f"open({str(witness)!r}, 'w')"),
    Call(Path.touch, witness),
    Call(getattr, witness, "touch"),
  ):
    content = pickle.dumps({"weight": call}, protocol)
    if format == "zip":
      write_pickle(path, content)
    else:
      header = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
      path.write_bytes(b"".join(header) + content)
    with pytest.raises(UserError, match="without executing it") as error:
      TorchFile(path)
    assert not witness.exists() and "weights_only=True" in str(error.value)
  if protocol >= 2:
    assert "refers to" in str(error.value)  # the function is named
  pickle.loads(content)  # the example is one that would run


REFUSED = {
  "operation": b"\x80\x02}X\x01\x00\x00\x00a\x8f.",  # a set
  "instance": b"\x80\x02(ios\nsystem\n.",
  "another function of torch": b"\x80\x02ctorch\nload\n.",
  "another function of its module": b"\x80\x02ctorch._utils\n_import_dotted_name\n.",
  "similar name": b"\x80\x02ctorch.evil\nFloatStorage\n.",
  "attribute": b"\x80\x02ccollections\nOrderedDict.__init__\n.",
  "call of a tensor": state({"a": tensor("0", 1, [1], [1]) + b")R"}),
  "call of a storage class": state({"a": b"ctorch\nFloatStorage\n)R"}),
  "state of a tensor": state({"a": tensor("0", 1, [1], [1]) + b"}b"}),
  "no dictionary": b"\x80\x02]K\x01a.",
  "no tensors": b"\x80\x02}.",
  "only the start": b"\x80\x02}X\x01\x00\x00\x00a",
  "empty": b"",
  "no value": b"\x80\x02.",
  "unhashable key": b"\x80\x02}]K\x01s.",
  "deep key": b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"K\x01s.",
  "huge text": b"\x80\x02X\xff\xff\xff\x7fa.",
  "huge memo": b"\x80\x02}r\xff\xff\xff\x7fh\x01.",
  "missing memo": b"\x80\x02h\x07.",
  "no mark": b"\x80\x02K\x01u.",
  "odd items": b"\x80\x02}(K\x01u.",
  "short tuple": b"\x80\x02\x87.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_pickles_that_are_not_tensors_are_rejected(tmp_path, name):
  write_pickle(tmp_path / "a.bin", REFUSED[name], {"0": b"\0" * 4})
  with pytest.raises(UserError, match="cannot be read without executing it, or is damaged"):
    TorchFile(tmp_path / "a.bin")


@pytest.mark.parametrize(
  "described",
  [
    dict(size=4, shape=[10**9], strides=[1]),
    dict(size=4, shape=[10**6, 10**6], strides=[0, 0]),  # a terabyte from four numbers
    dict(size=4, shape=[4], strides=[1], offset=1),
    dict(size=4, shape=[2, 2], strides=[4, 1]),
    dict(size=4, shape=[4], strides=[-1]),
    dict(size=4, shape=[-4], strides=[1]),
    dict(size=4, shape=[4], strides=[1], offset=-2),
    dict(size=4, shape=[2, 2], strides=[1]),
    dict(size=4, shape=[1] * 70, strides=[1] * 70),
    dict(size=-4, shape=[4], strides=[1]),
    dict(size=10**60, shape=[4], strides=[1]),
    dict(size=4, shape=[4], strides=[1], kind="Size"),
  ],
)
def test_sizes_are_checked_before_anything_is_allocated(tmp_path, described):
  size = described["size"]
  if abs(size) < 2**60:
    content = state({"a": tensor("0", **described)})
    write_pickle(tmp_path / "a.bin", content, {"0": np.arange(4, dtype=np.float32).tobytes()})
  else:
    shape = numbers(described["shape"])
    huge = b"\x8a\x20" + size.to_bytes(32, "little")
    content = state({"a": tensor("0", 7, described["shape"], [1])}).replace(number(7), huge)
    assert huge in content and shape in content
    write_pickle(tmp_path / "a.bin", content)
  with pytest.raises(UserError, match="cannot be read"):
    TorchFile(tmp_path / "a.bin")


@pytest.mark.parametrize("key, claimed", [("0", 100), ("1", 4), ("../0", 4), ("0", 3)])
def test_data_that_does_not_match_its_description(tmp_path, key, claimed):
  write_pickle(tmp_path / "a.bin", state({"a": tensor(key, claimed, [claimed], [1])}), {"0": b"\0" * 16})
  with pytest.raises(UserError, match="cannot be read"):
    TorchFile(tmp_path / "a.bin").get_tensor("a")


def test_compressed_archives_and_damaged_data_are_rejected(tmp_path):
  content = state({"a": tensor("0", 4_000_000, [4_000_000], [1])})
  write_pickle(tmp_path / "a.bin", content, {"0": bytes(16_000_000)}, zipfile.ZIP_DEFLATED)
  with pytest.raises(UserError, match="compressed"):
    TorchFile(tmp_path / "a.bin")
  write_pickle(tmp_path / "a.bin", state({"a": tensor("0", 4, [4], [1])}), {"0": b"0123456789abcdef"})
  damaged = (tmp_path / "a.bin").read_bytes().replace(b"0123456789abcdef", b"x123456789abcdef")
  (tmp_path / "a.bin").write_bytes(damaged)
  with pytest.raises(UserError, match="CRC"):
    TorchFile(tmp_path / "a.bin").get_tensor("a")


@pytest.mark.parametrize("name", FILES)
def test_truncated_files_are_rejected(tmp_path, name):
  content = (TORCH / name).read_bytes()
  for size in {*range(0, len(content), 97), len(content) - 1, len(content) - 5}:
    (tmp_path / "a.bin").write_bytes(content[:size])
    with pytest.raises(UserError, match="cannot be read"):
      TorchFile(tmp_path / "a.bin")


def test_damaged_bytes_never_escape_as_other_errors(tmp_path):
  rng = np.random.default_rng(0)
  for name in FILES:
    content = (TORCH / name).read_bytes()
    for _ in range(150):
      changed = bytearray(content)
      for at in rng.integers(0, len(content), 3):
        changed[at] = rng.integers(0, 256)
      (tmp_path / "a.bin").write_bytes(changed)
      try:
        file = TorchFile(tmp_path / "a.bin")
        for tensor_name in file.keys():
          file.get_tensor(tensor_name)
      except UserError:
        pass


def test_a_folder_with_a_hostile_file_is_rejected_before_anything_is_converted(tmp_path):
  shutil.copy(TORCH / "bert" / "config.json", tmp_path)
  write_pickle(tmp_path / "pytorch_model.bin", pickle.dumps({"a": Call(os.system, "true")}, 2))
  with pytest.raises(UserError, match="pytorch_model.bin cannot be read"):
    huggingface.load(tmp_path)


def test_other_archives(tmp_path):
  with zipfile.ZipFile(tmp_path / "a.bin", "w") as file:
    file.writestr("word/document.xml", "")
  with pytest.raises(UserError, match="without a data.pkl"):
    TorchFile(tmp_path / "a.bin")
  (tmp_path / "b.bin").write_bytes(io.BytesIO(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n").read())
  with pytest.raises(UserError, match="neither a zip archive nor a pickle"):
    TorchFile(tmp_path / "b.bin")
