"""Streams batches from seqio's pipeline, which runs in a separate process.

This keeps TensorFlow out of the training process, and a run need not wait for the pipeline when it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

from t5like import parallel
from t5like.data.layouts import LAYOUTS, Batch, Examples
from t5like.data.rows import to_batch
from t5like.errors import UserError
from t5like.experiments.experiment import Experiment
from t5like.experiments.languages import special_tokens
from t5like.experiments.phases import Phase
from t5like.files import storage
from t5like.files.child_processes import end_with_process, ending, without_main
from t5like.models.config import TransformerConfig
from t5like.objectives import Lengths, Objective
from t5like.tasks.quiet_start import load_seqio
from t5like.training.checkpoints import checkpoint_steps
from t5like.vocabularies import load_vocabulary

FOLDER = "stream"
_SETTINGS = "settings.json"
# Between the seeds of two starts; large, because seqio derives further seeds by counting up.
_SEED_STRIDE = 1_000_003

MISSING_GUARANTEES = """\
streamed through seqio, without a token cache and its guarantees:
- a batch is not a function of (seed, step): resuming needs the tf.data state saved with every checkpoint
- a different number of hosts gives different batches, and restarts the stream on resuming
- text is shuffled only within seqio's buffer, not over the full epoch; of a task smaller than the buffer, rows may
  repeat before all have been read
