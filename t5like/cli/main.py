"""The `t5like` command: finds the verb, runs it, turns mistakes into messages.

Nothing heavy is imported here, so that help answers at once; each verb imports what it needs when
it runs. A verb is a module of this folder with `configure(parser)` and `run(args)`.
"""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import t5like
from t5like.errors import UserError, nearest

VERBS = {
  "train": "pre-train or fine-tune a model from gin files",
  "eval": "score checkpoints by decoding, ranking or loss; follow a run; compare two",
  "infer": "answer text with a model: files, tasks, or at a prompt",
  "cache": "tokenize a seqio task once into a token cache",
  "tasks": "list, show, check and prepare the registered tasks",
  "plan": "what a run would take on a machine: memory, time, money",
  "bench": "measure how fast things are on this machine",
  "ablate": "reproduce the tables of the T5 paper, and compare",
  "convert": "bring checkpoints in from Hugging Face or T5X, or take them out; translate T5X's gin files",
}

BAD_INPUT = UserError.status
INTERRUPTED = 130  # as a shell reports Ctrl-C


class _Parser(argparse.ArgumentParser):
  """argparse that answers a misspelled option with the nearest right one."""

  def error(self, message: str):
    unknown = message.removeprefix("unrecognized arguments: ").split()
    options = [o for action in self._actions for o in action.option_strings]
    close = nearest(unknown[0].split("=")[0], options) if unknown else ""
    raise UserError(message, nearest=close, try_=f"{self.prog} --help")


def help_text() -> str:
  width = max(map(len, VERBS))
  return "\n".join(
    [
      f"t5like {t5like.__version__}: pre-train and fine-tune BERT-, GPT- and T5-style models in JAX.",
      "",
      "usage: t5like VERB [options]        t5like VERB --help tells a verb's own options",
      "",
      *(f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items()),
    ]
  )


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
  """Takes `--gin.NAME=VALUE` (or `--gin.NAME VALUE`) out of argv."""
  rest, overrides = [], []
  pending = iter(argv)
  for argument in pending:
    if not argument.startswith("--gin."):
      rest.append(argument)
      continue
    name, equals, value = argument.removeprefix("--gin.").partition("=")
    if not equals:
      value = next(pending, None)
    if not name or value is None:
      raise UserError(f"{argument} has no value", expected="--gin.NAME=VALUE")
    overrides.append((name, value))
  return rest, overrides


def run_verb(verb: str, argv: Sequence[str]) -> int:
  sys.path.append(os.getcwd())  # for the user's own task modules; last, so that it shadows nothing
  module = importlib.import_module(f"t5like.cli.{verb}")
  parser = _Parser(
    prog=f"t5like {verb}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--verbose", action="store_true", help="show the traceback of an error")
  module.configure(parser)
  rest, overrides = split_overrides(argv)
  args = parser.parse_args(rest)
  args.gin_overrides, args.argv = overrides, [verb, *argv]
  if overrides and not hasattr(args, "gin_file"):
    raise UserError(f"t5like {verb} takes no --gin options", given=", ".join(f"--gin.{n}" for n, _ in overrides))
  return module.run(args)


def main(argv: Sequence[str] | None = None) -> int:
  argv = list(sys.argv[1:] if argv is None else argv)
  if not argv or argv[0] in ("-h", "--help", "help"):
    print(help_text())
    return 0
  if argv[0] == "--version":
    print(t5like.__version__)
    return 0
  try:
    if argv[0] not in VERBS:
      raise UserError(
        f"no verb {argv[0]!r}", nearest=nearest(argv[0], VERBS), known=", ".join(VERBS), try_="t5like --help"
      )
    return run_verb(argv[0], argv[1:])
  except UserError as error:
    if "--verbose" in argv:
      traceback.print_exc()
    # gin wraps exceptions that pass through it and adds its call stack to str(); ours stays clean.
    print(f"error: {error.render()}", file=sys.stderr)
    return error.status
  except BrokenPipeError:  # `t5like ... | head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    return INTERRUPTED
  except Exception:
    if not _is_one_of_several_processes():
      raise
    # Python would now wait half a minute for the other hosts, of which one is gone.
    traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _is_one_of_several_processes() -> bool:
  jax = sys.modules.get("jax")  # not loaded: nothing was joined
  return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1
