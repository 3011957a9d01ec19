"""The paper's conclusions from its tables, as comparisons of rows that a sweep can confirm or not."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Literal

from t5like.ablations import bert
from t5like.ablations.benchmarks import OTHER
from t5like.ablations.report.comparison import Cell, ComparedTable, TableComparison
from t5like.ablations.report.pairing import seeds_to_decide
from t5like.ablations.report.statistics import TIE_DEVIATIONS
from t5like.ablations.tables import ADAPTERS, ARCHITECTURES, BASELINE_RECIPE, TABLES, language_modeling

Verdict = Literal["reproduced", "partly reproduced", "undecided", "not reproduced", "not run"]
_ROUNDING = 1e-9
_AGREEING_SHARE = 0.75  # of comparisons, for "reproduced"
MOST_SEEDS = 50  # beyond, another scale is the better way to decide


@dataclasses.dataclass(frozen=True)
class Conclusion:
  """A sentence about a table: pairs (better, worse) of recipes (`not_below`: up to the band), or recipes that tie."""

  table: int | str
  text: str
  above: tuple[tuple[str, str], ...] = ()
  not_below: tuple[tuple[str, str], ...] = ()
  tied: tuple[str, ...] = ()
  groups: tuple[str, ...] = ()  # that it is about; (): all


@dataclasses.dataclass(frozen=True)
class Count:
  """The number of comparisons (pairs of rows in a group) in which a conclusion holds."""

  holds: int
  of: int
  holds_clearly: int = 0  # by more than the two-standard-deviation band
  fails_clearly: int = 0


@dataclasses.dataclass(frozen=True)
class PairEvidence:
  """Our difference between two rows in a group, in points, and its standard error."""

  group: str
  better: str  # recipes, by the paper
  worse: str
  difference: float
  error: float | None
  seeds: int  # to run of each recipe so that a difference this large is two standard errors from 0
  clear: bool


@dataclasses.dataclass(frozen=True)
class CheckedConclusion:
  conclusion: Conclusion
  ours: Count
  paper: Count
  evidence: list[PairEvidence] = dataclasses.field(default_factory=list)

  @property
  def open_pairs(self) -> list[PairEvidence]:
    """The comparisons without a clear difference, the one that needs the fewest seeds first."""
    return sorted((pair for pair in self.evidence if not pair.clear), key=lambda pair: pair.seeds)

  @property
  def verdict(self) -> Verdict:
    """ "reproduced" if most comparisons hold and none is clearly reversed, "not reproduced" if fewer than half hold.

    "undecided" if the claim is a difference, but no difference is clear: either sign may be chance.
    """
    ours = self.ours
    if not ours.of:
      return "not run"
    if self.conclusion.above and not ours.holds_clearly and not ours.fails_clearly:
      return "undecided"
    if ours.holds < 0.5 * ours.of:
      return "not reproduced"
    reproduced = ours.holds >= _AGREEING_SHARE * ours.of and not ours.fails_clearly
    return "reproduced" if reproduced else "partly reproduced"


_ED = "encoder_decoder/"
_SIZES = tuple(itertools.pairwise(ADAPTERS))
_LANGUAGE_MODELING = {name: f"{name}/{language_modeling(name)}" for name in ARCHITECTURES}
_DENOISING = {name: f"{name}/iid_replace_spans" for name in ARCHITECTURES}


def _all_above(best: str, table: int | str) -> tuple[tuple[str, str], ...]:
  return tuple((best, recipe) for recipe in TABLES[table].recipes if recipe != best)


def _all_below(worst: str, table: int | str) -> tuple[tuple[str, str], ...]:
  return tuple((recipe, worst) for recipe in TABLES[table].recipes if recipe != worst)


_LARGER = tuple((larger, smaller) for smaller, larger in itertools.pairwise(bert.SIZES))

CONCLUSIONS = (
  Conclusion(
    2,
    "Denoising beats language modeling in each architecture",
    above=tuple((_DENOISING[name], _LANGUAGE_MODELING[name]) for name in ARCHITECTURES),
  ),
  Conclusion(2, "The encoder-decoder with denoising is best", above=_all_above(BASELINE_RECIPE, 2)),
  Conclusion(
    2,
    "The plain language model is the worst architecture, with either objective",
    above=tuple((by[name], by["lm"]) for by in (_DENOISING, _LANGUAGE_MODELING) for name in by if name != "lm"),
  ),
  Conclusion(4, "Deshuffling is worst", above=_all_below(_ED + "deshuffling", 4)),
  Conclusion(
    4, "BERT-style denoising beats prefix language modeling", above=((_ED + "bert_style", _ED + "prefix_lm"),)
  ),
  Conclusion(
    5,
    "Replacing spans, with short targets, is no worse than predicting the full text",
    not_below=((BASELINE_RECIPE, _ED + "bert_style"), (BASELINE_RECIPE, _ED + "mass_style")),
  ),
  Conclusion(6, "Corrupting 50% is worse than 15%", above=((BASELINE_RECIPE, _ED + "iid_replace_spans_50_percent"),)),
  Conclusion(
    7,
    "Mean span lengths 2, 3 and 5 are within noise of each other",
    tied=(_ED + "span_corruption_2", _ED + "span_corruption", _ED + "span_corruption_5"),
  ),
  Conclusion(
    7,
    "Length 10 is a little lower than 2, 3 and 5",
    above=tuple((_ED + f"span_corruption{length}", _ED + "span_corruption_10") for length in ("_2", "", "_5")),
  ),
  Conclusion(7, "Spans of length 3 beat i.i.d. corruption", above=((_ED + "span_corruption", BASELINE_RECIPE),)),
  Conclusion(
    9,
    "The fewer unique tokens, the worse",
    above=tuple(itertools.pairwise(TABLES[9].recipes)),
  ),
  Conclusion(10, "Training all parameters beats every other choice", above=_all_above(BASELINE_RECIPE, 10)),
  Conclusion(
    10,
    "The larger the adapters, the better",
    above=tuple((f"{BASELINE_RECIPE}/adapters_{b}", f"{BASELINE_RECIPE}/adapters_{a}") for a, b in _SIZES),
  ),
  Conclusion(11, "Pre-training, then fine-tuning beats every mixture", above=_all_above(BASELINE_RECIPE, 11)),
  Conclusion(11, "Equal mixing is worst", above=_all_below(f"{BASELINE_RECIPE}/mixed_equal", 11)),
  Conclusion(
    "bart1",
    "Rotating documents or shuffling sentences alone is worse than masking, deleting or infilling",
    above=tuple(
      (_ED + f"bart_{better}", _ED + f"bart_{worse}")
      for worse in ("document_rotation", "sentence_permutation")
      for better in ("text_infilling", "token_masking", "token_deletion")
    ),
  ),
  Conclusion(
    "bart1",
    "Left-to-right language modeling is worse on SQuAD than masking, deleting or infilling",
    above=tuple((_ED + f"bart_{better}", "lm/lm") for better in ("text_infilling", "token_masking", "token_deletion")),
    groups=("squad",),
  ),
  Conclusion(
    "bert5",
    "Next-sentence prediction helps on QNLI, MNLI and SQuAD (SNLI where MNLI was not run)",
    above=((bert.BASE, bert.NO_NSP),),
    groups=("qnli", "mnli_matched", "snli", "squad_f1"),
  ),
  Conclusion(
    "bert5",
    "A left-to-right model is worse than a masked one on all tasks",
    above=((bert.NO_NSP, bert.LEFT_TO_RIGHT),),
  ),
  Conclusion("bert6", "Larger models are better, in each step of size", above=_LARGER),
  Conclusion(
    "bert6", "Larger models are better even on small tasks: MRPC (or RTE)", above=_LARGER, groups=("mrpc", "rte")
  ),
)


def check_conclusions(comparison: TableComparison) -> list[CheckedConclusion]:
  """Checks the conclusions about the tables of the report."""
  tables = {table.number: table for table in comparison.tables}
  return [
    CheckedConclusion(
      conclusion,
      _count(conclusion, tables[conclusion.table], paper=False),
      _count(conclusion, tables[conclusion.table], paper=True),
      _evidence(conclusion, tables[conclusion.table]),
    )
    for conclusion in CONCLUSIONS
    if conclusion.table in tables
  ]


def _evidence(conclusion: Conclusion, table: ComparedTable) -> list[PairEvidence]:
  """Returns our differences between the rows that a conclusion compares, in the paper's groups that were run."""
  cells, found = {row.recipe: row.cells for row in table.own_rows}, []
  pairs = [*conclusion.above, *conclusion.not_below, *itertools.combinations(conclusion.tied, 2)]
  for group in _groups(conclusion, table.groups):
    for better, worse in pairs:
      high, low = cells[better][group], cells[worse][group]
      if high.mean is None or low.mean is None:
        continue
      difference = _score(high, paper=False) - _score(low, paper=False)
      spread, band = high.spread, _band(high, paper=False)
      error = spread * math.sqrt(1 / len(high.seeds) + 1 / len(low.seeds)) if spread else None
      seeds = seeds_to_decide(difference, spread) if spread else 0
      clear = band is not None and abs(difference) > band
      found.append(PairEvidence(group, better, worse, difference, error, seeds, clear))
  return found


