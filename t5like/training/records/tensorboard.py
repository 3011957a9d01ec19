"""TensorBoard event files without TensorFlow.

An event file is a sequence of TFRecords, each a serialized `Event` protocol buffer. A scalar needs five of its fields,
encoded here by hand.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from t5like.files import storage

_CRC32C_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected


def _crc_table() -> list[int]:
  table = []
  for byte in range(256):
    for _ in range(8):
      byte = (byte >> 1) ^ (_CRC32C_POLYNOMIAL if byte & 1 else 0)
    table.append(byte)
  return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
  """Returns TFRecord's checksum: CRC-32C, rotated and offset so that checksums of checksums stay useful."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  crc ^= 0xFFFFFFFF
  return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
  out = bytearray()
  while number > 0x7F:
    out.append(number & 0x7F | 0x80)
    number >>= 7
  out.append(number)
  return bytes(out)


def _float(value: float) -> bytes:
  try:
    return struct.pack("<f", value)
  except OverflowError:  # the perplexity of an untrained model may exceed float32
    return struct.pack("<f", math.copysign(math.inf, value))


def _message(field: int, body: bytes) -> bytes:
  return _varint(field << 3 | 2) + _varint(len(body)) + body


def _event(wall_time: float, step: int, rest: bytes) -> bytes:
  return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + rest


def _record(data: bytes) -> bytes:
  length = struct.pack("<Q", len(data))
  return length + _masked_crc(length) + data + _masked_crc(data)


class EventWriter:
  """Appends scalars to an event file.

  After a restart at `first_step`, a session-start event makes TensorBoard drop later steps of earlier files.
  """

  def __init__(self, folder: str | Path, first_step: int = 0):
    now = time.time()
    name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{time.time_ns() % 10**9}"
    self.path = storage.as_path(folder) / name
    self._file = storage.open_append(self.path)  # unbuffered: nothing is lost when the process is killed
    self._append(_event(now, 0, _message(3, b"brain.Event:2")))
    if first_step:
      self._append(_event(now, first_step + 1, _message(7, b"\x08\x01")))  # a session log: START

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    """Writes scalars with the tags `kind/name`."""
    tags = {f"{kind}/{name}".encode(): value for name, value in values.items()}
    summary = b"".join(_message(1, _message(1, tag) + b"\x15" + _float(value)) for tag, value in tags.items())
    self._append(_event(time.time(), step, _message(5, summary)))

  def flush(self) -> None:
    storage.upload_pending(self._file)

  def close(self) -> None:
    self._file.close()

  def _append(self, event: bytes) -> None:
    record = _record(event)
    while record:
      record = record[self._file.write(record) :]
