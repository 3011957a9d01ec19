"""Statistics of paired seeds: seed n reads the same data in the same order in all recipes.

A score is modeled as recipe + seed + residual. What all recipes of a seed have in common does not blur the differences
between recipes, so the spread of a run is that of its residuals.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from t5like.ablations.report.statistics import Spread, pooled_spread

Scores = Mapping[str, Mapping[int, float]]  # by recipe, by seed
DRAWS = 2_000
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class PairedFit:
  """The spread of one run, and residuals with that variance; None and [] if no recipe was run with several seeds."""

  spread: Spread | None
  residuals: np.ndarray


def fit_pairs(scores: Scores) -> PairedFit:
  """Fits recipe and seed effects by least squares. With a single recipe, the seed effect cannot be separated."""
  runs = [(recipe, seed, value) for recipe, of in scores.items() for seed, value in of.items()]
  repeated = {recipe for recipe, of in scores.items() if len(of) > 1}
  runs = [run for run in runs if run[0] in repeated]
  recipes, seeds = sorted(repeated), sorted({seed for _, seed, _ in runs})
  design = np.zeros((len(runs), len(recipes) + max(len(seeds) - 1, 0)))
  for n, (recipe, seed, _) in enumerate(runs):
    design[n, recipes.index(recipe)] = 1.0
    if seed != seeds[0]:
      design[n, len(recipes) + seeds.index(seed) - 1] = 1.0
  degrees = len(runs) - int(np.linalg.matrix_rank(design)) if runs else 0
  if degrees < 1:
    plain = pooled_spread([list(of.values()) for of in scores.values()])
    return PairedFit(plain, np.zeros(0) if plain is None else np.array([plain.deviation, -plain.deviation]))
  values = np.array([value for *_, value in runs])
  residuals = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
  squares = float(residuals @ residuals)
  if squares <= _ROUNDING**2:
    return PairedFit(None, np.zeros(0))
  scaled = residuals * math.sqrt(len(runs) / degrees)  # residuals of a fit are too small
  return PairedFit(Spread(math.sqrt(squares / degrees), degrees), scaled)


def spearman_interval(
  means: Sequence[float], seeds: Sequence[int], theirs: Sequence[float], residuals: np.ndarray, level: float = 0.95
) -> tuple[float, float] | None:
  """Returns a bootstrap interval of Spearman's rho: the means are drawn again with the noise of their seeds.

  None for fewer than three rows, without residuals, or if all scores of one side are equal.
  """
  if len(means) < 3 or not len(residuals) or len(set(theirs)) == 1:
    return None
  from scipy import stats  # takes a second to import, and the workers of a sweep do not need it

  generator = np.random.default_rng(zlib.crc32(repr([round(m, 9) for m in means]).encode()))  # same bytes every time
  noise = [generator.choice(residuals, (DRAWS, n)).mean(axis=1) for n in seeds]  # rows of [draws]
  drawn = np.asarray(means)[:, None] + np.stack(noise)  # [rows, draws]
  ranks, paper = stats.rankdata(drawn, axis=0), stats.rankdata(theirs)
  ranks, paper = ranks - ranks.mean(axis=0), paper - paper.mean()
  scale = np.sqrt((ranks**2).sum(axis=0) * (paper**2).sum())
  rho = np.divide(paper @ ranks, scale, out=np.zeros(DRAWS), where=scale > 0)
  tail = 100 * (1 - level) / 2
  low, high = np.percentile(rho, [tail, 100 - tail])
  return float(low), float(high)


def seeds_to_decide(difference: float, spread: float) -> int:
  """Returns the seeds of each recipe after which a difference this large is two standard errors from 0."""
  return math.ceil(2 * (2 * spread / max(abs(difference), _ROUNDING)) ** 2)
