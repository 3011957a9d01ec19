"""Print examples of a task (raw, text, tokens), the corrupted rows of a corpus, or the shares of a mixture.

t5like tasks show snli --n=3
t5like tasks show novels --objective=prefix_lm --lengths inputs=64
t5like tasks show glue
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5like.cli.options import SEEDS, add_task_modules, at_least, parse_lengths, task_modules
from t5like.console import paint

if TYPE_CHECKING:
  from t5like.objectives.worked_examples import CorruptedRow
  from t5like.tasks.previews import Preview
  from t5like.tasks.task_preview import TaskPreview
  from t5like.vocabularies import Vocabulary

# A document may be a book: print only the start.
_MOST_CHARACTERS, _MOST_PIECES = 500, 120


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("task", help="a registered task or mixture")
  parser.add_argument("--n", type=at_least(1), default=1, help="number of examples (default: 1)")
  parser.add_argument("--split", default="train", help="the split to read (default: train)")
  parser.add_argument("--vocabulary", help="name or file of a vocabulary (default: t5, bert_uncased for encoders)")
  parser.add_argument("--objective", help="objective for a corpus (default: the one in its name, or span_corruption)")
  parser.add_argument("--lengths", metavar="inputs=N", help="input length of a row in tokens (default: 512)")
  parser.add_argument("--seed", type=at_least(0, SEEDS), default=0, help="seed of the noise (default: 0)")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  from t5like.tasks import mixtures, registry
  from t5like.tasks.task_preview import TaskPreview

  found = registry.find_task_or_mixture(args.task, task_modules(args))
  if mixtures.is_mixture(found):
    print_shares(found)
  else:
    lengths = parse_lengths(args.lengths)
    print_task(TaskPreview(found, args.split, args.n, args.vocabulary, args.objective, lengths, args.seed))
  return 0


def print_shares(mixture: Any) -> None:
  from t5like.tasks.mixtures import shares

  rows = shares(mixture)
  width = max(len("task"), *(len(row.task) for row in rows))
  print(paint(f"{mixture.name}", "bold") + f": a mixture of {len(rows)} tasks, with their rates in training")
  print(f"  {'task':<{width}}{'size':>12}{'rate':>14}{'percent':>9}")
  for row in rows:
    size = "-" if row.size is None else f"{row.size:,}"
    percent = f"{100 * row.share:.2f}" if row.rate else "-"
    print(f"  {row.task:<{width}}{size:>12}{row.rate:>14,.2f}{percent:>9}")
  if not all(row.rate for row in rows):
    print("  tasks with rate 0 are only evaluated")


def print_task(preview: TaskPreview) -> None:
  task, vocabulary = preview.task, preview.vocabulary
  for number, row in enumerate(preview.rows()):
    print(paint(f"{task.name} ({preview.split}), row {number}", "bold"))
    _print_fields("raw", row.raw, "blue")
    if preview.is_encoder_form:
      _print_encoder_row(preview, row)
    else:
      _print_text_row(preview, row)
  if preview.is_encoder_form:
    return
  if preview.cache_kind.name != "text":
    how = "streamed" if preview.cache_kind.name == "stream" else "cached as finished tokens"
    print(paint(f"{task.name} after all preprocessors", "bold") + f" ({how}: {preview.cache_kind.why})")
    for example in preview.finished():
      for feature in ("inputs", "targets"):
        if feature in example:
          _print_tokens("tokens", feature, example[feature], *preview.feature_vocabulary(feature))
  for line in preview.vocabulary_notes():
    print(paint(line, "yellow"))
  if (corrupted := preview.corrupted()) is not None:
    lengths, rows = corrupted
    sizes = f"{lengths.raw} tokens of text, {lengths.inputs} inputs, {lengths.targets} targets"
    how = f"{sizes}, vocabulary {preview.vocabulary_name}, seed {preview.seed}"
    print(paint(f"{preview.objective_name} of {task.name}", "bold") + f": {how}")
    for row in rows:
      _print_corrupted(row, vocabulary)


def _print_text_row(preview: TaskPreview, row: Preview) -> None:
  is_text = preview.cache_kind.name == "text"
  if not row.examples and is_text:
    print("  " + paint("filtered out by a preprocessor", "yellow"))
  for example in row.examples:
    if preview.objective is None or example.get("targets", "").encode() not in row.raw.values():
      _print_fields("text", example, "green")
    tokens = preview.tokens(example) if is_text else {}
    for number, (feature, ids) in enumerate(tokens.items()):
      _print_tokens("" if number else "tokens", feature, ids, preview.vocabulary, preview.vocabulary_name)


def _print_encoder_row(preview: TaskPreview, row: Preview) -> None:
  """Prints the task's tokens and labels, with the vocabulary of its features."""
  for example in row.examples:
    _print_tokens("tokens", "inputs", example["inputs"], preview.vocabulary)
    _print_fields("", {n: example[n] for n in preview.task.output_features if n != "inputs"}, "magenta")