def _count(conclusion: Conclusion, table: ComparedTable, paper: bool) -> Count:
  """Counts comparisons: the paper's over all groups, ours over those that were run."""
  cells = {row.recipe: row.cells for row in table.own_rows}
  counts = []
  for group in _groups(conclusion, (*table.groups, *table.not_run)):
    for better, worse in conclusion.above:
      counts.append(_above(cells[better][group], cells[worse][group], paper))
    for better, worse in conclusion.not_below:
      counts.append(_not_below(cells[better][group], cells[worse][group], paper))
    if conclusion.tied:
      counts.append(_tied([cells[recipe][group] for recipe in conclusion.tied], paper))
  known = [count for count in counts if count is not None]
  return Count(*(sum(getattr(c, f.name) for c in known) for f in dataclasses.fields(Count)))


def _groups(conclusion: Conclusion, groups: Sequence[str]) -> list[str]:
  """Returns the groups that a conclusion is about; tasks of the user's do not count."""
  return [group for group in groups if group != OTHER and (not conclusion.groups or group in conclusion.groups)]


def _score(cell: Cell, paper: bool) -> float | None:
  """Returns a score of which more is better."""
  score = cell.paper if paper else cell.mean
  return -score if cell.lower_is_better and score is not None else score


def _band(cell: Cell, paper: bool) -> float | None:
  spread = cell.paper_spread if paper else cell.spread
  return TIE_DEVIATIONS * spread + _ROUNDING if spread else None


def _above(better: Cell, worse: Cell, paper: bool) -> Count | None:
  high, low, band = _score(better, paper), _score(worse, paper), _band(better, paper)
  if high is None or low is None:
    return None
  clear = band is not None and abs(high - low) > band
  return Count(int(high > low), 1, int(clear and high > low), int(clear and high < low))


def _not_below(better: Cell, worse: Cell, paper: bool) -> Count | None:
  found = _above(better, worse, paper)
  if found is None or _band(better, paper) is None:
    return None
  return dataclasses.replace(found, holds=1 - found.fails_clearly)


def _tied(cells: Sequence[Cell], paper: bool) -> Count | None:
  scores, band = [_score(cell, paper) for cell in cells], _band(cells[0], paper)
  if band is None or None in scores:
    return None
  holds = max(scores) - min(scores) <= band
  return Count(int(holds), 1, 0, int(not holds))
