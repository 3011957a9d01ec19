"""Runs a suite with the worker of sweeps: resumable, and shared by all processes that see its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax

from t5like.ablations.suites.plan import SuiteCommand, check_earlier_results, plan_suite, suite_folder
from t5like.ablations.suites.probes import learned_mixes, probe_table
from t5like.ablations.suites.table import suite_table
from t5like.ablations.sweep.results import Result, read_results
from t5like.ablations.sweep.worker import Worker
from t5like.console import say
from t5like.files import storage

TABLE = "scores.txt"
_KIND = "suite"  # takes the place of a sweep's scale in result files


def run_suite(command: SuiteCommand, end_process: Callable[[int], object] | None = None) -> int:
  """Trains what is left of a suite, prints its table and writes it to its folder; returns the exit status.

  `end_process`: see `runs.train`.
  """
  folder, runs = suite_folder(command), plan_suite(command)
  check_earlier_results(folder, runs)
  status = Worker(folder, _KIND, runs, end_process=end_process).work()
  if status <= 1:  # not interrupted
    report(folder, [run.recipe for run in runs], probes=bool(command.suite.layers))
  return status


def report(folder: Path, recipes: list[str], probes: bool = False) -> None:
  """Prints the table of all results of these recipes and writes it to scores.txt."""

  def order(result: Result) -> tuple[int, int]:
    return recipes.index(result.recipe), result.seed

  found = sorted((result for result in read_results(folder) if result.recipe in recipes), key=order)
  if text := probe_table(found, learned_mixes(folder, found)) if probes else suite_table(found):
    say(text)
    if jax.process_index() == 0:
      storage.write_atomic(folder / TABLE, text + "\n")