def _print_tokens(
  stage: str, feature: str, tokens: Sequence[int], vocabulary: Vocabulary | None, name: str = ""
) -> None:
  label = f"{feature}  {len(tokens):,}{f' of {name}' if name else ''}: "
  start = f"  {paint(f'{stage:<8}', 'magenta')}{label}"
  _print_wrapped(start, 12, _pieces(tokens, vocabulary), len(label) - 2)


def _print_fields(stage: str, fields: Mapping[str, Any], color: str) -> None:
  from t5like.tasks.previews import readable_fields

  readable = readable_fields(fields, _MOST_CHARACTERS)
  width = max(map(len, readable))
  for number, (name, text) in enumerate(readable.items()):
    label = paint(f"{stage if number == 0 else '':<8}", color)
    _print_wrapped(f"  {label}{name:<{width}}  ", 12 + width, text)


def _pieces(tokens: Sequence[int], vocabulary: Vocabulary | None) -> str:
  more = len(tokens) - _MOST_PIECES
  rest = f" … {more:,} more" if more > 0 else ""
  if vocabulary is None:
    return " ".join(map(str, tokens[:_MOST_PIECES])) + rest or "(nothing)"
  special = {*vocabulary.sentinel_ids, vocabulary.mask_id, vocabulary.eos_id, vocabulary.cls_id, vocabulary.sep_id}
  shown = [
    paint(piece, "red") if token == vocabulary.unk_id else paint(piece, "yellow") if token in special else piece
    for token in map(int, tokens[:_MOST_PIECES])
    for piece in [vocabulary.piece(token)]
  ]
  return " ".join(shown) + rest or "(nothing)"


def _print_corrupted(row: CorruptedRow, vocabulary: Vocabulary) -> None:
  _print_wrapped(f"  {f'inputs {len(row.inputs)}':<13}", 15, _pieces(row.inputs, vocabulary))
  if row.targets is not None:
    _print_wrapped(f"  {f'targets {len(row.targets)}':<13}", 15, _pieces(row.targets, vocabulary))
    return
  predicted = [f"{vocabulary.piece(token)} at {place}" for place, token in row.predicted.items()]
  shown = ", ".join(predicted[:_MOST_PIECES]) + (" …" if len(predicted) > _MOST_PIECES else "")
  _print_wrapped(f"  {f'predict {len(predicted)}':<13}", 15, shown)
  if row.follows is not None:
    print(f"  {'follows':<13}{'yes' if row.follows else 'no'}")


def _print_wrapped(start: str, indent: int, text: str, further: int = 0) -> None:
  """Prints `text` after `start`, whose width without color codes is `indent` + `further` columns."""
  width = max(shutil.get_terminal_size((120, 24)).columns, 60)
  first = " " * (indent + further)
  lines = textwrap.wrap(
    text, width, initial_indent=first, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
  )
  print(start + (lines[0][len(first) :] if lines else ""))
  for line in lines[1:]:
    print(line)
