"""Writes metrics to `metrics.jsonl`, TensorBoard and other writers; defines the glossary of metrics."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from t5like.errors import RunError
from t5like.files import storage
from t5like.training.detection import COUNTS, detection_scores
from t5like.training.records.tensorboard import EventWriter

FILE = "metrics.jsonl"
GLOSSARY_FILE = "metrics_glossary.md"

GLOSSARY = {
  # Training: means over the steps since the previous row.
  "loss": "mean cross entropy per target token, or per label of a head (nats; squared error for regression); "
  "in training it includes z-loss and label smoothing, and the inputs if train.loss_on_inputs is True",
  "z_loss": "the part of the loss that keeps the softmax normalizer near 1",
  "accuracy": "share of target tokens, or of labels of a head, predicted correctly by argmax, with teacher forcing",
  "sentence_loss": "mean cross entropy of next-sentence or sentence-order prediction (nats)",
  "sentence_accuracy": "accuracy of next-sentence or sentence-order prediction",
  "boundary_loss": "SpanBERT: mean cross entropy of the tokens of spans, predicted from the tokens next to them (nats)",
  "soft_loss": "distillation: mean KL divergence from the teacher's predictions, times the temperature squared",
  "cosine_loss": "distillation: 1 - cosine of the last hidden states of student and teacher",
  "attention_loss": "distillation: mean squared difference of attention scores, summed over the student's layers",
  "hidden_loss": "distillation: mean squared difference of hidden states, summed over the student's layers",
  "embedding_loss": "distillation: mean squared difference of embeddings",
  "discriminator_loss": "ELECTRA: mean binary cross entropy of all tokens: replaced or not (nats)",
  "discriminator_accuracy": "ELECTRA: share of tokens that the discriminator classifies correctly",
  "discriminator_precision": "ELECTRA: share of replaced tokens among those that the discriminator reports",
  "discriminator_recall": "ELECTRA: share of the replaced tokens that the discriminator reports",
  "discriminator_auc": "ELECTRA: probability that a replaced token gets a higher score than an original one",
  "gradient_norm": "global L2 norm of the gradients, before the optimizer",
  "parameter_norm": "global L2 norm of the parameters that train, before the update",
  "learning_rate": "the schedule's value at the step",
  "skipped_steps": "steps skipped because loss or gradients were not finite; other values exclude them",
  # Speed, without saves and evaluations.
  "tokens_per_second": "input and target tokens, padding included, per second of wall time",
  "steps_per_second": "steps per second of wall time",
  "model_teraflops": "TFLOP/s per device in the model's matrix products, without recomputation",
  "model_flops_utilization": "model_teraflops as a share of the device's published bfloat16 peak",
  "input_wait": "share of wall time the devices waited for a batch",
  # By layer, every NORMS_PERIOD steps, for that step; [3] is the fourth layer of a stack.
  "gradient/PATH": "L2 norm of the gradients of the parameters under PATH",
  "parameter/PATH": "L2 norm of the parameters under PATH",
  "update/PATH": "L2 norm of the update of the parameters under PATH",
  # Evaluation, in addition to the metrics of the task.
  "perplexity": "exp of the loss",
  "target_tokens": "number of target tokens in an evaluation's mean loss",
}

_LOWER_IS_BETTER = re.compile(r"(.*[/_])?(loss|perplexity|bits_per_byte|error|edit)")
_OVER_TOKENS = ("loss", "z_loss", "accuracy")
_OVER_SENTENCES = ("sentence_loss", "sentence_accuracy")


def is_higher_better(name: str, given: bool | None) -> bool:
  """Whether higher values of a score are better: as given; None: not those of a loss, an error or an edit distance."""
  return not _LOWER_IS_BETTER.fullmatch(name) if given is None else given


def mean_metrics(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Averages metrics over steps: sums over tokens and sentences by their counts, the rest by step.

  Steps whose `finite` flag is 0 changed nothing and are only counted.
  """
  finite = [m for m in steps if bool(m.get("finite", True))]
  counted = finite or steps
  counts = {name: sum(float(m.get(name, 0.0)) for m in counted) for name in ("target_tokens", "sentences")}
  result = {}
  for name in counted[0]:
    if name in ("finite", "target_tokens", "sentences"):
      continue
    if name == COUNTS:
      result |= detection_scores(sum(np.asarray(m[name], np.float64) for m in counted))
      continue
    total = sum(float(m[name]) for m in counted)
    if name in _OVER_TOKENS and "target_tokens" in counted[0]:
      result[name] = total / max(counts["target_tokens"], 1.0)
    elif name in _OVER_SENTENCES and "sentences" in counted[0]:
      result[name] = total / max(counts["sentences"], 1.0)
    else:
      result[name] = total / len(counted)
  if "finite" in steps[0]:
    result["skipped_steps"] = float(len(steps) - len(finite))
  return result


