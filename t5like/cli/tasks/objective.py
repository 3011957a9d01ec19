"""What an objective makes of a text: what the model reads, and what it has to say.

t5like tasks objective span_corruption --text "Thank you for inviting me to your party last week ."
t5like tasks objective all
"""

import argparse

from t5like.tasks.quiet_start import load_seqio

EXAMPLE = "Thank you for inviting me to your party last week ."  # Raffel et al. 2019, Table 3
OTHER = "The weather was fine and everybody came ."


def configure(parser: argparse.ArgumentParser) -> None:
  from t5like.cli.options import add_task_modules

  parser.add_argument("objective", help="its name, or all")
  parser.add_argument("--text", default=EXAMPLE, help="the text (default: the T5 paper's example)")
  parser.add_argument("--other", default=OTHER, help="a text of another document, for next-sentence prediction")
  parser.add_argument("--vocabulary", help="a vocabulary's name or file (default: t5, bert_uncased for encoders)")
  parser.add_argument("--seed", type=int, default=0, help="another seed gives other noise")
  add_task_modules(parser)
  parser.add_argument("--length", type=int, default=512, help="state the lengths for so many input tokens")


def run(args: argparse.Namespace) -> int:
  from t5like.cli.options import task_modules
  from t5like.objectives import CATALOGUE, find_objective

  if modules := task_modules(args):
    load_seqio()
    from t5like.tasks import registry

    registry.import_modules(modules)
  names = CATALOGUE if args.objective == "all" else [args.objective]
  print(f"text      {args.text}")
  for name in names:
    print()
    print("\n".join(describe(name, find_objective(name), args)))
  return 0


def describe(name, objective, args: argparse.Namespace) -> list[str]:
  """The lines that are printed for one objective."""
  import numpy as np

  from t5like.objectives import Draws, Ragged, Rows, SpecialTokens
  from t5like.vocabularies import load_vocabulary

  vocabulary = load_vocabulary(args.vocabulary or ("bert_uncased" if objective.makes == "masked" else "t5"))
  special = SpecialTokens.of(vocabulary)

  def row(text: str) -> Ragged:
    return Ragged.full(np.array([vocabulary.encode(text)], np.int32))

  text = row(args.text)
  lengths = objective.lengths(args.length)
  objective.check(objective.lengths(max(text.tokens.shape[1], 8)), special)
  result = objective(
    Rows(text.tokens, text.lengths, row(args.other)), Draws.of(args.seed, 0, np.zeros(1, int)), special
  )

  def pieces(rows: Ragged) -> str:
    return " ".join(vocabulary.piece(int(token)) for token in rows.tokens[0, : rows.lengths[0]]) or "(nothing)"

  if objective.makes == "masked":
    chosen = result.weights[0]
    predicted = [f"{vocabulary.piece(int(t))} at {i}" for i, t in enumerate(result.targets[0]) if chosen[i]]
    lines = [f"  inputs   {pieces(result.inputs)}", f"  predict  {', '.join(predicted)}"]
    if result.labels is not None:
      lines.append(f"  follows  {'no' if result.labels[0] else 'yes'}")
  else:
    lines = [f"  inputs   {pieces(result.inputs)}", f"  targets  {pieces(result.targets)}"]
  sizes = f"{lengths.raw} tokens of text, {lengths.inputs} inputs, {lengths.targets} targets"
  rows_are = {"stream": "all documents end to end", "document": "one document", "sentences": "whole sentences"}
  return [f"{name}  {objective}", *lines, f"  lengths  {sizes}; a row is of {rows_are[objective.unit]}"]
