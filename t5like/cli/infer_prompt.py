"""The interactive prompt of `t5like infer`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from t5like.cli.decoding_options import OPTIONS, TEXTS, method_for, parse_option
from t5like.console import paint
from t5like.decoding.options import decode_settings, options_for, with_defaults
from t5like.errors import InvalidSetting, UserError, nearest
from t5like.inference.jobs import Answer, Generation, Job
from t5like.inference.memory import NotEnoughMemory
from t5like.inference.model import Model
from t5like.inference.rows import RejectedRow, Row
from t5like.inference.running import describe_out_of_memory

_COMMANDS = {"help": "this list", "quit": "exit (or Ctrl-D)"}
_SETTINGS_COMMANDS = {"settings": "show the current settings", "reset": "restore the initial settings"}
_ADAPTER = "adapter"
_POLL = 0.1  # seconds; Ctrl-C is handled between two polls


class InteractivePrompt:
  """Answers lines until `:quit`. Ctrl-C cancels an answer or a line, not the program."""

  def __init__(self, model: Model, build: Callable[[Model], Job], given: Mapping[str, Any]):
    """Takes a function that builds the job for a model, which changes with its adapter."""
    self._model, self._job, self._build = model, build(model), build
    self._initial = dict(given)
    self._given = dict(given)
    self._worker = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    self._row_count = 0

  def run(self) -> int:
    with contextlib.suppress(ImportError):
      import readline  # noqa: F401  (editing and history in `input`)
    print(self._greeting())
    while True:
      try:
        text = self._read()
        if text.strip() == ":quit":
          break
        if text.strip():
          self._respond(text)
      except EOFError:
        print()
        break
      except KeyboardInterrupt:
        print("\ntype :quit to exit, :help for commands")
    self._shut_down()
    return 0

  def _greeting(self) -> str:
    model, step = self._model, self._model.chosen_step
    where = f"{model.folder}" + (f", step {step:,}" if step is not None else "")
    positions = f", {model.positions:,} positions" if model.positions else ""
    lines = [
      f"{model.kind} from {where}",
      f"vocabulary {model.vocabulary_name} ({model.vocabulary.vocab_size:,} ids){positions}",
      self._settings_line(),
      r"Type a text and press Enter; end a line with \ to continue it. :help for commands.",
    ]
    return "\n".join(line for line in lines if line)

  def _settings_line(self) -> str:
    """Returns the settings that apply to the current method."""
    if not isinstance(self._job, Generation):
      return ""
    settings = self._job.settings
    fields = dataclasses.asdict(settings) | {name: list(self._given.get(name, [])) for name in TEXTS}
    shown = options_for(settings.method, {n: v for n, v in fields.items() if n in (*OPTIONS, *TEXTS)})
    if settings.method != "sample":
      shown.pop("seed", None)
    quiet = {"min_length": 0, "repetition_penalty": 1.0, "n_best": 1, **{name: [] for name in TEXTS}}
    return "settings   " + "  ".join(f"{n} {v}" for n, v in shown.items() if quiet.get(n, ...) != v)

  def _read(self) -> str:
    lines = [input("> ")]
    while lines[-1].endswith("\\"):
      lines[-1] = lines[-1][:-1]
      lines.append(input(". "))
    return "\n".join(lines)

  def _respond(self, text: str) -> None:
    try:
      if text.startswith(":"):
        print(self._command(*text[1:].strip().partition(" ")[::2]))
      else:
        self._answer(text)
    except UserError as error:
      command = ":" if isinstance(error, InvalidSetting) else ""
      print(paint(f"error: {command}{error.render()}", "red"))

  def _command(self, name: str, value: str) -> str:
    value = value.strip()
    if name == "help":
      return self._help()
    if name not in self._known():
      raise UserError(f"unknown command :{name}", nearest=nearest(name, self._known()), try_=":help")
    if name == _ADAPTER:
      return self._switch(value)
    if name == "settings":
      return self._settings_line()
    if name == "reset":
      self._change(self._initial)
      return self._settings_line()
    if not value and name not in TEXTS:
      raise UserError(f":{name} needs a value", expected=f":{name} VALUE", does=OPTIONS[name][1])
    self._change(self._changed(name, parse_option(name, value)))
    return self._settings_line()

  def _switch(self, adapter: str) -> str:
    """Uses another adapter of the model; without a name, none."""
    self._model = self._model.use(adapter or None)
    self._job = self._build(self._model)
    if isinstance(self._job, Generation):
      self._change(self._given)
    return f"adapter {adapter} from {self._model.folder}" if adapter else f"no adapter: {self._model.folder}"

  def _known(self) -> list[str]:
    settings = (*_SETTINGS_COMMANDS, *OPTIONS, *TEXTS) if isinstance(self._job, Generation) else ()
    return [*_COMMANDS, *([_ADAPTER] if self._model.adapters else []), *settings]

  def _changed(self, name: str, value: Any) -> dict[str, Any]:
    """Returns the options with one changed; switches to the method that the option belongs to."""
    method = value if name == "method" else method_for(name) or self._job.settings.method
    if name == "n_best" and value > 1 and method == "greedy":
      method = "beam"
    return options_for(method, {**self._given, name: value}) | {"method": method}

  def _change(self, given: Mapping[str, Any]) -> None:
    given = with_defaults(given, self._model.decoding)
    settings, stops = decode_settings(given, self._model.vocabulary, self._model.positions)
    self._job.set_decoding(settings, stops)
    self._given = dict(given)

  def _help(self) -> str:
    entries = {f":{name}": text for name, text in _COMMANDS.items()}
    if self._model.adapters:
      entries[f":{_ADAPTER} NAME"] = f"one of {', '.join(self._model.adapters)}; no name: the base"
    if isinstance(self._job, Generation):
      entries |= {f":{name}": text for name, text in _SETTINGS_COMMANDS.items()}
      entries |= {f":{name} VALUE": text for name, (_, text) in OPTIONS.items()}
      entries |= {f":{name} TEXT": f"{text.partition(';')[0]}; no text: remove it" for name, text in TEXTS.items()}
    width = max(map(len, entries))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in entries.items())

  def _answer(self, text: str) -> None:
    # Samples depend on the row number: the same text typed twice gives different ones.
    row = Row(self._row_count, "your text", text, {})
    self._row_count += 1
    prepared = self._job.prepare([row])[0]
    if isinstance(prepared, RejectedRow):
      raise UserError(prepared.reason)
    started = time.monotonic()
    running = self._worker.submit(self._job.answer, [prepared])
    try:
      while not running.done():
        concurrent.futures.wait([running], timeout=_POLL)
    except KeyboardInterrupt:
      running.cancel()
      print("\n" + paint("(canceled)", "dim"))
      return
    try:
      ((answer, tokens),) = running.result()
    except NotEnoughMemory as problem:
      raise UserError(describe_out_of_memory(prepared, problem), try_="a shorter text") from None
    seconds = time.monotonic() - started
    print(describe_answer(answer))
    print(paint(f"({tokens} {self._job.unit}, {seconds:.1f} s)", "dim"))

  def _shut_down(self) -> None:
    """Ends the process even if a canceled answer is still running: decoding cannot be interrupted."""
    sys.stdout.flush()
    sys.stderr.flush()
    waiting = self._worker.submit(int)
    try:
      waiting.result(timeout=_POLL)
    except concurrent.futures.TimeoutError:
      os._exit(0)
    self._worker.shutdown()


def describe_answer(answer: Answer) -> str:
  """Formats an answer of any job for the terminal."""
  if "outputs" in answer:
    outputs = answer["outputs"]
    if len(outputs) == 1:
      cut = "" if outputs[0]["finished"] else paint(" ... (max_length)", "dim")
      return outputs[0]["text"] + cut
    return "\n".join(f"{n + 1}. {o['text']}   ({o['score']:.2f})" for n, o in enumerate(outputs))
  if "masks" in answer:
    lines = ["   ".join(f"{t['token']} {t['probability']:.1%}" for t in mask) for mask in answer["masks"]]
    return "\n".join([answer["filled"], *lines])
  if "neighbors" in answer:
    return "\n".join(f"{n['similarity']:.3f}  {n['text']}" for n in answer["neighbors"])
  if "choice" in answer:
    return "\n".join(f"{entry['score']:10.2f}  {entry['text']}" for entry in answer["ranking"])
  if "tags" in answer:
    return "  ".join(f"{word}/{tag}" for word, tag in zip(answer["words"], answer["tags"], strict=True))
  if "label" in answer:
    named = answer["probabilities"]
    named = named if isinstance(named, dict) else dict(enumerate(named))
    return "   ".join(f"{label} {p:.1%}" for label, p in sorted(named.items(), key=lambda item: -item[1]))
  if "value" in answer:
    return f"{answer['value']:.4g}"
  if "answer" in answer:
    return f"{answer['answer'] or '(no answer)'}   ({answer['probability']:.1%})"
  vector = answer["embedding"]
  return f"{len(vector)} numbers: " + " ".join(f"{x:.4f}" for x in vector[:8]) + " ..."