def named_norms(norms: Mapping[str, Any]) -> dict[str, float]:
  """Splits the norms of stacked layers: gradient/mlp [.5, .7] into gradient/mlp[0] and gradient/mlp[1]."""
  named = {}
  for path, norm in norms.items():
    named |= {f"{path}[{i}]": float(x) for i, x in enumerate(norm)} if np.ndim(norm) else {path: float(norm)}
  return named


class Writer(Protocol):
  """The interface of additional writers."""

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None: ...

  def close(self) -> None: ...


class MetricWriter:
  """Writes rows of metrics to `metrics.jsonl`, to TensorBoard and to `writers`, on process 0 only.

  Rows after `first_step` are dropped: a resumed run trains those steps again, and each should appear once. `before` is
  the result of `read_metrics`, if it is already known.
  """

  def __init__(
    self,
    model_dir: Path,
    first_step: int,
    writers: Sequence[Writer] = (),
    before: Iterable[Mapping[str, Any]] | None = None,
  ):
    self._files: list[_JsonLines | EventWriter] = []
    self._others: Sequence[Writer] = ()
    if jax.process_index() != 0:
      return
    path = model_dir / FILE
    try:
      model_dir.mkdir(parents=True, exist_ok=True)
      before = read_metrics(model_dir) if before is None else before
      kept = _keep_rows(path, [row for row in before if row["step"] <= first_step])
      storage.write_atomic(model_dir / GLOSSARY_FILE, glossary_text())
      self._files, self._others = [_JsonLines(path, kept), EventWriter(model_dir, first_step)], writers
    except OSError as error:
      raise write_error(path, error) from None

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    """Writes a row. `kind` is "train" or "eval/<task>"; TensorBoard groups by it."""
    self._with_each_file(lambda file: file.write(step, kind, values))
    for writer in self._others:
      writer.write(step, kind, values)

  def flush(self) -> None:
    """Sends pending rows. Called with every checkpoint, so that a run that resumes from it has all rows up to it."""
    self._with_each_file(lambda file: file.flush())

  def close(self) -> None:
    self._with_each_file(lambda file: file.close())
    for writer in self._others:
      writer.close()

  def _with_each_file(self, action: Callable[[_JsonLines | EventWriter], None]) -> None:
    """Turns an OSError into a RunError that names the file."""
    for file in self._files:
      try:
        action(file)
      except OSError as error:
        raise write_error(file.path, error) from None


def json_numbers(values: Mapping[str, float]) -> dict[str, float | None]:
  """Returns values with null for NaN and infinities, which JSON does not have; every parser reads null."""
  return {name: value if math.isfinite(value) else None for name, value in values.items()}


class _JsonLines:
  """Passes every row to the operating system in `write`, so that a killed process loses none; to a store at `flush`."""

  def __init__(self, path: Path, content: bytes):
    self.path = path
    self._file = storage.open_append(path, content)

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    row = json.dumps({"step": step, "kind": kind, **json_numbers(values)}).encode() + b"\n"
    while row:
      row = row[self._file.write(row) :]

  def flush(self) -> None:
    storage.upload_pending(self._file)

  def close(self) -> None:
    self._file.close()


def write_error(path: Path, error: OSError) -> RunError:
  """Returns the error for a full disk, an exceeded quota or a file system that is gone."""
  full = error.errno in storage.DISK_FULL
  return RunError(
    f"cannot write {path}",
    because=error.strerror or error,
    try_="free some space; the same command then resumes from the last checkpoint" if full else "",
  )


def glossary_text() -> str:
  lines = [f"- `{name}`: {meaning}" for name, meaning in GLOSSARY.items()]
  means = "Training scores are means over the steps since the previous row; after a restart, since the checkpoint."
  return "\n".join(["# Metrics in metrics.jsonl and TensorBoard", "", means, "", *lines]) + "\n"


def read_metrics(model_dir: str | Path) -> list[dict[str, Any]]:
  """Returns all rows written so far, without unfinished lines of a killed run and lines of other programs."""
  return [row for row in storage.read_json_lines(storage.as_path(model_dir) / FILE) if _is_row(row)]


def _is_row(row: Mapping[str, Any]) -> bool:
  step, kind = row.get("step"), row.get("kind")
  if type(step) is not int or step < 0 or not isinstance(kind, str):
    return False
  values = (value for name, value in row.items() if name not in ("step", "kind"))
  return all(value is None or type(value) in (int, float) for value in values)


def _keep_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> bytes:
  """Replaces the rows of the file, if it exists, and returns the new content."""
  content = "".join(json.dumps(row) + "\n" for row in rows).encode()
  if path.is_file():
    storage.write_atomic(path, content)
  return content
