"""A run that streams: batches come from seqio's own pipeline, which runs in a process of its own.

TensorFlow then stays out of the training process here too, and a run need not wait for the pipeline when it ends.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
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
from t5like.experiments.phases import Phase
from t5like.files import storage
from t5like.objectives import Lengths, Objective, SpecialTokens
from t5like.tasks.quiet_start import load_seqio
from t5like.training.checkpoints import checkpoint_steps
from t5like.vocabularies import load_vocabulary

FOLDER = "stream"
_SETTINGS = "settings.json"
# Far from each other: seqio counts on from a seed.
_STRIDE = 1_000_003

MISSING_GUARANTEES = """\
streamed through seqio, without a token cache. What a cache would guarantee is missing:
- a batch is not a function of (seed, step): resuming needs the place that tf.data saves with every checkpoint
- another number of hosts gives other batches, and starts the stream over on resuming
- text is shuffled within seqio's buffer only, not over the whole epoch
- an epoch's rows, how often they are met and how full packed rows are is not known beforehand"""


@dataclasses.dataclass(frozen=True)
class StreamSettings:
  """All that batches depend on; plain values, for another process to open the stream with."""

  task: str
  split: str
  task_modules: Sequence[str]
  corpus_files: Mapping[str, str]
  vocabulary: str
  objective: Objective | None
  given_lengths: Mapping[str, int]
  lengths: Lengths
  layout: str
  pack: bool
  rows: int  # of this host in a batch
  host: int
  hosts: int

  @classmethod
  def of(cls, experiment: Experiment, phase: Phase, mesh: jax.sharding.Mesh) -> StreamSettings:
    """Processes that hold the same rows read the same stream."""
    host, hosts = parallel.shard_group(mesh)
    same = ("task", "split", "task_modules", "corpus_files", "vocabulary", "objective")
    return cls(
      **{name: getattr(experiment, name) for name in same},
      pack=experiment.packs,
      given_lengths=dict(experiment.lengths),
      lengths=phase.lengths,
      layout=experiment.model.batch_layout,
      rows=phase.batch_size // hosts,
      host=host,
      hosts=hosts,
    )

  def identity(self) -> dict[str, str]:
    """A saved place is of use only to a stream of the same identity."""
    named = {field.name: repr(getattr(self, field.name)) for field in dataclasses.fields(self)}
    named["vocabulary"] = load_vocabulary(self.vocabulary).fingerprint
    return named | {library: version(library) for library in ("tensorflow", "seqio")}


