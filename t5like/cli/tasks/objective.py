"""Apply an objective to a text and print the model's inputs and targets.

t5like tasks objective span_corruption --text "Thank you for inviting me to your party last week ."
t5like tasks objective all
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from t5like.cli.options import SEEDS, add_task_modules, at_least, task_modules
from t5like.errors import UserError
from t5like.tasks.quiet_start import load_seqio

if TYPE_CHECKING:
  from t5like.objectives import Objective

EXAMPLE = "Thank you for inviting me to your party last week ."  # Raffel et al. 2019, Table 3
OTHER = "The weather was fine and everybody came ."
_ROWS = {"stream": "concatenated documents", "document": "one document", "sentences": "complete sentences"}


def configure(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("objective", help="name of an objective, or all")
  parser.add_argument("--text", default=EXAMPLE, help="the text (default: the T5 paper's example)")
  parser.add_argument("--other", default=OTHER, help="text of another document, for next-sentence prediction")
  parser.add_argument("--vocabulary", help="name or file of a vocabulary (default: t5, bert_uncased for encoders)")
  parser.add_argument("--seed", type=at_least(0, SEEDS), default=0, help="seed of the noise (default: 0)")
  add_task_modules(parser)
  parser.add_argument("--length", type=int, default=512, help="input length for the printed lengths (default: 512)")


def run(args: argparse.Namespace) -> int:
  from t5like.objectives import CATALOGUE, find_objective
  from t5like.vocabularies import load_vocabulary

  if modules := task_modules(args):
    load_seqio()
    from t5like.tasks import registry

    registry.import_modules(modules)
  print(f"text      {args.text}")
  if args.vocabulary:
    load_vocabulary(args.vocabulary)  # raises here if there is none
  every = args.objective == "all"
  for name in CATALOGUE if every else [args.objective]:
    print()
    try:
      _print_objective(name, find_objective(name), args)
    except UserError as error:  # such as a vocabulary without a mask
      if not every:
        raise
      print(f"{name}  {error.what}")
  return 0


def _print_objective(name: str, objective: Objective, args: argparse.Namespace) -> None:
  from t5like.objectives.worked_examples import corrupt_text
  from t5like.vocabularies import load_vocabulary

  vocabulary = load_vocabulary(args.vocabulary or ("bert_uncased" if objective.makes == "masked" else "t5"))
  lengths = objective.lengths(args.length)
  row = corrupt_text(objective, args.text, vocabulary, args.other, args.seed)

  def pieces(tokens) -> str:
    return " ".join(vocabulary.piece(int(token)) for token in tokens) or "(nothing)"

  print(f"{name}  {objective}\n  inputs   {pieces(row.inputs)}")
  if row.targets is not None:
    print(f"  targets  {pieces(row.targets)}")
  else:
    print(f"  predict  {', '.join(f'{vocabulary.piece(token)} at {i}' for i, token in row.predicted.items())}")
  if row.follows is not None:
    print(f"  follows  {'yes' if row.follows else 'no'}")
  sizes = f"{lengths.raw} tokens of text, {lengths.inputs} inputs, {lengths.targets} targets"
  print(f"  lengths  {sizes}; a row is cut from {_ROWS[objective.unit]}")
