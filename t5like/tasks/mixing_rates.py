"""Mixing rates of tasks from their sizes. Plain Python, so that token caches are mixed without seqio."""

from __future__ import annotations

from collections.abc import Mapping

from t5like.errors import UserError

# Training examples per task: the weights of the t5 library. A task of size 0 is only evaluated.
GLUE = {
  "glue_cola": 8_551,
  "glue_sst2": 67_349,
  "glue_mrpc": 3_668,
  "glue_qqp": 363_849,
  "glue_stsb": 5_749,
  "glue_mnli": 392_702,
  "glue_qnli": 104_743,
  "glue_rte": 2_490,
  "glue_mnli_matched": 0,
  "glue_mnli_mismatched": 0,
  "glue_ax": 0,
}
SUPER_GLUE = {
  "super_glue_boolq": 9_427,
  "super_glue_cb": 250,
  "super_glue_copa": 400,
  "super_glue_multirc": 27_243,
  "super_glue_record": 138_854,
  "super_glue_rte": 2_490,
  "super_glue_wic": 5_428,
  "super_glue_wsc": 259,  # only the rows with the correct referent
  "dpr": 1_322,  # more pronoun resolution, as WSC is small
  "super_glue_axb": 0,
  "super_glue_axg": 0,
}


def mixing_rates(
  sizes: Mapping[str, float], maximum: float | None = None, temperature: float = 1.0
) -> dict[str, float]:
  """Returns min(size, maximum) ** (1 / temperature) for every task. Rates are relative: they need not sum to 1."""
  if temperature <= 0 or (maximum is not None and maximum <= 0):
    raise UserError("a mixture needs a positive temperature and maximum", temperature=temperature, maximum=maximum)
  return {
    task: float(size if maximum is None else min(size, maximum)) ** (1 / temperature) for task, size in sizes.items()
  }
