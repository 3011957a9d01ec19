"""Google Cloud Storage's JSON API over HTTP, as much of it as gcsfs, TensorStore and t5like use.

Real sockets and real preconditions (`ifGenerationMatch`), objects in memory. Where there is a token, every request
needs it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import itertools
import json
import os
import re
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import google_crc32c  # gcsfs brings it

# Before gcsfs is imported: it would ask for a bucket's layout over gRPC, at Google.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

_OBJECTS = re.compile(r"^(?:/upload|/download)?/storage/v1/b/([^/]+)/o$")
_OBJECT = re.compile(r"^(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)$")
_COPY = re.compile(r"^/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)$")
_MOVE = re.compile(r"^/storage/v1/b/([^/]+)/o/([^/]+)/moveTo/o/([^/]+)$")
_BUCKET = re.compile(r"^/storage/v1/b/([^/]+)$")


def now() -> str:
  return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Failure(Exception):
  def __init__(self, status: int, message: str):
    super().__init__(message)
    self.status = status


class Store:
  """Buckets of objects, each a description and its bytes."""

  def __init__(self, buckets, token: str | None = None):
    self.buckets = {name: {} for name in buckets}
    self.token = token
    self.lock = threading.RLock()
    self.uploads: dict[str, tuple[str, str, dict, bytearray]] = {}
    self._generations = itertools.count(int(time.time() * 1e6))
    self.requests: list[str] = []
    self.refused: str | None = None  # objects with this in their name cannot be written
    self.failing_share = 0.0  # of requests for content
    self.delay = 0.0  # seconds before content is sent
    self._reads = itertools.count(1)

  def bucket(self, name: str) -> dict:
    if name not in self.buckets:
      raise Failure(404, "The specified bucket does not exist.")
    return self.buckets[name]

  def get(self, bucket: str, name: str, query: dict) -> tuple[dict, bytes]:
    found = self.bucket(bucket).get(name)
    self._check(found, query)
    if found is None:
      raise Failure(404, f"No such object: {bucket}/{name}")
    if "ifGenerationNotMatch" in query and query["ifGenerationNotMatch"] == found[0]["generation"]:
      raise Failure(304, "")
    return found

  def wait_or_fail(self) -> None:
    """Behaves as a slow or overloaded store."""
    time.sleep(self.delay)
    if self.failing_share and next(self._reads) % round(1 / self.failing_share) == 0:
      raise Failure(503, "We encountered an internal error. Please try again.")

  def put(self, bucket: str, name: str, data: bytes, query: dict) -> dict:
    if self.refused and self.refused in name:
      raise Failure(403, "The caller does not have storage.objects.create access.")
    with self.lock:
      self._check(self.bucket(bucket).get(name), query)
      about = {
        "kind": "storage#object", "name": name, "bucket": bucket, "size": str(len(data)), "updated": now(),
        "timeCreated": now(), "generation": str(next(self._generations)), "metageneration": "1",
        "storageClass": "STANDARD",
        "crc32c": base64.b64encode(google_crc32c.Checksum(data).digest()).decode(),
      }  # fmt: skip
      self.buckets[bucket][name] = (about, data)
      return about

  def delete(self, bucket: str, name: str, query: dict) -> None:
    with self.lock:
      self.get(bucket, name, query)
      del self.buckets[bucket][name]

  def list(self, bucket: str, query: dict) -> dict:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    with self.lock:
      names = sorted(name for name in self.bucket(bucket) if name.startswith(prefix))
      names = [name for name in names if query.get("startOffset", "") <= name]
      if query.get("endOffset"):
        names = [name for name in names if name < query["endOffset"]]
      items, prefixes = [], []
      for name in names:
        head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        if found:
          prefixes.append(prefix + head + delimiter)
        else:
          items.append(self.buckets[bucket][name][0])
    answer = {"kind": "storage#objects", "items": items, "prefixes": list(dict.fromkeys(prefixes))}
    start, most = int(query.get("pageToken", 0)), int(query.get("maxResults", 1000))
    answer["items"] = items[start : start + most]
    if len(items) > start + most:
      answer["nextPageToken"] = str(start + most)
    return answer

  def _check(self, found, query: dict) -> None:
    wanted = query.get("ifGenerationMatch")
    if wanted is not None and wanted != (found[0]["generation"] if found else "0"):
      raise Failure(412, "At least one of the pre-conditions you specified did not hold.")


class Handler(BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True  # or every answer waits 40 ms for the acknowledgement of its header
  store: Store

  def log_message(self, *unused) -> None:
    pass

  def _serve(self) -> None:
    body = self._body()
    url = urllib.parse.urlsplit(self.path)
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    self.store.requests.append(f"{self.command} {self.path}")
    try:
      if self.store.token and self.headers.get("Authorization") != f"Bearer {self.store.token}":
        raise Failure(401, "Anonymous caller does not have storage.objects.list access to the bucket.")
      self._answer(url.path, query, body)
    except Failure as failure:
      error = {"error": {"code": failure.status, "message": str(failure)}}
      self._send(failure.status, b"" if failure.status == 304 else json.dumps(error).encode())

  do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

  def _answer(self, path: str, query: dict, body: bytes) -> None:
    store, unquote = self.store, urllib.parse.unquote
    if found := _COPY.match(path):
      bucket, name, to, target = map(unquote, found.groups())
      about = store.put(to, target, store.get(bucket, name, {})[1], query)
      self._json({"kind": "storage#rewriteResponse", "done": True, "resource": about})
    elif found := _MOVE.match(path):
      bucket, name, target = map(unquote, found.groups())
      about = store.put(bucket, target, store.get(bucket, name, {})[1], query)
      store.delete(bucket, name, {})
      self._json(about)
    elif (found := _OBJECTS.match(path)) and self.command == "GET":
      self._json(store.list(found[1], query))
    elif found:
      self._upload(found[1], query, body)
    elif found := _OBJECT.match(path):
      self._object(unquote(found[1]), unquote(found[2]), query)
    elif found := _BUCKET.match(path):
      store.bucket(found[1])
      self._json({"kind": "storage#bucket", "name": found[1], "id": found[1], "location": "US"})
    else:
      raise Failure(404, f"Not Found: {path}")

  def _object(self, bucket: str, name: str, query: dict) -> None:
    if self.command == "DELETE":
      self.store.delete(bucket, name, query)
      self._send(204, b"")
      return
    about, data = self.store.get(bucket, name, query)
    if self.command == "PATCH":
      about["updated"] = now()
    if query.get("alt") != "media":
      self._json(about)
      return
    self.store.wait_or_fail()
    headers = {"x-goog-generation": about["generation"], "x-goog-hash": f"crc32c={about['crc32c']}"}
    headers["x-goog-stored-content-length"] = str(len(data))
    wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
    if not wanted:
      self._send(200, data, **headers)
      return
    start, stop = int(wanted[1]), min(int(wanted[2] or len(data) - 1) + 1, len(data))
    if start >= len(data):
      raise Failure(416, "The requested range cannot be satisfied.")
    self._send(206, data[start:stop], **{**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

  def _upload(self, bucket: str, query: dict, body: bytes) -> None:
    if "upload_id" in query:
      self._resume(query["upload_id"], body)
      return
    self.store.bucket(bucket)
    kind, name = query["uploadType"], query.get("name")
    if kind == "multipart":
      boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1].strip("'").encode()
      _, about, content, _ = body.split(b"--" + boundary)
      end = b"\r\n" if about.endswith(b"\r\n") else b"\n"
      name = name or json.loads(re.split(rb"\r?\n\r?\n", about, maxsplit=1)[1])["name"]
      body = re.split(rb"\r?\n\r?\n", content, maxsplit=1)[1].removesuffix(end)
    if kind == "resumable":
      name = name or json.loads(body)["name"]
      number = str(len(self.store.uploads) + 1)
      self.store.uploads[number] = (bucket, name, query, bytearray())
      address = f"http://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
      self._send(200, b"", Location=address)
      return
    self._json(self.store.put(bucket, name, body, query))

  def _resume(self, number: str, body: bytes) -> None:
    bucket, name, query, data = self.store.uploads[number]
    data += body
    total = self.headers.get("Content-Range", "/*").rpartition("/")[2]
    if total == "*" or len(data) < int(total):
      self._send(308, b"", Range=f"bytes=0-{len(data) - 1}")
      return
    self._json(self.store.put(bucket, name, bytes(data), query))

  def _body(self) -> bytes:
    if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
      parts = []
      while size := int(self.rfile.readline().split(b";")[0], 16):
        parts.append(self.rfile.read(size))
        self.rfile.readline()
      self.rfile.readline()
      return b"".join(parts)
    return self.rfile.read(int(self.headers.get("Content-Length") or 0))

  def _json(self, answer: dict) -> None:
    self._send(200, json.dumps(answer).encode(), **{"Content-Type": "application/json"})

  def _send(self, status: int, content: bytes, **headers: str) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
      self.send_response(status)
      for name, value in headers.items():
        self.send_header(name, value)
      self.send_header("Content-Length", str(len(content)))
      self.end_headers()
      self.wfile.write(content)


class Server(ThreadingHTTPServer):
  daemon_threads = True
  request_queue_size = 128

  def handle_error(self, *unused) -> None:
    """Killed clients reset their connections: that is what tests are about."""


@contextlib.contextmanager
def serving(*buckets: str, token: str | None = None):
  """A server on a free port: its address and its store."""
  store = Store(buckets, token)
  server = Server(("localhost", 0), type("Bound", (Handler,), {"store": store}))
  thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
  thread.start()
  try:
    yield f"http://localhost:{server.server_port}", store
  finally:
    server.shutdown()
    server.server_close()


def environment(address: str, mirror: object) -> dict[str, str]:
  """What makes gcsfs, TensorStore and t5like of a process talk to it."""
  return {
    "STORAGE_EMULATOR_HOST": address,
    "TENSORSTORE_GCS_HTTP_URL": address,
    "GOOGLE_AUTH_TOKEN_FOR_TESTING": "nobody",
    "FSSPEC_GCS": json.dumps({"token": "anon"}),
    "NO_GCE_CHECK": "true",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    "T5LIKE_MIRROR_DIR": str(mirror),
  }


@contextlib.contextmanager
def reached_from_here(monkeypatch, address: str, mirror: object):
  """The same for this process, in which fsspec may be loaded already."""
  import fsspec

  for name, value in environment(address, mirror).items():
    monkeypatch.setenv(name, value)
  monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon", "use_listings_cache": False})
  try:
    yield
  finally:
    fsspec.get_filesystem_class("gcs").clear_instance_cache()