- rows per epoch, number of epochs and packing efficiency are not known in advance"""


@dataclasses.dataclass(frozen=True)
class StreamSettings:
  """Everything that batches depend on, as plain values to send to another process."""

  task: str
  split: str
  task_modules: Sequence[str]
  corpus_files: Mapping[str, str]
  vocabulary: str
  objective: Objective | None
  given_lengths: Mapping[str, int]
  lengths: Lengths
  layout: str
  config: TransformerConfig
  pack: bool
  rows: int  # of this host in a batch
  host: int
  hosts: int
  writes: bool = True  # of the processes that read the same stream, the first saves its state

  @classmethod
  def of(cls, experiment: Experiment, phase: Phase, mesh: jax.sharding.Mesh) -> StreamSettings:
    """Builds the settings of this process; processes that hold the same rows read the same stream."""
    host, hosts = parallel.shard_group(mesh)
    same = ("task", "split", "task_modules", "corpus_files", "vocabulary", "objective")
    return cls(
      **{name: getattr(experiment, name) for name in same},
      pack=experiment.packs,
      given_lengths=dict(experiment.lengths),
      lengths=phase.lengths,
      layout=experiment.train_layout,
      config=experiment.model.config,
      rows=phase.batch_size // hosts,
      host=host,
      hosts=hosts,
      writes=parallel.is_first_of_group(mesh),
    )

  def identity(self) -> dict[str, str]:
    """Returns what must be equal to resume from a saved state."""
    names = [field.name for field in dataclasses.fields(self) if field.name != "writes"]
    named = {name: repr(getattr(self, name)) for name in names}
    named["vocabulary"] = load_vocabulary(self.vocabulary).fingerprint
    return named | {library: version(library) for library in ("tensorflow", "seqio")}


class StreamProcess:
  """This host's stream of batches, with its state saved alongside the checkpoints.

  Nothing is prefetched on this side, so that the state matches the last trained step; tf.data prefetches, and saves
  what it has read.
  """

  def __init__(self, settings: StreamSettings, seed: int, model_dir: Path, step: int):
    """Opens the stream for a run that resumes after `step`, 0 for a new one."""
    self._model_dir, self._host, self._hosts = model_dir, settings.host, settings.hosts
    self._identity, self._writes = settings.identity(), settings.writes
    self._saved = step
    state, self._start = None, None
    if step and (reason := self._cannot_resume(step)):
      rows = step * settings.rows * settings.hosts
      self._start = f"the stream starts over, because {reason}: the first {rows:,} rows may repeat, in another order"
    elif step:
      state = self._state_folder(step)
      self._start = f"the stream resumes at step {step:,}"
    # A new seed: a stream restarted in the same order would repeat its first rows after every stop.
    self._seed = json.loads((state / _SETTINGS).read_text())["seed"] if state else (seed + step * _SEED_STRIDE) % 2**31
    if state and storage.is_remote(state):
      state = storage.download_tree(state, Path(tempfile.mkdtemp(prefix="t5like-stream-")))
    print(f"opening the seqio stream of task {settings.task!r} and reading its first batch ...", flush=True)
    context = multiprocessing.get_context("spawn")  # a fork of a process with JAX's threads may hang
    self._connection, theirs = context.Pipe()
    self._process = context.Process(target=_serve, args=(theirs, settings, self._seed, state), daemon=True)
    self._needs_main = b"__main__" in pickle.dumps(settings)  # an objective of the user's script
    with contextlib.nullcontext() if self._needs_main else without_main():
      self._process.start()
    theirs.close()
    self.close = weakref.finalize(self, _end, self._process, self._connection)  # at the latest when Python exits
    self._obstacle: str | None = self._answer()

  def describe(self) -> list[str]:
    """Returns lines for the run card: where the stream starts and whether it can be resumed."""
    lines = [self._start] if self._start else []
    if self._obstacle:
      lines.append(f"tf.data cannot save its state ({self._obstacle}): a resumed run restarts the stream")
    return lines

  def feed(self, mesh: jax.sharding.Mesh) -> Iterator[Mapping[str, jax.Array]]:
    """Yields batches on the devices, each read on demand."""
    while True:
      yield parallel.to_global_arrays(self._request("next"), mesh)

  def save(self, step: int) -> None:
    """Saves the state of the stream, before the checkpoint of `step`, so that no checkpoint is without it."""
    if step == self._saved or self._obstacle or not self._writes:
      return
    folder = self._state_folder(step)
    remote = storage.is_remote(folder)  # tf.data writes local files, which are uploaded afterwards
    fresh = Path(tempfile.mkdtemp(prefix="t5like-stream-")) if remote else folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    self._obstacle = self._request("save", fresh / "state")
    if self._obstacle:  # some pipelines can be saved only at times
      shutil.rmtree(fresh)
      print(f"step {step:,}: tf.data cannot save the state of the stream ({self._obstacle})", flush=True)
      return
    (fresh / _SETTINGS).write_text(json.dumps({"seed": self._seed, "identity": self._identity}))
    if remote:
      storage.upload_tree(fresh, folder, last=_SETTINGS)
      shutil.rmtree(fresh)
    else:
      shutil.rmtree(folder, ignore_errors=True)
      fresh.rename(folder)
    # Checkpoints are written in the background: that of the last save may not exist yet.
    kept = {step, self._saved, *checkpoint_steps(self._model_dir)}
    self._saved = step
    if self._host == 0:
      for old in folder.parents[1].iterdir():
        if old.name.isdigit() and int(old.name) not in kept:
          storage.remove_tree(old, ignore_errors=True)

  def _state_folder(self, step: int) -> Path:
    return self._model_dir / FOLDER / str(step) / f"host-{self._host}-of-{self._hosts}"

  def _cannot_resume(self, step: int) -> str | None:
    """Returns why the stream cannot resume from this step, or None."""
    folder = self._state_folder(step)
    if not (folder / _SETTINGS).is_file():
      others = sorted(other.name for other in folder.parent.glob("host-*-of-*[0-9]"))
      return f"its state was saved by other hosts ({others[0]})" if others else "its state was not saved at this step"
    saved = json.loads((folder / _SETTINGS).read_text())["identity"]
    changed = [name for name, value in self._identity.items() if saved.get(name) != value]
    return f"these settings have changed: {', '.join(changed)}" if changed else None

  def _request(self, *request: Any) -> Any:
    try:
      self._connection.send(request)
    except (BrokenPipeError, ConnectionResetError):
      raise self._died() from None
    return self._answer()

  def _answer(self) -> Any:
    try:
      answer = self._connection.recv()
    except (EOFError, ConnectionResetError):
      raise self._died() from None
    if isinstance(answer, Exception):
      raise answer
    return answer

  def _died(self) -> UserError:
    self._process.join(timeout=5)
    remedy = "run the same command again to resume from the last checkpoint"
    if self._needs_main:
      remedy = 'the objective in a module of its own, or the run below `if __name__ == "__main__":`'
    return UserError("the streaming process died", because=ending(self._process.exitcode), try_=remedy)


def _end(process: multiprocessing.process.BaseProcess, connection: Connection) -> None:
  connection.close()
  process.kill()
  process.join()


def _serve(connection: Connection, settings: StreamSettings, seed: int, state: Path | None) -> None:
  """Runs in the other process: opens the stream, reads the first batch, then serves requests."""
  for number in (signal.SIGINT, signal.SIGTERM):  # these reach all processes of a job; the run decides
    signal.signal(number, signal.SIG_IGN)
  end_with_process(multiprocessing.parent_process().pid, signal.SIGKILL)  # a pipeline may never return
  os.environ["JAX_PLATFORMS"] = "cpu"  # the devices belong to the run
  try:
    load_seqio()
    stream, batches = _open(settings, seed, state)
    first = next(batches)
    answer = stream.obstacle()
    while True:
      connection.send(answer)
      request, *arguments = connection.recv()
      if request == "save":
        answer = stream.save(*arguments)
      else:
        answer, first = next(batches) if first is None else first, None
  except (EOFError, BrokenPipeError, ConnectionResetError):
    pass  # the run has ended
  except UserError as error:
    connection.send(error)
  except Exception:
    connection.send(RuntimeError(f"in the streaming process\n{traceback.format_exc()}"))
  sys.stderr.flush()
  os._exit(0)  # a normal exit could wait forever for Python inside the pipeline


def _open(settings: StreamSettings, seed: int, state: Path | None) -> tuple[Any, Iterator[Batch]]:
  """Returns the stream, and its batches in the layout of the model."""
  from t5like.experiments.cache_building import register_files
  from t5like.tasks import registry, streaming

  if settings.corpus_files:
    register_files(settings.task, settings.corpus_files)
  found = registry.find_task_or_mixture(settings.task, settings.task_modules)
  vocabulary, objective = load_vocabulary(settings.vocabulary), settings.objective
  lengths = settings.given_lengths
  if objective is not None:
    # In seqio, rows of `shifted` objectives lack the first token, which our layout needs.
    lengths = {"inputs": lengths["inputs"] + int(objective.shifted)}
  stream = streaming.Stream(
    streaming.with_vocabulary(found, settings.split, vocabulary, objective),
    settings.split,
    lengths,
    settings.rows,
    seed,
    objective,
    pack=objective is None and settings.pack,
    shard=(settings.host, settings.hosts),
  )
  if state is not None:
    stream.restore(state / "state")
  special = special_tokens(settings.config, vocabulary, {})

  def batches() -> Iterator[Batch]:
    for streamed in stream:
      if objective is not None:
        yield to_batch(streamed.texts, objective, settings.lengths, special, settings.layout)
      else:
        texts = (streamed.texts.inputs, streamed.texts.targets)
        examples = Examples(*texts, settings.rows, streamed.row, special.padding)
        yield LAYOUTS[settings.layout](examples, settings.lengths, special.start)

  return stream, batches()
