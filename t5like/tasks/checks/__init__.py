"""Looks a task over before a model is trained on it: what a run would show late, or never."""

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
from t5like.tasks.missing_data import data_explained
from t5like.tasks.previews import finished
from t5like.tasks.seqio_vocabularies import own_vocabulary
from t5like.vocabularies import Vocabulary, load_vocabulary

# What T5 is fine-tuned with; summaries want longer targets.
TYPICAL_LENGTHS = {"inputs": 512, "targets": 62}
# Rows that are looked at where nobody says how many.
DEFAULT_LIMIT = 100_000


@dataclasses.dataclass(frozen=True)
class CheckReport:
  """What was seen, and what is wrong with it."""

  task: str
  split: str
  rows: int
  whole: bool  # all rows of the split were read
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
  """Examples as text, and whether they are all; those that a task makes only as tokens are read back."""
  plain = Steps.of(task).is_plain and own_vocabulary(task.output_features) is not None
  if plain or example_checks.is_corpus(task):
    return example_checks.read_rows(task, split, limit)
  rows = []
  for example in finished(task, split, vocabulary, None if limit is None else limit + 1, dict(lengths)):
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
  """Reads up to `limit` rows of a split and looks for what would spoil training or evaluation.

  `lengths` are those of a run, in tokens. A corpus has none: objectives cut its text. A form for
  encoders has a vocabulary of its own, and `vocabulary` is not looked at.
  """
  if encoder_checks.is_encoder_form(task):
    lengths = {"inputs": lengths["inputs"]}
    count, whole, tokens, labels, findings = encoder_checks.check_tokens(task, split, lengths, limit)
    return CheckReport(task.name, split, count, whole, tokens, lengths, labels, None, findings)
  rows, whole = _rows(task, split, vocabulary, lengths, limit)
  findings = list(example_checks.feature_findings(task, rows))
  tokens = example_checks.count_tokens(task, rows, vocabulary)
  lengths = {} if example_checks.is_corpus(task) else dict(lengths)
  findings += example_checks.length_findings(tokens, lengths, rows)
  findings += example_checks.vocabulary_findings(tokens, rows, vocabulary)
  findings += example_checks.duplicate_findings(rows)
  labels = scores = None
  if "targets" in tokens and not example_checks.is_corpus(task):
    labels = scoring_checks.find_labels(task, rows)
    findings += scoring_checks.label_findings(labels, rows, whole)
    scores, found = scoring_checks.score(task, rows, vocabulary)
    findings += found
  return CheckReport(task.name, split, len(rows), whole, tokens, lengths, labels, scores, findings)


def check_all(
  name: str,
  split: str,
  vocabulary: str | None = None,
  lengths: Mapping[str, int] | None = None,
  limit: int | None = None,
  modules: Sequence[str] = (),
) -> Iterator[tuple[CheckReport, str]]:
  """Checks a task, or each task of a mixture that has the split; yields reports with the name of the vocabulary.

  `lengths` and `limit` are TYPICAL_LENGTHS and DEFAULT_LIMIT where they are not given, the vocabulary is t5 or an
  encoder's own.
  """
  shown = load_vocabulary(vocabulary or "t5")
  found = registry.find_task_or_mixture(name, modules)
  for task in [task for task in getattr(found, "tasks", [found]) if split in task.splits] or [found]:
    with data_explained(task):
      registry.check_split(task, split)
    own = encoder_checks.is_encoder_form(task)
    if own and vocabulary:
      raise UserError(f"{task.name!r} has a vocabulary of its own", try_="leave out --vocabulary")
    report = check_task(task, split, shown, {**TYPICAL_LENGTHS, **(lengths or {})}, limit or DEFAULT_LIMIT)
    yield report, "of its own" if own else vocabulary or "t5"
