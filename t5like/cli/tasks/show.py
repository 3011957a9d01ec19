"""Print examples of a task: as read, as text, as tokens; what an objective makes of a corpus; the shares of a mixture.

t5like tasks show snli --n=3
t5like tasks show novels --objective=prefix_lm --lengths inputs=64
t5like tasks show glue
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

from t5like.cli.options import parse_lengths
from t5like.console import paint
from t5like.errors import UserError

if TYPE_CHECKING:
  import numpy as np

  from t5like.objectives import Masked, Pairs
  from t5like.vocabularies import Vocabulary

# A document may be a book: so much of it says what it is.
_MOST_CHARACTERS, _MOST_PIECES = 500, 120
_DEFAULT_INPUTS, _DEFAULT_TARGETS = 512, 114


def configure(parser: argparse.ArgumentParser) -> None:
  from t5like.cli.options import add_task_modules

  parser.add_argument("task", help="a registered task or mixture")
  parser.add_argument("--n", type=int, default=1, help="how many examples (default: 1)")
  parser.add_argument("--split", default="train", help="the split to read (default: train)")
  parser.add_argument("--vocabulary", help="a vocabulary's name or file (default: t5, bert_uncased for encoders)")
  parser.add_argument("--objective", help="what to make of a corpus (default: that in its name, or span_corruption)")
  parser.add_argument("--lengths", metavar="inputs=N", help=f"input tokens of a row (default: {_DEFAULT_INPUTS})")
  parser.add_argument("--seed", type=int, default=0, help="another seed gives other noise")
  add_task_modules(parser)


def run(args: argparse.Namespace) -> int:
  from t5like.cli.options import task_modules
  from t5like.tasks import mixtures, registry
  from t5like.tasks.missing_data import data_explained

  if args.n < 1:
    raise UserError(f"--n must be 1 or more, not {args.n}")
  found = registry.find_task_or_mixture(args.task, task_modules(args))
  if mixtures.is_mixture(found):
    print_shares(found)
  else:
    with data_explained(found):
      registry.check_split(found, args.split)
    print_task(found, args)
  return 0


def print_shares(mixture: Any) -> None:
  from t5like.tasks.mixtures import shares

  rows = shares(mixture)
  width = max(len("task"), *(len(row.task) for row in rows))
  print(paint(f"{mixture.name}", "bold") + ": a mixture of " + f"{len(rows)} tasks, as drawn in training")
  print(f"  {'task':<{width}}{'size':>12}{'rate':>14}{'percent':>9}")
  for row in rows:
    size = "-" if row.size is None else f"{row.size:,}"
    percent = f"{100 * row.share:.2f}" if row.rate else "-"
    print(f"  {row.task:<{width}}{size:>12}{row.rate:>14,.2f}{percent:>9}")
  if not all(row.rate for row in rows):
    print("  tasks of rate 0 are evaluated, and never drawn in training")


def print_task(task: Any, args: argparse.Namespace) -> None:
  from t5like.objectives import find_objective, split_task_name
  from t5like.tasks.caching.cache_kind import cache_kind
  from t5like.tasks.checks.examples import is_corpus
  from t5like.tasks.encoders.checks import is_encoder_form
  from t5like.tasks.missing_data import data_explained
  from t5like.tasks.previews import corrupted, previews
  from t5like.vocabularies import load_vocabulary

  if args.objective and not is_corpus(task):
    raise UserError(f"{task.name!r} has targets of its own: an objective is for a corpus", try_="leave out --objective")
  lengths = parse_lengths(args.lengths)
  inputs = lengths.get("inputs", _DEFAULT_INPUTS)
  if is_encoder_form(task):
    print_encoder_form(task, args, inputs)
    return
  name = args.objective or split_task_name(task.name)[1] or "span_corruption"
  objective = find_objective(name) if is_corpus(task) else None
  masked = objective is not None and objective.makes == "masked"
  vocabulary_name = args.vocabulary or ("bert_uncased" if masked else "t5")
  vocabulary = load_vocabulary(vocabulary_name)
  with data_explained(task):
    kept = cache_kind(task, args.split)
  for number, preview in enumerate(previews(task, args.split, args.n, inputs)):
    print(paint(f"{task.name} ({args.split}), row {number}", "bold"))
    _print_fields("raw", preview.raw, "blue")
    if not preview.examples and kept.name == "text":
      print("  " + paint("left out by a preprocessor", "yellow"))
    for example in preview.examples:
      if objective is None or example.get("targets", "").encode() not in preview.raw.values():
        _print_fields("text", example, "green")
      if kept.name == "text":
        _print_tokens(task, example, vocabulary, vocabulary_name)
  if kept.name != "text":
    _print_finished(task, args, vocabulary, vocabulary_name, lengths, kept)
  for line in _vocabulary_notes(task, vocabulary, vocabulary_name):
    print(paint(line, "yellow"))
  # Without sentinels the default objective has nothing to work with; one that was asked for says so.
  if objective is not None and (vocabulary.sentinel_ids or masked or args.objective):
    lengths = objective.lengths(inputs)
    result = corrupted(task, args.split, vocabulary, objective, lengths, args.n, args.seed)
    sizes = f"{lengths.raw} tokens of text, {lengths.inputs} inputs, {lengths.targets} targets"
    print(paint(f"{name} of {task.name}", "bold") + f": {sizes}, vocabulary {vocabulary_name}, seed {args.seed}")
    _print_result(result, vocabulary)


def _print_finished(
  task: Any, args: argparse.Namespace, vocabulary: Vocabulary, name: str, given: dict, kept: Any
) -> None:
  """Examples after all steps; they need not be those of the rows above."""
  from t5like.tasks.previews import finished

  lengths = {"inputs": given.get("inputs", _DEFAULT_INPUTS), "targets": given.get("targets", _DEFAULT_TARGETS)}
  how = "streamed" if kept.name == "stream" else "cached as finished tokens"
  print(paint(f"{task.name} after all of its steps", "bold") + f" ({how}: {kept.why})")
  for example in finished(task, args.split, vocabulary, args.n, lengths):
    for feature in ("inputs", "targets"):
      if feature in example:
        said = f"{feature}  {len(example[feature]):,} of {name}: "
        _print_wrapped(
          f"  {paint('tokens  ', 'magenta')}{said}", 12, _pieces(example[feature], vocabulary), len(said) - 2
        )


def _vocabulary_notes(task: Any, vocabulary: Vocabulary, name: str) -> list[str]:
  """Where the vocabulary that the task was registered with is not the one shown."""
  from t5like.tasks.seqio_vocabularies import as_seqio, own_vocabulary

  named = {n: task.output_features[n].vocabulary for n in ("inputs", "targets") if n in task.output_features}
  if own_vocabulary(task.output_features) is None:
    listed = ", ".join(f"{n} {_vocabulary_text(v)}" for n, v in named.items())
    return [
      f"vocabularies of its own: {listed}; the ids of a PassThroughVocabulary, and of two different ones, are kept"
    ]
  own = next(iter(named.values()))
  if own == as_seqio(vocabulary):
    return []
  return [f"it was registered with {_vocabulary_text(own)}; a run uses the vocabulary of its model, here {name}"]


def _vocabulary_text(vocabulary: Any) -> str:
  file = getattr(vocabulary, "_sentencepiece_model_file", "") or ""
  return f"{type(vocabulary).__name__}({file}, {vocabulary.vocab_size:,} ids)".replace("(, ", "(")


def print_encoder_form(task: Any, args: argparse.Namespace, length: int) -> None:
  """Tokens and labels as the task makes them, with the vocabulary of its features."""
  from t5like.tasks.encoders.forms import encoder_vocabulary
  from t5like.tasks.previews import previews

  if args.vocabulary:
    raise UserError(f"{task.name!r} has a vocabulary of its own", try_="leave out --vocabulary")
  vocabulary = encoder_vocabulary(task.output_features)
  for number, preview in enumerate(previews(task, args.split, args.n, length)):
    print(paint(f"{task.name} ({args.split}), row {number}", "bold"))
    _print_fields("raw", preview.raw, "blue")
    for example in preview.examples:
      tokens = example["inputs"]
      said = f"inputs  {len(tokens):,}: "
      _print_wrapped(f"  {paint('tokens  ', 'magenta')}{said}", 12, _pieces(tokens, vocabulary), len(said) - 2)
      others = {name: example[name] for name in task.output_features if name != "inputs"}
      _print_fields("", others, "magenta")


def _print_fields(stage: str, fields: dict[str, Any], colour: str) -> None:
  fields = _flat(fields)
  width = max(map(len, fields))
  for number, (name, value) in enumerate(fields.items()):
    label = paint(f"{stage if number == 0 else '':<8}", colour)
    _print_wrapped(f"  {label}{name:<{width}}  ", 12 + width, _shown(value))


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
  flat = {}
  for name, value in fields.items():
    if isinstance(value, dict):
      flat |= {f"{name}/{part}": inner for part, inner in _flat(value).items()}
    else:
      flat[name] = value
  return flat


def _shown(value: Any) -> str:
  value = value.tolist() if hasattr(value, "tolist") else value
  if isinstance(value, bytes):
    value = value.decode("utf-8", errors="replace")
  if isinstance(value, list):
    value = "[" + ", ".join(_shown(item) for item in value[:20]) + (", …]" if len(value) > 20 else "]")
  text = str(value)
  if len(text) > _MOST_CHARACTERS:
    text = f"{text[:_MOST_CHARACTERS]} … ({len(text):,} characters)"
  return text.replace("\n", "⏎ ") or "(empty)"


def _print_tokens(task: Any, example: dict[str, Any], vocabulary: Vocabulary, name: str) -> None:
  features = [f for f in task.output_features if isinstance(example.get(f), str)]
  for number, feature in enumerate(features):
    tokens = vocabulary.encode(example[feature])
    if task.output_features[feature].add_eos:
      tokens.append(vocabulary.eos_id)
    label = paint(f"{'tokens' if number == 0 else '':<8}", "magenta")
    said = f"{feature}  {len(tokens):,} of {name}: "
    _print_wrapped(f"  {label}{said}", 12, _pieces(tokens, vocabulary), len(said) - 2)


def _pieces(tokens: list[int] | np.ndarray, vocabulary: Vocabulary) -> str:
  special = {*vocabulary.sentinel_ids, vocabulary.mask_id, vocabulary.eos_id, vocabulary.cls_id, vocabulary.sep_id}
  shown = [
    paint(piece, "red") if token == vocabulary.unk_id else paint(piece, "yellow") if token in special else piece
    for token in map(int, tokens[:_MOST_PIECES])
    for piece in [vocabulary.piece(token)]
  ]
  more = len(tokens) - _MOST_PIECES
  return " ".join(shown) + (f" … {more:,} more" if more > 0 else "") or "(nothing)"


def _print_result(result: Pairs | Masked, vocabulary: Vocabulary) -> None:
  for row in range(len(result.inputs.tokens)):
    inputs = result.inputs.tokens[row, : result.inputs.lengths[row]]
    _print_wrapped(f"  {f'inputs {len(inputs)}':<13}", 15, _pieces(inputs, vocabulary))
    if hasattr(result, "weights"):
      places = [place for place in range(len(inputs)) if result.weights[row, place]]
      predicted = [f"{vocabulary.piece(int(result.targets[row, place]))} at {place}" for place in places]
      shown = ", ".join(predicted[:_MOST_PIECES]) + (" …" if len(predicted) > _MOST_PIECES else "")
      _print_wrapped(f"  {f'predict {len(predicted)}':<13}", 15, shown)
      if result.labels is not None:
        print(f"  {'follows':<13}{'no' if result.labels[row] else 'yes'}")
    else:
      targets = result.targets.tokens[row, : result.targets.lengths[row]]
      _print_wrapped(f"  {f'targets {len(targets)}':<13}", 15, _pieces(targets, vocabulary))


def _print_wrapped(start: str, indent: int, text: str, further: int = 0) -> None:
  """The text behind `start`, which takes `indent` + `further` columns of the first line; colours take none."""
  width = max(shutil.get_terminal_size((120, 24)).columns, 60)
  first = " " * (indent + further)
  lines = textwrap.wrap(
    text, width, initial_indent=first, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
  )
  print(start + (lines[0][len(first) :] if lines else ""))
  for line in lines[1:]:
    print(line)
