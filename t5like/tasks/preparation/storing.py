"""Writes prepared rows as a TFDS data set, atomically."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging

from t5like.errors import UserError
from t5like.files import storage
from t5like.files.data_card import PAGE, DataCard, DuplicateCounter, OriginCounter, text_hash, write_cards
from t5like.tasks.preparation import catalogue
from t5like.tasks.preparation.datasets import Dataset, KeyedRow, SourceSplit
from t5like.tasks.preparation.files import Folder
from t5like.tasks.preparation.official_sizes import OFFICIAL_SIZES

_UNFINISHED = ".t5like-preparing-"
_ROWS_BETWEEN_REPORTS = 10_000

# Called periodically with the split and the number of rows so far.
Progress = Callable[[str, int], None]


@dataclasses.dataclass(frozen=True)
class SplitReport:
  """A split: rows written (None if its files are missing, see `note`), and its published size."""

  split: str
  rows: int | None
  official: int | None
  note: str = ""

  @property
  def equal(self) -> bool:
    return self.rows is not None and self.rows == self.official


@dataclasses.dataclass(frozen=True)
class PreparationReport:
  """The result for one data set; `folder` is None if none of its files was found."""

  title: str
  folder: Path | None
  splits: tuple[SplitReport, ...]
  kept: bool = False  # already prepared, left unchanged

  def text(self, seconds: float) -> str:
    """Returns a table of rows written and the published size of each split."""
    if self.kept:
      return f"{self.title}: already prepared, kept (--force replaces it): {self.folder}"
    if self.folder is None:
      return f"{self.title}: no files found"
    lines = [f"{self.title}: {self.folder}  ({seconds:.1f} s)", f"  {'split':<22}{'rows':>12}{'official':>14}  equal"]
    for split in self.splits:
      rows = "absent" if split.rows is None else f"{split.rows:,}"
      official = "-" if split.official is None else f"{split.official:,}"
      equal = "" if split.rows is None or split.official is None else "yes" if split.equal else "no"
      lines.append(f"  {split.split:<22}{rows:>12}{official:>14}  {equal:<5}  {split.note}".rstrip())
    lines.append(f"  characters, duplicates and origins: {self.folder / PAGE}")
    return "\n".join(lines)


def prepare(
  dataset: Dataset,
  splits: Sequence[SourceSplit],
  out: str | Path,
  force: bool = False,
  progress: Progress | None = None,
) -> PreparationReport:
  """Stores the splits whose files exist under `out`; `force` replaces an earlier preparation."""
  out = Path(out).expanduser()
  final = out / dataset.folder
  present = [split for split in splits if split.rows]
  if not present:
    return PreparationReport(dataset.title, None, _absent(dataset, splits))
  if final.exists() and not force:
    raise UserError(f"{dataset.title} is already prepared", folder=final, try_="--force prepares it again")
  with _work_folder(out) as work:
    counters = {split.name: _Counter() for split in present}
    counts = _store(dataset, present, work, counters, progress)
    cards = [counters[name].card(dataset.title, name) for name in counts]
    write_cards(work / dataset.folder, cards)
    _move(work / dataset.folder, final, work)
  reports = []
  for split in splits:
    rows = counts.get(split.name)
    notes = [f"left out: {count:,} {reason}" for reason, count in split.left_out.items()]
    reports.append(
      SplitReport(
        split.name,
        rows,
        OFFICIAL_SIZES.get(dataset.title, {}).get(split.name),
        "; ".join(notes) if rows is not None else f"looked for {split.looked_for}",
      )
    )
  return PreparationReport(dataset.title, final, tuple(reports))


def prepare_all(
  name: str,
  source: str | Path,
  out: str | Path,
  *,
  files: dict[str, list[str]] | None = None,
  custom_format: str | None = None,
  documents: str = "line",
  source_language: str | None = None,
  force: bool = False,
  task_modules: Sequence[str] = (),
  progress: Progress | None = None,
) -> Iterator[PreparationReport]:
  """Prepares the data sets of `name`; for a group, those whose files are found."""
  named = catalogue.find_datasets(name, Folder(source, files), custom_format, task_modules)
  if files and len(named) > 1:
    raise UserError(f"{name} is {len(named)} data sets", try_=f"--files with one of them, such as {named[0].title}")
  folder = Folder(source, files, single=len(named) == 1)
  found_any = False
  for dataset in named:
    splits = catalogue.find_splits(dataset, folder, documents, source_language)
    if unknown := [split for split in folder.given if split not in [known.name for known in splits]]:
      raise UserError(
        f"{dataset.title} has no split {unknown[0]!r}", requested_by="--files", known=", ".join(s.name for s in splits)
      )
    final = Path(out).expanduser() / dataset.folder
    if len(named) > 1 and final.exists() and not force:
      found_any = True
      yield PreparationReport(dataset.title, final, (), kept=True)
      continue
    report = prepare(dataset, splits, out, force, progress)
    found_any = found_any or report.folder is not None
    if report.folder is None and len(named) == 1:
      raise UserError(
        f"no files of {dataset.title} in the folder",
        folder=folder.root,
        expected="\n".join(f"{split.name}: {split.looked_for}" for split in splits),
        try_="--files=train=PATH specifies them explicitly",
      )
    yield report
  if not found_any:
    raise UserError(f"no files of {name} in the folder", folder=folder.root, expected="the layout of its archives")


def _absent(dataset: Dataset, splits: Sequence[SourceSplit]) -> tuple[SplitReport, ...]:
  sizes = OFFICIAL_SIZES.get(dataset.title, {})
  return tuple(SplitReport(s.name, None, sizes.get(s.name), f"looked for {s.looked_for}") for s in splits)


class _Counter:
  """Counts what the data card of a split reports."""

  def __init__(self):
    self._duplicates, self._origins = DuplicateCounter(), OriginCounter()
    self._hashes: list[int] = []
    self._characters = 0

  def add(self, row: Mapping[str, Any]) -> None:
    self._hashes.append(text_hash(json.dumps(row, sort_keys=True, default=repr)))
    self._characters += sum(len(value) for value in row.values() if isinstance(value, str))
    self._origins.add(row)
    if len(self._hashes) == _ROWS_BETWEEN_REPORTS:
      self._flush()

  def card(self, name: str, split: str) -> DataCard:
    self._flush()
    return DataCard(
      name,
      split,
      self._origins.rows,
      characters=self._characters,
      duplicates=self._duplicates.report(),
      origins=self._origins.report(),
    )

  def _flush(self) -> None:
    self._duplicates.add(np.array(self._hashes, np.uint64))
    self._hashes = []


def _store(
  dataset: Dataset,
  splits: Sequence[SourceSplit],
  work: Path,
  counters: Mapping[str, _Counter],
  progress: Progress | None,
) -> dict[str, int]:
  """Writes under `work` in TFDS's order: rows sorted by a hash of split and key, in as many shards as needed."""
  tfds.disable_progress_bar()
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      builder = tfds.dataset_builders.store_as_tfds_dataset(
        name=dataset.name,
        config=dataset.config,
        version=dataset.version,
        features=dataset.features,
        split_datasets={s.name: _counted(s, counters[s.name], progress) for s in splits},
        data_dir=work,
        description=dataset.description,
        homepage=dataset.homepage,
        citation=dataset.citation,
      )
  finally:
    logging.set_verbosity(verbosity)
  return {name: info.num_examples for name, info in builder.info.splits.items()}


