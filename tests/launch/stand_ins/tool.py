"""The base of the recording stand-ins: checks flags against the real tool's, replays failures and records calls.

The folder T5LIKE_STAND_IN contains `calls.jsonl` (every call), `failures.json` (a list of {"words", "stderr", "status",
"times"}, which apply to calls with all the words) and `refused.txt` (calls that the real tool would reject).
"""

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["T5LIKE_STAND_IN"])
FLAGS = Path(__file__).parents[1] / "flags"


@contextlib.contextmanager
def shared(name: str, default):
  """Opens a JSON file for one process at a time; changes are saved."""
  with open(FOLDER / f"{name}.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    path = FOLDER / name
    value = json.loads(path.read_text()) if path.exists() else default
    before = json.dumps(value)
    yield value
    if json.dumps(value) != before:  # atomically, as this process may be killed
      path.with_suffix(".new").write_text(json.dumps(value))
      path.with_suffix(".new").replace(path)


class Call:
  """A command line, checked against the list of the tool's flags."""

  def __init__(self, tool: str, words: list[str], runs_command: bool = False):
    known = json.loads((FLAGS / f"{tool}.json").read_text())
    names = sorted((n for n in known["commands"] if words[: len(n.split())] == n.split()), key=len)
    if not names:
      self._refuse(words, f"Invalid choice: {' '.join(words[:4])}")
    self.name = names[-1]
    command = known["commands"][self.name]
    allowed = {*known["everywhere"], *command["flags"]}
    takes_value = set(command.get("values", ()))  # flags whose value may be the next word
    self.flags: dict[str, list[str]] = {}
    self.arguments: list[str] = []
    rest = iter(words[len(self.name.split()) :])
    for word in rest:
      if word == "--":
        self.arguments += rest
      elif word.startswith("-") and word != "-":
        flag, separator, value = word.partition("=")
        if flag not in allowed:
          self._refuse(words, f"unrecognized arguments: {flag}")
        self.flags.setdefault(flag, []).append(next(rest) if flag in takes_value and not separator else value)
      elif runs_command:  # the rest are words of that command
        self.arguments += [word, *rest]
      else:
        self.arguments.append(word)
    for choices in command["required"]:
      if not set(choices) & set(self.flags):
        self._refuse(words, f"argument {choices[0]}: Must be specified.")
    fewest, most = command["arguments"]
    if not fewest <= len(self.arguments) <= most:
      self._refuse(words, f"unrecognized arguments: {self.arguments}")
    with open(FOLDER / "calls.jsonl", "a") as record:
      record.write(json.dumps(words) + "\n")
    self._replay_failure(words)

  def flag(self, name: str, default: str = "") -> str:
    return self.flags.get(name, [default])[-1]

  def _refuse(self, words: list[str], why: str) -> None:
    with open(FOLDER / "refused.txt", "a") as refused:
      refused.write(f"{why}: {' '.join(words)}\n")
    sys.exit(f"ERROR: {why}")

  def _replay_failure(self, words: list[str]) -> None:
    with shared("failures.json", []) as failures:
      for failure in failures:
        if failure["times"] and set(failure["words"].split()) <= set(words):
          failure["times"] -= 1
          break
      else:
        return
    print(failure["stderr"], file=sys.stderr)
    sys.exit(failure.get("status", 1))
