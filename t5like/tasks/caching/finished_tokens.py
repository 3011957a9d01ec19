"""The examples of a task after all of its preprocessors, as seqio produces them for given lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import seqio

from t5like.errors import UserError
from t5like.tasks.missing_data import explain_pipeline_errors
from t5like.tasks.registry import check_split
from t5like.tasks.seqio_examples import plain
from t5like.tasks.seqio_vocabularies import as_seqio, from_seqio, with_vocabulary
from t5like.tasks.sources import seedable
from t5like.vocabularies import Vocabulary, load_vocabulary, name_of

# Seed of random steps in evaluation, so that the examples are always the same.
SEED = 0


def for_model(task: seqio.Task, vocabulary: Vocabulary) -> seqio.Task:
  """Returns a copy that uses a model's vocabulary and requires no seqio cache."""
  check_features(task.name, task.output_features)
  steps = [
    seqio.CacheDatasetPlaceholder() if isinstance(step, seqio.CacheDatasetPlaceholder) else step
    for step in task.preprocessors
  ]
  return seqio.Task(
    task.name,
    source=seedable(task.source),
    preprocessors=steps,
    output_features=with_vocabulary(task.output_features, as_seqio(vocabulary)),
    shuffle_buffer_size=task.shuffle_buffer_size,
  )


def check_features(task: str, members: Iterable[str]) -> None:
  """Raises if the examples have no targets."""
  if "targets" not in members:
    raise UserError(
      f"the examples of task {task!r} have no targets",
      features=", ".join(members),
      expected="targets, optionally inputs, as for seqio's EncDec, LM and PrefixLM converters",
    )


def features(task: seqio.Task, split: str, lengths: Mapping[str, int]) -> list[str]:
  """Returns which of "inputs" and "targets" the examples have."""
  with explain_pipeline_errors(task.name):
    members = _dataset(task, split, lengths).element_spec
  check_features(task.name, members)
  return [name for name in ("inputs", "targets") if name in members]


def id_limit(task: seqio.Task, vocabulary: Vocabulary) -> int:
  """Returns the exclusive upper bound of token ids."""
  features = task.output_features
  return max(
    vocabulary.vocab_size, *(features[n].vocabulary.vocab_size for n in ("inputs", "targets") if n in features)
  )


def answer_kind(task: seqio.Task) -> str:
  """Returns how target ids are read: as "text", or as "ids" with a task-specific meaning."""
  return "ids" if isinstance(task.output_features["targets"].vocabulary, seqio.PassThroughVocabulary) else "text"


def targets_vocabulary(task: seqio.Task, model: Vocabulary) -> dict[str, str] | None:
  """Returns name and fingerprint of the vocabulary that decodes answers; None if it is the model's, or ids are plain.

  If it cannot be loaded by name, the name is empty and "why" gives the reason: training does not need it.
  """
  own = task.output_features["targets"].vocabulary
  if isinstance(own, seqio.PassThroughVocabulary):
    return None
  try:
    vocabulary = from_seqio(own)
    if vocabulary.fingerprint == model.fingerprint:
      return None
    name = name_of(vocabulary)
    if load_vocabulary(name).fingerprint != vocabulary.fingerprint:
      raise UserError(f"{name} is not the vocabulary of the targets")
  except UserError as error:
    return {"name": "", "fingerprint": "", "why": f"a {type(own).__name__} ({error.what})"}
  return {"name": name, "fingerprint": vocabulary.fingerprint}


def token_examples(task: seqio.Task, split: str, lengths: Mapping[str, int], limit: int) -> Iterator[dict[str, Any]]:
  """Yields ids of inputs and targets and the other fields as plain values, in the order of the source.

  Where the task does not keep the text of its targets, it is decoded from their ids: from all of them, as in seqio's
  evaluations, even if `lengths` cut them off.
  """
  check_split(task, split)
  target_vocabulary, uncut = task.output_features["targets"].vocabulary, None
  with explain_pipeline_errors(task.name):
    for number, example in enumerate(_dataset(task, split, lengths).as_numpy_iterator()):
      for name in ("inputs", "targets"):
        if name in example:
          _check(task.name, name, number, example[name], limit)
      values = {name: plain(value) for name, value in example.items()}
      if "targets_pretokenized" not in values:
        uncut = uncut or _UncutTargets(task, split, lengths.get("targets"))
        values["targets_pretokenized"] = plain(target_vocabulary.decode(uncut.next(values["targets"])))
      yield values


class _UncutTargets:
  """Reads a split a second time, without a limit of length, to recover the targets that the limit has cut."""

  def __init__(self, task: seqio.Task, split: str, limit: int | None):
    self._limit, self._rows = limit, iter(())
    if limit is not None and not split.startswith("train"):  # nothing reads the text of training targets
      self._rows = self._read(task, split)

  @staticmethod
  def _read(task: seqio.Task, split: str) -> Iterator[list[int]]:
    try:
      for example in _dataset(task, split, None).as_numpy_iterator():
        yield plain(example["targets"])
    except Exception:  # steps of the task may need lengths
      return

  def next(self, ids: list[int]) -> list[int]:
    """Returns the uncut targets of the next example, whose targets are `ids` with the limit."""
    uncut = next(self._rows, None)
    if uncut is None:
      return ids
    if len(ids) < self._limit:  # not cut
      if uncut != ids:  # without a limit, the task has other examples
        self._rows = iter(())
      return ids
    last = len(ids) - 1  # which may be the EOS after the cut
    return uncut if uncut[:last] == ids[:last] else ids


def _dataset(task: seqio.Task, split: str, lengths: Mapping[str, int] | None):
  return task.get_dataset(
    sequence_length=lengths and dict(lengths),
    split=split,
    shuffle=False,
    seed=SEED,
    num_epochs=1,
    try_in_mem_cache=False,
  )


def _check(task: str, name: str, number: int, ids: np.ndarray, limit: int) -> None:
  if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
    raise UserError(
      f"the {name} of task {task!r} are not a 1-D array of token ids", example=number, found=f"{ids.dtype} {ids.shape}"
    )
  if len(ids) and not 0 <= ids.min() <= ids.max() < limit:
    wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
    raise UserError(
      f"invalid token id in the {name} of task {task!r}: {wrong:,}", example=number, expected=f"0 to {limit - 1:,}"
    )
