"""The examples of a task with labels as rows for a head."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from t5like.experiments.token_caches import CachedTask
from t5like.inference.rows import Row, Rows
from t5like.objectives.segments import TEXT_FIELDS


def labeled_task_rows(members: Sequence[CachedTask], form: str, examples: int = 0) -> Rows:
  """Yields the examples of tasks, at most `examples` of each, with their labels as `target`."""
  numbers = itertools.count()
  for member in members:
    named = {"task": member.task} if len(members) > 1 else {}
    given = itertools.islice(member.cache.fields(), examples or None)
    plain = ({name.removesuffix("_pretokenized"): value for name, value in example.items()} for example in given)
    for at, (text, fields) in enumerate(_rows(plain, form)):
      yield Row(next(numbers), f"{member.task} example {at + 1}", text, {**named, **fields})


def _rows(examples: Iterable[dict[str, Any]], form: str) -> Iterable[tuple[str, dict[str, Any]]]:
  """Yields the text of each row and its fields."""
  if form == "choices":
    for _, group in itertools.groupby(examples, key=lambda example: example["group"]):
      candidates = list(group)
      right = [number for number, example in enumerate(candidates) if example["label"] == 1]
      fields = {"choices": [example["second"] for example in candidates], "target": right[0] if right else None}
      yield candidates[0]["first"], fields
    return
  for example in examples:
    if form == "tagging":
      yield " ".join(example["tokens"]), {"words": example["tokens"], "target": example["tags"]}
    elif form == "spans":
      yield example["first"], {"passage": example["second"], "id": example["id"], "target": example["answers"]}
    else:
      others = {name: example[name] for name in TEXT_FIELDS[1:] if name in example}
      yield example["first"], others | {"target": example.get("label")}
