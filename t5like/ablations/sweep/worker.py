"""A worker of a sweep: takes runs that nobody else has, trains their parts in this process, writes results down."""

from __future__ import annotations

import contextlib
import datetime
import gc
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from t5like import parallel
from t5like.ablations.benchmarks import OTHER, group_of
from t5like.ablations.sweep.caches import build_caches, cached_sizes
from t5like.ablations.sweep.claims import Claim, Claims, held
from t5like.ablations.sweep.collect import collect, is_finished
from t5like.ablations.sweep.local_workers import DEVICE_LOST, device_share
from t5like.ablations.sweep.plan import Part, Planner, SweepRun, load_part
from t5like.ablations.sweep.results import (
  Failure,
  failure_path,
  read_failures,
  result_path,
  run_name,
  write_failure,
  write_result,
)
from t5like.ablations.sweep.settings import record_settings
from t5like.console import duration, say
from t5like.errors import UserError
from t5like.parallel.process_zero import run_on_process_zero
from t5like.runs import train
from t5like.training.records.goodput import Goodput

_WAIT = 2.0  # seconds between looks at what other workers hold
_DONE, _LATER = -1, -2  # no run is left; those left are in the hands of others


def prepare_sweep(planner: Planner) -> None:
  """Builds all token caches, then records the settings: a misspelled task must not bind the next command."""

  def prepare() -> int:
    build_caches(planner)
    record_settings(planner.sweep_dir, planner.requested)
    return 0

  run_on_process_zero(prepare)


def run_sweep(planner: Planner, end_process: Callable[[int], object] | None = None) -> int:
  """Does all runs of a prepared sweep that nobody else does; the exit status. `end_process` as in `runs.train`."""
  runs = planner.runs(cached_sizes(planner))
  return Worker(planner.sweep_dir, planner.settings.scale, runs, end_process=end_process).work()


class Interrupted(BaseException):
  """A signal ended a part, which has saved what it had. As KeyboardInterrupt, it is no failure."""

  def __init__(self, status: int):
    super().__init__(status)
    self.status = status


class Worker:
  """On several hosts the first one decides and writes for all."""

  def __init__(
    self,
    sweep_dir: Path,
    scale: str,
    runs: Sequence[SweepRun],
    claims: Claims | None = None,
    end_process: Callable[[int], object] | None = None,
  ):
    """Takes `end_process`, as `os._exit`, for runs that stand still: see `train_experiment`."""
    self._dir, self._scale, self._runs = sweep_dir, scale, list(runs)
    self._claims = claims or Claims(sweep_dir / "claims")
    self._began = time.time()
    self._claim: Claim | None = None
    self._end_process = end_process

  def work(self) -> int:
    """Goes on until every run has ended, by whomever; the exit status."""
    waiting = False
    while (number := run_on_process_zero(self._take)) != _DONE:
      if number == _LATER:
        if not waiting:
          say("all runs that are left are in the hands of other workers; waiting for them to end")
        waiting = True
        time.sleep(_WAIT)
        continue
      waiting = False
      claim, self._claim = self._claim, None
      with held(claim):
        try:
          finished = self._do(self._runs[number], claim)
        except Interrupted as interruption:
          say(f"interrupted in {self._runs[number].name}; the same command goes on from there")
          return interruption.status
        if not finished and not device_answers():
          say("the device no longer answers this process: it leaves the other runs alone. The same command goes on.")
          return DEVICE_LOST
    return self._report()

  def _take(self) -> int:
    """The number of a run that is now ours."""
    left = _DONE
    for number, run in enumerate(self._runs):
      if self._is_over(run):
        continue
      left = _LATER
      claim = self._claims.take(run.name)
      if claim is None:
        continue
      if self._is_over(run):  # its last holder ended between the two looks
        with claim:
          continue
      self._claim = claim
      return number
    return left

  def _is_over(self, run: SweepRun) -> bool:
    """Finished, or failed since this worker began: what failed before is tried again."""
    if result_path(self._dir, run.recipe, run.seed).is_file():
      return True
    failed = failure_path(self._dir, run.recipe, run.seed)
    return failed.is_file() and failed.stat().st_mtime >= self._began

  def _do(self, run: SweepRun, claim: Claim | None) -> bool:
    """Whether it ended in a result."""
    done = sum(result_path(self._dir, r.recipe, r.seed).is_file() for r in self._runs)
    say(f"[{done + 1}/{len(self._runs)}] {run.recipe}, seed {run.seed}")
    part = run.parts[0]
    try:
      for part in run.parts:
        self._train(part)
      result = collect(run, self._scale)
    except (Exception, SystemExit) as error:
      self._fail(run, part, error)
      return False
    if jax.process_index() == 0 and (claim is None or claim.is_ours):
      write_result(self._dir, result)
    others = "+".join(task for task in result.tasks if group_of(task) == OTHER)
    scores = ", ".join(f"{others if group == OTHER else group} {score:.2f}" for group, score in result.scores.items())
    say(f"  {scores or 'no scores'}; {duration(result.cost['total'].device_seconds)} of device time")
    return True

  def _train(self, part: Part) -> None:
    if is_finished(part):
      say(f"  {part.name}: finished before")
      return
    started = time.monotonic()
    log = part.model_dir.with_name(f"{part.name}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as out, contextlib.redirect_stdout(out):
      print(part.command)
      train_here(part, self._end_process)
    say(f"  {part.name}: {duration(time.monotonic() - started)}")

  def _fail(self, run: SweepRun, part: Part, error: BaseException) -> None:
    """Writes down what happened; the other runs go on."""
    text = error.render() if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    if jax.process_index() == 0:
      lines = traceback.format_exc()
      write_failure(self._dir, Failure(run.recipe, run.seed, self._scale, text, now, part.command, lines))
    say(f"  {part.name} failed: {text}")

  def _report(self) -> int:
    names = {run.name for run in self._runs}
    failures = [f for f in read_failures(self._dir) if run_name(f.recipe, f.seed) in names]
    finished = sum(result_path(self._dir, run.recipe, run.seed).is_file() for run in self._runs)
    say(f"{finished} of {len(self._runs)} runs are finished: {self._dir / 'results'}")
    for failure in failures:
      say(f"  failed: {failure.recipe}, seed {failure.seed}: {failure.error.splitlines()[0]}")
    return 1 if failures else 0


def device_answers() -> bool:
  """Whether this process can still compute. After some errors of a GPU nothing that it starts succeeds any more."""
  try:
    return float(jnp.ones(2).sum()) == 2.0
  except jax.errors.JaxRuntimeError:
    return False


def train_here(part: Part, end_process: Callable[[int], object] | None = None) -> None:
  """What `t5like train` does with this part's command, in this process; programs of earlier parts are let go."""
  goodput = Goodput(from_now=True, device_share=device_share())
  try:
    result = train(load_part(part), signals=parallel.stop_signals(), goodput=goodput, end_process=end_process)
    if result.signal is not None:
      raise Interrupted(128 + result.signal)
  finally:
    jax.clear_caches()
    gc.collect()
