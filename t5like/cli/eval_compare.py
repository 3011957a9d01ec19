"""`t5like eval --compare A B`: two runs side by side, and the rows on which they differ."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from t5like.cli.options import task_modules
from t5like.errors import UserError
from t5like.evaluation.comparison import Answers, compare, differences_table, differing_rows, is_right, read_answers
from t5like.files import storage
from t5like.training.records.model_dir import write_text

_PREDICTIONS = re.compile(r"(?P<what>.+?)-(?P<step>\d+)(?P<rest>(-.*)?)\.jsonl")


def run(args: argparse.Namespace) -> int:
  a, b = (storage.as_path(path).absolute() for path in args.compare)
  pairs = _pairs(a, b, args)
  for name, one, other in pairs:
    first, second = read_answers(one), read_answers(other)
    found = compare(first, second, args.resamples, args.seed or 0, print, task_modules(args))
    print(f"{name}: {len(first.rows):,} rows\n  A {one}\n  B {other}\n{differences_table(found)}")
    _tell_rows(first, second, storage.as_path(args.out) / f"{name}.differs.jsonl" if args.out else None, args.show)
  return 0


def _pairs(a: Path, b: Path, args: argparse.Namespace) -> list[tuple[str, Path, Path]]:
  """What there is to compare: two files, or the tasks that both directories have answers of."""
  if a.is_file() and b.is_file():
    return [(args.task or a.stem, a, b)]
  for path in (a, b):
    if not path.is_dir():
      raise UserError(
        f"nothing to compare in {path}", expected="two model directories, or two files of predictions (.jsonl)"
      )
  sides = [_newest(path, args) for path in (a, b)]
  shared = [name for name in sides[0] if name in sides[1]]
  if not shared:
    raise UserError(
      "the two directories have no answers to the same task, split and settings",
      a=f"{a}: {', '.join(sides[0]) or 'none'}",
      b=f"{b}: {', '.join(sides[1]) or 'none'}",
      try_=f"t5like eval --model_dir={b} --task=TASK",
    )
  return [(name, sides[0][name], sides[1][name]) for name in shared]


def _newest(folder: Path, args: argparse.Namespace) -> dict[str, Path]:
  """By task, split and settings: the file of the newest step, or of --step."""
  found: dict[str, tuple[int, Path]] = {}
  for path in sorted((folder / "predictions").glob("*.jsonl")):
    if not (match := _PREDICTIONS.fullmatch(path.name)):
      continue
    name, step = match["what"] + match["rest"], int(match["step"])
    if args.step is not None and step != args.step:
      continue
    if args.task and not any(match["what"].startswith(f"{task}-") for task in args.task.split(",")):
      continue
    if args.split and not match["what"].endswith(f"-{args.split}"):
      continue
    if name not in found or step > found[name][0]:
      found[name] = (step, path)
  return {name: path for name, (_, path) in found.items()}


def _tell_rows(a: Answers, b: Answers, out: Path | None, show: int) -> None:
  rows = differing_rows(a, b)
  only = {"A": 0, "B": 0}
  for row in rows:
    right = {"A": is_right(row["a"], row["target"]), "B": is_right(row["b"], row["target"])}
    for side in only:
      only[side] += right[side] and sum(right.values()) == 1
  print(f"  {len(rows):,} rows are answered differently: only A is right in {only['A']:,}, only B in {only['B']:,}")
  for row in rows[:show]:
    print(f"  row {row['row']}: {row['inputs']}\n    target {row['target']!r}, A {row['a']!r}, B {row['b']!r}")
  if out is not None:
    write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"  all of them: {out}")
