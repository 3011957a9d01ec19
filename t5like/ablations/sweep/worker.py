"""A worker of a sweep: claims runs, trains their jobs in this process and writes the results."""

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
from t5like.ablations.sweep.claims import Claim, Claims
from t5like.ablations.sweep.collect import collect, is_finished
from t5like.ablations.sweep.local_workers import DEVICE_LOST, device_share
from t5like.ablations.sweep.plan import Planner, SweepRun, TrainJob, job_experiment
from t5like.ablations.sweep.results import (
  RESULTS,
  Failure,
  failure_path,
  read_failures,
  read_results,
  result_path,
  run_name,
  write_failure,
  write_result,
)
from t5like.ablations.sweep.settings import record_settings
from t5like.console import duration, say
from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.files import storage
from t5like.parallel.process_zero import run_on_process_zero
from t5like.runs import train_together

_POLL_SECONDS = 2.0  # while other workers hold the remaining runs
_DONE, _LATER = -1, -2  # no run is left; other workers hold those that are


def prepare_sweep(planner: Planner) -> None:
  """Builds all token caches, then records the settings: a misspelled task must not end up in sweep.json."""

  def prepare() -> None:
    with storage.write_errors("the sweep", folder=planner.sweep_dir, try_="another --sweep_dir"):
      (planner.sweep_dir / RESULTS).mkdir(parents=True, exist_ok=True)
    read_results(planner.sweep_dir)  # raises if one is damaged: it would count as finished
    build_caches(planner)
    record_settings(planner.sweep_dir, planner.requested)

  run_on_process_zero(prepare)


def run_sweep(planner: Planner, end_process: Callable[[int], object] | None = None, together: int = 1) -> int:
  """Works on a prepared sweep and returns the exit status. `end_process`: see `runs.train`."""
  runs = planner.runs(cached_sizes(planner))
  worker = Worker(planner.sweep_dir, planner.settings.scale, runs, end_process=end_process, together=together)
  return worker.work()


class Interrupted(BaseException):
  """Raised when a signal ended a job after a checkpoint. Like KeyboardInterrupt, it is not a failure."""

  def __init__(self, status: int):
    super().__init__(status)
    self.status = status


