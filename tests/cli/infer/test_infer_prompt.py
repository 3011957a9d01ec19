"""The interactive prompt of `t5like infer`, through a pseudo-terminal."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from infer_models import folder_of, golden, words

from t5like.cli.decoding_options import decode_settings, parse_option
from t5like.errors import UserError
from t5like.vocabularies import load_vocabulary

REPOSITORY = Path(__file__).resolve().parents[3]
T5 = golden("t5_1_1")


class Terminal:
  """A process attached to a pseudo-terminal."""

  def __init__(self, *arguments):
    self._own, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_NUM_CPU_DEVICES": "1", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "t5like", *map(str, arguments)]
    self.process = subprocess.Popen(
      command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    self._unread = ""

  def type(self, line):
    os.write(self._own, line.encode() + b"\n")

  def until(self, *texts, timeout=400.0):
    """Returns the output up to and including one of `texts`."""
    deadline = time.monotonic() + timeout
    while not any(text in self._unread for text in texts):
      ready, _, _ = select.select([self._own], [], [], max(deadline - time.monotonic(), 0))
      assert ready, f"{texts} did not come: {self._unread}"
      try:
        self._unread += os.read(self._own, 65536).decode(errors="replace")
      except OSError:
        raise AssertionError(f"{texts} did not come before the end: {self._unread}") from None
    text = min((text for text in texts if text in self._unread), key=self._unread.index)
    shown, _, self._unread = self._unread.partition(text)
    return re.sub(r"\x1b\[[?0-9;]*[a-z]", "", shown + text).replace("\r", "")

  def interrupt(self, *texts):
    """Sends Ctrl-C until one of `texts` is shown: Python may miss one just before it waits."""
    for _ in range(24):
      os.killpg(self.process.pid, signal.SIGINT)
      with contextlib.suppress(AssertionError):
        return self.until(*texts, timeout=5.0)
    return self.until(*texts, timeout=5.0)

  def ask(self, line):
    """Returns the output for a line, up to the next prompt."""
    self.type(line)
    self.until(line)
    return self.until("\n> ")


@pytest.fixture
def terminal(tmp_path):
  model = folder_of("t5_1_1", tmp_path / "t5", eos=T5["eos"])
  opened = Terminal("infer", f"--model={model}", "--max_length=14")
  yield opened
  if opened.process.poll() is None:
    opened.process.kill()
  opened.process.wait()


def test_an_interactive_session(terminal):
  greeting = terminal.until("> ")
  assert "T5 from" in greeting and "method greedy" in greeting and "max_length 14" in greeting and ":help" in greeting

  row = T5["rows"][0]
  assert words(row["greedy"]) in terminal.ask(words(row["text"]))

  # An error is reported and changes nothing.
  assert "nearest  temperature" in terminal.ask(":temprature 0.7")
  assert "at least 0 (all tokens)" in terminal.ask(":top_k -2")
  assert "an integer" in terminal.ask(":top_k many")
  assert "method greedy" in terminal.ask(":settings")

  shown = terminal.ask(":temperature 0.7")
  assert "method sample" in shown and "temperature 0.7" in shown and "seed 0" in shown
  assert "method beam" in terminal.ask(":beams 3") and "temperature" not in terminal.ask(":settings")
  assert ":repetition_penalty VALUE" in terminal.ask(":help")
  assert "method greedy" in terminal.ask(":reset")

  # Ctrl-C cancels a line or an answer, not the program.
  terminal.interrupt("type :quit")
  terminal.until("\n> ")
  terminal.ask(":max_length 200000")
  shown = ""
  while "(canceled)" not in shown:  # pressed too early, it cancels the line
    terminal.type(words(row["text"]))
    terminal.until(words(row["text"]))
    time.sleep(0.5)
    shown = terminal.interrupt("(canceled)", "type :quit")
    terminal.until("\n> ")
  assert "max_length 14" in terminal.ask(":reset")
  terminal.type(":quit")
  assert terminal.process.wait(timeout=400) == 0


def test_options_imply_their_method():
  vocabulary = load_vocabulary("byte")
  assert decode_settings({}, vocabulary)[0].method == "greedy"
  assert decode_settings({"top_p": 0.9}, vocabulary)[0].method == "sample"
  assert decode_settings({"length_penalty": 0.0}, vocabulary)[0].beams == 4
  assert decode_settings({}, vocabulary, positions=20)[0].max_length == 10
  settings, stops = decode_settings({"stop": ["a\\n"]}, vocabulary)
  assert stops == ("a\n",) and settings.stop_sequences == ((ord("a") + 3, ord("\n") + 3),)
  assert parse_option("top_p", "0.5") == 0.5
  for given in ({"method": "greedy", "top_k": 3}, {"seed": -1}, {"temperature": 0.0}, {"method": "best"}):
    with pytest.raises(UserError, match="is invalid"):
      decode_settings(given, vocabulary)