class StreamProcess:
  """This host's stream: batches one by one, and its place saved beside the checkpoints.

  Nothing is read ahead on this side, so that the place belongs to the step that was trained last; tf.data itself
  reads ahead, and saves what it has read.
  """

  def __init__(self, settings: StreamSettings, seed: int, model_dir: Path, step: int):
    """Opens the stream for a run that goes on after `step`, 0 for a new one."""
    self._model_dir, self._host, self._hosts = model_dir, settings.host, settings.hosts
    self._identity = settings.identity()
    self._saved = step
    place, self._start = None, None
    if step and (lost := self._lost(step)):
      rows = step * settings.rows * settings.hosts
      self._start = f"the stream starts over, as {lost}: the {rows:,} rows before may come again, in another order"
    elif step:
      place = self._place(step)
      self._start = f"the stream goes on from its place at step {step:,}"
    # A stream that starts over in the order of before would show the same beginning after every stop.
    self._seed = json.loads((place / _SETTINGS).read_text())["seed"] if place else (seed + step * _STRIDE) % 2**31
    if place and storage.is_remote(place):
      place = storage.download_tree(place, Path(tempfile.mkdtemp(prefix="t5like-stream-")))
    print(f"opening the stream of task {settings.task!r} with seqio, up to its first batch ...", flush=True)
    context = multiprocessing.get_context("spawn")  # a fork of a process with JAX's threads may hang
    self._connection, theirs = context.Pipe()
    self._process = context.Process(target=_serve, args=(theirs, settings, self._seed, place), daemon=True)
    self._process.start()
    theirs.close()
    self.close = weakref.finalize(self, _end, self._process, self._connection)  # at the latest when Python ends
    self._obstacle: str | None = self._answer()

  def describe(self) -> list[str]:
    """Where it starts and whether it can be resumed: lines for the run card."""
    lines = [self._start] if self._start else []
    if self._obstacle:
      lines.append(f"tf.data cannot save its place ({self._obstacle}): a run that is resumed starts the stream over")
    return lines

  def feed(self, mesh: jax.sharding.Mesh) -> Iterator[Mapping[str, jax.Array]]:
    """Batches on the devices, each fetched when it is asked for."""
    while True:
      yield parallel.to_global_arrays(self._ask("next"), mesh)

  def save(self, step: int) -> None:
    """Saves the place of the stream; before the checkpoint of `step`, so that no checkpoint is without it."""
    if step == self._saved or self._obstacle:
      return
    place = self._place(step)
    remote = storage.is_remote(place)  # tf.data writes files: they are sent afterwards
    fresh = Path(tempfile.mkdtemp(prefix="t5like-stream-")) if remote else place.with_name(f"{place.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    self._obstacle = self._ask("save", fresh / "state")
    if self._obstacle:  # some pipelines can be saved at one time and not at another
      shutil.rmtree(fresh)
      print(f"step {step:,}: tf.data cannot save the place of the stream ({self._obstacle})", flush=True)
      return
    (fresh / _SETTINGS).write_text(json.dumps({"seed": self._seed, "identity": self._identity}))
    if remote:
      storage.upload_tree(fresh, place, last=_SETTINGS)
      shutil.rmtree(fresh)
    else:
      shutil.rmtree(place, ignore_errors=True)
      fresh.rename(place)
    # A checkpoint is written in the background: that of the last save may not be there yet.
    kept = {step, self._saved, *checkpoint_steps(self._model_dir)}
    self._saved = step
    if self._host == 0:
      for old in place.parents[1].iterdir():
        if old.name.isdigit() and int(old.name) not in kept:
          storage.remove_tree(old, ignore_errors=True)

  def _place(self, step: int) -> Path:
    return self._model_dir / FOLDER / str(step) / f"host-{self._host}-of-{self._hosts}"

  def _lost(self, step: int) -> str | None:
    """Why the stream cannot go on from what was saved at this step."""
    place = self._place(step)
    if not (place / _SETTINGS).is_file():
      others = sorted(other.name for other in place.parent.glob("host-*-of-*[0-9]"))
      return f"its place was saved by other hosts ({others[0]})" if others else "its place was not saved at this step"
    saved = json.loads((place / _SETTINGS).read_text())["identity"]
    changed = [name for name, value in self._identity.items() if saved.get(name) != value]
    return f"these changed since its place was saved: {', '.join(changed)}" if changed else None

  def _ask(self, *order: Any) -> Any:
    try:
      self._connection.send(order)
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
    status = self._process.exitcode
    how = signal.Signals(-status).name if status and status < 0 else f"status {status}"
    return UserError(
      "the process that streams ended unexpectedly",
      because=f"{how}, perhaps for lack of memory" if how == "SIGKILL" else how,
      try_="the same command goes on from the last checkpoint",
    )


def _end(process: multiprocessing.process.BaseProcess, connection: Connection) -> None:
  connection.close()
  process.kill()
  process.join()


def _serve(connection: Connection, settings: StreamSettings, seed: int, place: Path | None) -> None:
  """The other process: opens the stream, makes the first batch, and then does as it is told."""
  for number in (signal.SIGINT, signal.SIGTERM):  # these reach all processes of a job; the run decides
    signal.signal(number, signal.SIG_IGN)
  os.environ["JAX_PLATFORMS"] = "cpu"  # the devices are the run's
  try:
    load_seqio()
    stream, batches = _open(settings, seed, place)
    first = next(batches)
    answer = stream.obstacle()
    while True:
      connection.send(answer)
      order, *given = connection.recv()
      if order == "save":
        answer = stream.save(*given)
      else:
        answer, first = next(batches) if first is None else first, None
  except (EOFError, BrokenPipeError, ConnectionResetError):
    pass  # the run has ended
  except UserError as error:
    connection.send(error)
  except Exception:
    connection.send(RuntimeError(f"in the process that streams\n{traceback.format_exc()}"))
  sys.stderr.flush()
  os._exit(0)  # an orderly end might wait for ever on Python inside the pipeline


def _open(settings: StreamSettings, seed: int, place: Path | None) -> tuple[Any, Iterator[Batch]]:
  """The stream, and its batches in the layout of the model."""
  from t5like.tasks import registry, streaming
  from t5like.tasks.library.corpora import register_corpus

  if settings.corpus_files:
    register_corpus(settings.task, settings.corpus_files)
  found = registry.find_task_or_mixture(settings.task, settings.task_modules)
  vocabulary, objective = load_vocabulary(settings.vocabulary), settings.objective
  lengths = settings.given_lengths
  if objective is not None:
    # seqio users get the rows of `shifted` objectives without the token in front, which our layout needs.
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
  if place is not None:
    stream.restore(place / "state")
  special = SpecialTokens.of(vocabulary)

  def batches() -> Iterator[Batch]:
    for streamed in stream:
      if objective is not None:
        yield to_batch(streamed.texts, objective, settings.lengths, special, settings.layout)
      else:
        examples = Examples(streamed.texts.inputs, streamed.texts.targets, settings.rows, streamed.row)
        yield LAYOUTS[settings.layout](examples, settings.lengths, special.start)

  return stream, batches()