def _counted(split: SourceSplit, counter: _Counter, progress: Progress | None) -> Iterator[KeyedRow]:
  count = 0
  for count, row in enumerate(split.rows(split), 1):
    counter.add(row[1])
    yield row
    if progress and count % _ROWS_BETWEEN_REPORTS == 0:
      progress(split.name, count)
  if not count:
    raise UserError(f"the file of split {split.name!r} has no rows", file=split.looked_for)


@contextlib.contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
  """Creates a temporary folder next to the data sets, removes it on exit, and reports a full disk."""
  try:
    out.mkdir(parents=True, exist_ok=True)
    _clear_abandoned(out)
    work = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{socket.gethostname()}-{os.getpid()}-", dir=out))
  except OSError as error:
    raise UserError("cannot write the data sets", folder=out, because=error.strerror) from None
  try:
    yield work
  except Exception as error:
    if user_error := _in_chain(error, lambda e: isinstance(e, UserError)):
      raise user_error from None
    if _in_chain(error, _is_disk_full):
      free = shutil.disk_usage(out).free / 1e9
      raise UserError(
        "no space left on the disk", folder=out, free=f"{free:.2f} GB", try_="--out on another disk"
      ) from None
    raise
  finally:
    shutil.rmtree(work, ignore_errors=True)


def _in_chain(error: BaseException | None, matches) -> BaseException | None:
  while error is not None and not matches(error):
    error = error.__cause__ or error.__context__
  return error


def _is_disk_full(error: BaseException) -> bool:
  # TensorFlow's file system raises its own classes with the system's messages.
  messages = (os.strerror(number) for number in storage.DISK_FULL)
  return getattr(error, "errno", None) in storage.DISK_FULL or any(message in str(error) for message in messages)


def _clear_abandoned(out: Path) -> None:
  """Removes the temporary folders of killed runs on this machine."""
  for folder in out.glob(f"{_UNFINISHED}{socket.gethostname()}-*"):
    pid = folder.name.removeprefix(f"{_UNFINISHED}{socket.gethostname()}-").partition("-")[0]
    if pid.isdigit() and not _is_running(int(pid)):
      shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
  try:
    os.kill(pid, 0)
  except (ProcessLookupError, OverflowError):
    return False
  except PermissionError:
    pass  # another user's process
  return True


def _move(prepared: Path, final: Path, work: Path) -> None:
  final.parent.mkdir(parents=True, exist_ok=True)
  if final.exists():
    final.rename(work / "replaced")
  prepared.rename(final)
