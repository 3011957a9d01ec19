"""Checks a task for problems that a training run would show late, or never."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import seqio

from t5like.errors import UserError
from t5like.tasks import registry
from t5like.tasks.caching.cache_kind import Steps
from t5like.tasks.checks import examples as example_checks
from t5like.tasks.checks import scoring as scoring_checks
from t5like.tasks.checks.examples import Finding, Tokens
from t5like.tasks.checks.scoring import Labels, Scores
from t5like.tasks.encoders import checks as encoder_checks
from t5like.tasks.missing_data import explain_data_errors
from t5like.tasks.previews import finished_examples
from t5like.tasks.seqio_vocabularies import own_vocabulary
from t5like.vocabularies import Vocabulary, load_vocabulary

# Lengths for fine-tuning T5; summarization needs longer targets.
TYPICAL_LENGTHS = {"inputs": 512, "targets": 62}
# Default maximum of rows to check.
DEFAULT_LIMIT = 100_000


@dataclasses.dataclass(frozen=True)
class CheckReport:
  """Statistics of a task's rows, and the findings."""

  task: str
  split: str
  rows: int
  is_complete: bool  # all rows of the split were read
  tokens: dict[str, Tokens]
  lengths: dict[str, int]
  labels: Labels | None
  scores: Scores | None
  findings: list[Finding]

  @property
  def problems(self) -> list[Finding]:
    return [finding for finding in self.findings if finding.problem]

  @property
  def notes(self) -> list[Finding]:
    return [finding for finding in self.findings if not finding.problem]


def _rows(
  task: seqio.Task, split: str, vocabulary: Vocabulary, lengths: Mapping[str, int], limit: int | None
) -> tuple[list[example_checks.Row], bool]:
  """Returns examples as text, and whether these are all; examples that exist only as tokens are decoded."""
  plain = Steps.of(task).is_plain and own_vocabulary(task.output_features) is not None
  if plain or example_checks.is_corpus(task):
    return example_checks.read_rows(task, split, limit)
  rows = []
  for example in finished_examples(task, split, vocabulary, None if limit is None else limit + 1, dict(lengths)):
    text = {"targets": example.pop("targets_pretokenized")}
    if "inputs" in example:
      text["inputs"] = example.pop("inputs_pretokenized", None) or vocabulary.decode(example["inputs"])
    rows.append({**example, **text})
  return rows[:limit], limit is None or len(rows) <= limit


def check_task(
  task: seqio.Task,
  split: str,
  vocabulary: Vocabulary,
  lengths: Mapping[str, int] = TYPICAL_LENGTHS,
  limit: int | None = DEFAULT_LIMIT,
) -> CheckReport:
  """Reads up to `limit` rows of a split and reports problems for training or evaluation.

  `lengths` are those of a run, in tokens; they are ignored for a corpus, which objectives cut into rows.
  `vocabulary` is ignored for encoder forms, which have their own.
  """
  if encoder_checks.is_encoder_form(task):
    lengths = {"inputs": lengths["inputs"]}
    count, is_complete, tokens, labels, findings = encoder_checks.check_tokens(task, split, lengths, limit)
    return CheckReport(task.name, split, count, is_complete, tokens, lengths, labels, None, findings)
  rows, is_complete = _rows(task, split, vocabulary, lengths, limit)
  findings = list(example_checks.feature_findings(task, rows))
  tokens = example_checks.count_tokens(task, rows, vocabulary)
  lengths = {} if example_checks.is_corpus(task) else dict(lengths)
  findings += example_checks.length_findings(tokens, lengths, rows)
  findings += example_checks.vocabulary_findings(tokens, rows, vocabulary)
  findings += example_checks.duplicate_findings(rows)
  labels = scores = None
  if "targets" in tokens and not example_checks.is_corpus(task):
    labels = scoring_checks.find_labels(task, rows)
    findings += scoring_checks.label_findings(labels, rows, is_complete)
    scores, found = scoring_checks.score(task, rows, vocabulary)
    findings += found
  return CheckReport(task.name, split, len(rows), is_complete, tokens, lengths, labels, scores, findings)


def check_all(
  name: str,
  split: str,
  vocabulary: str | None = None,
  lengths: Mapping[str, int] | None = None,
  limit: int | None = None,
  modules: Sequence[str] = (),
) -> Iterator[tuple[CheckReport, str]]:
  """Checks a task, or each task of a mixture that has the split; yields reports with the name of the vocabulary.

  `lengths` and `limit` default to TYPICAL_LENGTHS and DEFAULT_LIMIT, the vocabulary to t5 or the encoder form's own.
  """
  shown = load_vocabulary(vocabulary or "t5")
  found = registry.find_task_or_mixture(name, modules)
  for task in [task for task in getattr(found, "tasks", [found]) if split in task.splits] or [found]:
    with explain_data_errors(task):
      registry.check_split(task, split)
    own = encoder_checks.is_encoder_form(task)
    if own and vocabulary:
      raise UserError(f"{task.name!r} has its own vocabulary", try_="omit --vocabulary")
    report = check_task(task, split, shown, {**TYPICAL_LENGTHS, **(lengths or {})}, limit or DEFAULT_LIMIT)
    yield report, "defined by the task" if own else vocabulary or "t5"