class Worker:
  """Trains the runs of a sweep; with several hosts, process 0 decides and writes for all."""

  def __init__(
    self,
    sweep_dir: Path,
    scale: str,
    runs: Sequence[SweepRun],
    claims: Claims | None = None,
    end_process: Callable[[int], object] | None = None,
    together: int = 1,
  ):
    """Takes the runs of a sweep, up to `together` of which train in one program.

    `end_process`, such as `os._exit`, ends runs that hang: see `runs.train`.
    """
    self._dir, self._scale, self._runs = sweep_dir, scale, list(runs)
    self._claims = claims or Claims(sweep_dir / "claims")
    self._started = time.time()
    self._claim: Claim | None = None
    self._pretraining: list[Claim] = []  # on the pre-trainings of the runs just claimed
    if together > 1 and jax.process_count() > 1:
      raise UserError("--together is for one machine", found=f"{jax.process_count()} hosts", try_="no --together")
    self._end_process, self._together = end_process, together

  def work(self) -> int:
    """Works until every run has ended, in this or another worker; returns the exit status."""
    waiting = False
    while (number := run_on_process_zero(self._take)) != _DONE:
      if number == _LATER:
        if not waiting:
          say("other workers hold all remaining runs; waiting for them to finish")
        waiting = True
        time.sleep(_POLL_SECONDS)
        continue
      waiting = False
      claim, self._claim = self._claim, None
      claims = {number: claim} | self._take_alike(number)
      with contextlib.ExitStack() as holding:
        for each in filter(None, claims.values()):  # on a pod, only process 0 has one
          holding.enter_context(each)
        try:
          finished = self._do([self._runs[n] for n in claims], list(claims.values()))
        except Interrupted as interruption:
          names = ", ".join(self._runs[n].name for n in claims)
          say(f"interrupted in {names}; run the same command to resume")
          return interruption.status
        if not finished and not device_answers():
          say("the device no longer responds; exiting with the other runs untouched. Run the same command to resume.")
          return DEVICE_LOST
    return self._report()

  def _take(self) -> int:
    """Claims a run and returns its number, or _DONE or _LATER."""
    left = _DONE
    for number, run in enumerate(self._runs):
      if self._is_over(run):
        continue
      left = _LATER
      self._claim = self._claim_on(run)
      if self._claim is not None:
        return number
    return left

  def _take_alike(self, number: int) -> dict[int, Claim]:
    """Claims other runs of the same shape, the seeds of the same recipe first; returns their claims by number."""
    first, found = self._runs[number], {}
    alike = [
      n for n, run in enumerate(self._runs) if n != number and run.shape is not None and run.shape == first.shape
    ]
    for n in sorted(alike, key=lambda n: self._runs[n].recipe != first.recipe):
      if len(found) + 1 >= self._together:
        break
      if not self._is_over(self._runs[n]) and (claim := self._claim_on(self._runs[n])) is not None:
        found[n] = claim
    return found

  def _claim_on(self, run: SweepRun) -> Claim | None:
    """Returns the claim on a run, or None while another worker holds it or pre-trains what it starts from."""
    pretraining = run.pretraining if run.pretraining and not is_finished(run.pretraining) else None
    name = f"{pretraining.model_dir.parent.name}.{pretraining.name}" if pretraining else ""
    if pretraining and self._claims.holder(name) is not None:
      return None
    claim = self._claims.take(run.name)
    if claim is None:
      return None
    first = self._claims.take(name) if pretraining else None
    # Its last holder finished, or another worker began the pre-training, between the checks.
    if self._is_over(run) or (pretraining and first is None):
      with claim, first or contextlib.nullcontext():
        return None
    if first is not None:
      self._pretraining.append(first)
    return claim

  def _is_over(self, run: SweepRun) -> bool:
    """Returns whether a run is finished, or failed since this worker started: earlier failures are retried."""
    if result_path(self._dir, run.recipe, run.seed).is_file():
      return True
    failed = failure_path(self._dir, run.recipe, run.seed)
    return failed.is_file() and failed.stat().st_mtime >= self._started

  def _do(self, runs: Sequence[SweepRun], claims: Sequence[Claim | None]) -> bool:
    """Trains runs of one shape and returns whether all produced a result."""
    done = sum(result_path(self._dir, r.recipe, r.seed).is_file() for r in self._runs)
    say(f"[{done + 1}/{len(self._runs)}] " + "; ".join(f"{run.recipe}, seed {run.seed}" for run in runs))
    left = dict(enumerate(runs))
    with contextlib.ExitStack() as pretraining:
      while self._pretraining:
        pretraining.enter_context(self._pretraining.pop())
      for stage in range(len(runs[0].jobs)):
        jobs = {n: run.jobs[stage] for n, run in left.items()}
        for n, error in zip(jobs, self._train(list(jobs.values())), strict=True):
          if error is not None:
            self._fail(left.pop(n), jobs[n], error)
        if not left:
          return False
        pretraining.close()  # other workers may start from it now
    finished = [self._finish(run, claims[n]) for n, run in left.items()]
    return len(finished) == len(runs) and all(finished)

  def _finish(self, run: SweepRun, claim: Claim | None) -> bool:
    """Collects the result of a run whose jobs are finished."""
    try:
      result = collect(run, self._scale)
    except (Exception, SystemExit) as error:
      self._fail(run, run.jobs[-1], error)
      return False
    if jax.process_index() == 0 and (claim is None or claim.is_ours):
      write_result(self._dir, result)
    others = "+".join(task for task in result.tasks if group_of(task) == OTHER)
    scores = ", ".join(f"{others if group == OTHER else group} {score:.2f}" for group, score in result.scores.items())
    say(f"  {scores or 'no scores'}; {duration(result.cost['total'].device_seconds)} of device time")
    return True

  def _train(self, jobs: Sequence[TrainJob]) -> list[BaseException | None]:
    """Trains the same job of several runs and returns their errors."""
    left = [job for job in jobs if not is_finished(job)]
    if len(left) < len(jobs):
      say(f"  {jobs[0].name}: already finished" + (f" in {len(jobs) - len(left)} runs" if left else ""))
    if not left:
      return [None] * len(jobs)
    started = time.monotonic()
    logs = [job.model_dir.with_name(f"{job.name}.log") for job in left]
    for log, job in zip(logs, left, strict=True):
      log.parent.mkdir(parents=True, exist_ok=True)
      with log.open("a", encoding="utf-8") as out:
        out.write(job.command + ("\n" if log is logs[0] else f"\ntrained together with others: see {logs[0]}\n"))
    with logs[0].open("a", encoding="utf-8") as out, contextlib.redirect_stdout(out):
      try:
        errors = train_here(left, self._end_process)
      except (Exception, SystemExit) as error:
        errors = [error] * len(left)
    say(f"  {left[0].name}: {duration(time.monotonic() - started)}")
    found = {job.model_dir: error for job, error in zip(left, errors, strict=True)}
    return [found.get(job.model_dir) for job in jobs]

  def _fail(self, run: SweepRun, job: TrainJob, error: BaseException) -> None:
    """Records the failure; the other runs continue."""
    text = error.render() if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    if jax.process_index() == 0:
      lines = "".join(traceback.format_exception(error))
      write_failure(self._dir, Failure(run.recipe, run.seed, self._scale, text, now, job.command, lines))
    say(f"  {job.name} failed: {text}")

  def _report(self) -> int:
    names = {run.name for run in self._runs}
    failures = [f for f in read_failures(self._dir) if run_name(f.recipe, f.seed) in names]
    finished = sum(result_path(self._dir, run.recipe, run.seed).is_file() for run in self._runs)
    say(f"{finished} of {len(self._runs)} runs finished: {self._dir / 'results'}")
    for failure in failures:
      say(f"  failed: {failure.recipe}, seed {failure.seed}: {failure.error.splitlines()[0]}")
    return 1 if failures else 0


def device_answers() -> bool:
  """Returns whether this process can still compute: some GPU errors are permanent until a restart."""
  try:
    return float(jnp.ones(2).sum()) == 2.0
  except jax.errors.JaxRuntimeError:
    return False


def train_here(
  jobs: Sequence[TrainJob], end_process: Callable[[int], object] | None = None
) -> list[BaseException | None]:
  """Runs jobs in this process as `t5like train` would, those of one shape in one program; returns their errors.

  Frees their compiled programs.
  """
  errors: list[BaseException | None] = [None] * len(jobs)
  experiments: dict[int, Experiment] = {}
  for n, job in enumerate(jobs):
    try:
      experiments[n] = job_experiment(job)
    except (Exception, SystemExit) as error:
      errors[n] = error
  try:
    results = train_together(
      list(experiments.values()),
      signals=parallel.stop_signals(),
      device_share=device_share(),
      end_process=end_process,
    )
  finally:
    jax.clear_caches()
    gc.collect()
  for n, result in zip(experiments, results, strict=True):
    if isinstance(result, BaseException):
      errors[n] = result
    elif result is not None and result.signal is not None:
      raise Interrupted(128 + result.signal)
  return errors
