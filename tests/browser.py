"""Headless Chromium, driven over the DevTools protocol through a pipe: no package, no port, no network."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Chromium reads commands from descriptor 3 and writes answers to 4.
_WITH_PIPES = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
  return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


class Browser:
  """One page. `requests` are the URLs it fetched, `errors` its log entries and exceptions."""

  def __init__(self, timeout: float = 30.0):
    self.requests: list[str] = []
    self.errors: list[str] = []
    self._timeout, self._number, self._rest = timeout, 0, b""
    self._loaded = False
    self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    from_us, self._to_browser = os.pipe()
    self._from_browser, to_us = os.pipe()

    flags = [
      "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
      "--disable-dev-shm-usage", "--disable-background-networking", f"--user-data-dir={self._profile.name}",
    ]  # fmt: skip
    self._process = subprocess.Popen(
      [sys.executable, "-c", _WITH_PIPES, str(from_us), str(to_us), find_chromium(), *flags, "about:blank"],
      pass_fds=(from_us, to_us),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(from_us)
    os.close(to_us)
    os.set_blocking(self._from_browser, False)
    try:
      self._attach()
    except BaseException:
      self.__exit__()
      raise

  def _attach(self) -> None:
    target = self._command("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
    attached = self._command("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)
    self._session = attached["sessionId"]
    for domain in ("Page", "Network", "Log", "Runtime"):
      self.command(f"{domain}.enable")

  def __enter__(self) -> "Browser":
    return self

  def __exit__(self, *_: object) -> None:
    os.close(self._to_browser)
    self._process.terminate()
    self._process.wait(timeout=self._timeout)
    os.close(self._from_browser)
    self._profile.cleanup()

  def show(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
    """Opens a file on a screen of this size (a phone below 600 pixels) and waits until it is loaded."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    self.command("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    self.command("Emulation.setEmulatedMedia", {"features": [scheme]})
    self._loaded = False
    self.command("Page.navigate", {"url": page.absolute().as_uri()})
    end = time.monotonic() + self._timeout
    while not self._loaded:
      self._receive(end)

  def evaluate(self, expression: str) -> Any:
    answer = self.command("Runtime.evaluate", {"expression": expression, "returnByValue": True})
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    return answer["result"].get("value")

  def screenshot(self, file: Path, full_page: bool = False) -> None:
    options = {"format": "png", "captureBeyondViewport": full_page}
    if full_page:
      size = self.command("Page.getLayoutMetrics")["cssContentSize"]
      options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
    file.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", options)["data"]))

  def command(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return self._command(method, parameters or {}, self._session)

  def _command(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
    self._number += 1
    message = {"id": self._number, "method": method, "params": parameters}
    if session:
      message["sessionId"] = session
    os.write(self._to_browser, json.dumps(message).encode() + b"\0")
    end = time.monotonic() + self._timeout
    while True:
      answer = self._receive(end)
      if answer.get("id") == self._number:
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

  def _receive(self, end: float) -> dict[str, Any]:
    """Returns the next message and records events."""
    while b"\0" not in self._rest:
      assert time.monotonic() < end, "the browser does not respond"
      try:
        self._rest += os.read(self._from_browser, 1 << 20)
      except BlockingIOError:
        time.sleep(0.01)
    line, _, self._rest = self._rest.partition(b"\0")
    message = json.loads(line)
    match message.get("method"):
      case "Page.loadEventFired":
        self._loaded = True
      case "Network.requestWillBeSent":
        self.requests.append(message["params"]["request"]["url"])
      case "Log.entryAdded":
        self.errors.append(message["params"]["entry"]["text"])
      case "Runtime.exceptionThrown":
        self.errors.append(str(message["params"]))
    return message
