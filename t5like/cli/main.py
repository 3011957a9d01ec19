"""The `t5like` command line: runs a command and prints errors as messages.

Imports nothing heavy, so that help is instant; each command imports what it needs when it runs. A command is a module
or package of this folder with `configure(parser)` and `run(args)`.
"""

import argparse
import importlib
import importlib.metadata
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import t5like
from t5like.errors import ERROR_FILE, RunError, UserError, command_line, nearest

COMMANDS = {
  "train": "pre-train or fine-tune a model from gin files",
  "eval": "score checkpoints by decoding, ranking or loss; follow a run; compare two",
  "infer": "generate text with a model: from files, tasks, or an interactive prompt",
  "cache": "tokenize a seqio task once into a token cache",
  "tasks": "list, show, check and prepare the registered tasks",
  "plan": "forecast the memory, time and cost of a run on a machine",
  "bench": "measure speed on this machine",
  "ablate": "reproduce the ablation tables of the T5 paper",
  "convert": "import or export Hugging Face and T5X checkpoints; translate T5X gin files",
}

INTERRUPTED = 130  # the status of Ctrl-C in a shell
_DEPARTURE_SECONDS = 10.0  # for hosts that fail alike to end together


class _Parser(argparse.ArgumentParser):
  """argparse that suggests the nearest valid option for a misspelled one."""

  def error(self, message: str):
    unknown = message.removeprefix("unrecognized arguments: ").split()
    options = [o for action in self._actions for o in action.option_strings]
    name, _, value = unknown[0].partition("=") if unknown else ("", "", "")
    if "--gin_file" in options and (macro := _macro(name)):
      raise UserError(message, try_=f"--gin.{macro}={value or 'VALUE'}")
    raise UserError(message, nearest=nearest(name, options), try_=f"{self.prog} --help")


def _macro(option: str) -> str:
  """Returns the macro of shipped gin files that has the name of an option: BATCH_SIZE for --batch_size."""
  from t5like.configuration.checks import shipped_macros

  name = option.removeprefix("--").replace("-", "_").upper()
  return name if option.startswith("--") and name in shipped_macros() else ""


def help_text() -> str:
  width = max(map(len, COMMANDS))
  return "\n".join(
    [
      f"t5like {t5like.__version__}: pre-train and fine-tune BERT-, GPT- and T5-style models in JAX.",
      "",
      "usage: t5like COMMAND [options]     t5like COMMAND --help, t5like --version",
      "",
      *(f"  {command:<{width}}  {summary}" for command, summary in COMMANDS.items()),
    ]
  )


def version_lines() -> Iterator[str]:
  """Yields the versions of t5like, jax and flax, then the devices of this host if jax finds any."""
  yield f"t5like {t5like.__version__}"
  for package in ("jax", "flax"):
    try:
      yield f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
      yield f"{package} not installed"
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves the GPU's memory to running jobs
  try:
    import jax

    devices = jax.local_devices()
  except (ImportError, RuntimeError):
    return
  yield f"device {len(devices)} x {devices[0].device_kind} ({devices[0].platform})"


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
  """Separates `--gin.NAME=VALUE` (or `--gin.NAME VALUE`) from argv; returns (rest, overrides)."""
  rest, overrides = [], []
  pending = iter(argv)
  for argument in pending:
    if not argument.startswith("--gin."):
      rest.append(argument)
      continue
    name, equals, value = argument.removeprefix("--gin.").partition("=")
    if not equals:
      value = next(pending, None)
    if not name or value is None or (not equals and value.startswith("--")):
      raise UserError(f"{argument} has no value", expected="--gin.NAME=VALUE")
    overrides.append((name, value))
  return rest, overrides


def run_command(command: str, argv: Sequence[str]) -> int:
  sys.path.append(os.getcwd())  # for the user's task modules; last, so that it shadows nothing
  module = importlib.import_module(f"t5like.cli.{command}")
  parser = _Parser(
    prog=f"t5like {command}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--verbose", action="store_true", help="show the traceback of an error")
  module.configure(parser)
  rest, overrides = split_overrides(argv)
  args = parser.parse_args(rest)
  args.gin_overrides, args.argv = overrides, [command, *argv]
  if overrides and not hasattr(args, "gin_file"):
    raise UserError(f"t5like {command} takes no --gin options", given=", ".join(f"--gin.{n}" for n, _ in overrides))
  return module.run(args)


@command_line()
def main(argv: Sequence[str] | None = None) -> int:
  argv = list(sys.argv[1:] if argv is None else argv)
  error_file = os.environ.pop(ERROR_FILE, None)  # not for processes that this one starts
  if not argv or argv[0] in ("-h", "--help", "help"):
    print(help_text())
    return 0
  if argv[0] == "--version":
    for line in version_lines():
      print(line, flush=True)  # a host of a pod may wait for the others before it finds its devices
    return 0
  try:
    if argv[0] not in COMMANDS:
      raise UserError(
        f"unknown command: {argv[0]}",
        nearest=nearest(argv[0], COMMANDS),
        known=", ".join(COMMANDS),
        try_="t5like --help",
      )
    return run_command(argv[0], argv[1:])
  except UserError as error:
    if "--verbose" in argv:
      traceback.print_exc()
    if error_file:
      Path(error_file).write_text(error.render(), encoding="utf-8")
    else:
      print(f"error: {error.render()}", file=sys.stderr)
    if _is_multi_process():
      _exit_within(_DEPARTURE_SECONDS, error.status)
    return error.status
  except BrokenPipeError:  # `t5like ... | head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    return INTERRUPTED
  except Exception as error:
    if not _is_multi_process():
      raise
    # Python would wait half a minute for the other hosts, which fail without this one.
    lost = _lost_host(error)
    if lost is None or "--verbose" in argv:
      traceback.print_exc()
    if lost is not None:
      print(f"error: {lost.render()}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _exit_within(seconds: float, status: int) -> None:
  """Ends this process: at its exit, JAX would wait for hosts that are in a step which needs this one."""
  timer = threading.Timer(seconds, os._exit, [status])
  timer.daemon = True
  timer.start()


def _is_multi_process() -> bool:
  jax = sys.modules.get("jax")  # not imported: no cluster was joined
  return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def _lost_host(error: Exception) -> RunError | None:
  """Returns the message for an error of JAX that only means that another host has ended; None for other errors."""
  text = str(error).strip().split("\n")[0]
  if type(error).__name__ != "JaxRuntimeError" or not re.search(r"Gloo [\w -]+ failed|[Cc]oordination service", text):
    return None
  return RunError(
    "the connection to another host is lost: it has ended, or cannot be reached",
    because=text,
    see="the logs of the other hosts: the first error is the cause",
    try_="the same command on all hosts, which resumes from the last checkpoint",
  )
