"""Builds the token cache of a task or mixture. Imports TensorFlow, so training runs it in a separate process."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t5like import data
from t5like.console import ProgressLine, duration
from t5like.data.cache import read_manifest
from t5like.data.cache_builder import (
  DEFAULT_LIMITS,
  CacheProgress,
  PieceBuilder,
  build_cache,
  cut_pieces,
  plan_cache,
  shard_name,
)
from t5like.errors import UserError
from t5like.experiments import cache_folders
from t5like.experiments.corpus_files import ROW_FORMS, CorpusFiles, are_several, member_files
from t5like.files import data_card
from t5like.files.data_card import OriginCounter
from t5like.files.source_files import same_identities
from t5like.files.storage import DEFAULT_ROOT
from t5like.tasks import mixtures, registry
from t5like.tasks.caching import finished_tokens, source_shards, text_pipeline
from t5like.tasks.caching.cache_kind import cache_kind
from t5like.tasks.caching.label_forms import label_form
from t5like.tasks.caching.row_origins import count_origins
from t5like.tasks.encoders.embeddings import register_texts
from t5like.tasks.encoders.own_questions import register_questions
from t5like.tasks.encoders.own_rows import register_classification, register_tags, register_text_to_text
from t5like.tasks.library.corpora import register_corpus
from t5like.tasks.missing_data import explain_data_errors
from t5like.vocabularies import load_vocabulary

if TYPE_CHECKING:
  import seqio

_LOG_EVERY = 2.0  # seconds between progress lines in a log
_REGISTER = register_texts, register_text_to_text, register_classification, register_tags, register_questions
_FORMS = dict(zip(ROW_FORMS, _REGISTER, strict=True))


@dataclasses.dataclass(frozen=True)
class CacheSettings:
  """The settings of a token cache.

  Attributes:
    task: a registered task or mixture.
    vocabulary: a vocabulary's name or file.
    root: the folder of all caches.
    workers: worker processes that tokenize; None: one per CPU; 0: tokenize in the process that reads.
    task_modules: modules to import, which register tasks.
    files: JSON Lines or text files by split; registers `task` as a corpus of these, or as a mixture of several
      corpora (corpus_files.py), whose rates are their numbers of tokens.
    lengths: of a row, for tasks whose preprocessors depend on them or work on tokens.
    evaluation: cache a task with random preprocessors (sampled once) for evaluation; otherwise it must be streamed.
    force: rebuild even if there is an up-to-date cache.
    beam_options: options of Apache Beam, if that distributes the work.
  """

  task: str
  vocabulary: str = "t5"
  split: str = "train"
  root: str = DEFAULT_ROOT
  workers: int | None = None
  task_modules: Sequence[str] = ()
  files: CorpusFiles = dataclasses.field(default_factory=dict)
  lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
  evaluation: bool = False
  force: bool = False
  beam_options: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class CacheJob:
  """A cache to build: its folder, its plan, and how to read and encode the parts of its source."""

  folder: Path
  plan: dict[str, Any]
  parts: Sequence[Callable[[], Any]]
  encode: Callable[..., Any] | None = None
  encode_examples: data.LabelEncoder | None = None
  origins: Callable[[], OriginCounter] = OriginCounter  # counts where rows of the source are from

  def shards_of(self, part: int, scratch: Path, only: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Builds the shards of a part of the source, or `only` some, in `scratch`/cache; yields their entries."""
    for name in ("cache", "entries", "hashes", "temporary"):
      (scratch / name).mkdir()
    builder = PieceBuilder.of(scratch, self.plan, self.encode, self.encode_examples)
    for number, (examples, _) in enumerate(cut_pieces(self.parts[part](), builder, DEFAULT_LIMITS)):
      name = shard_name(part, number, len(self.parts))
      if not only or name in only:
        yield builder(name, examples)


def register_files(task: str, files: CorpusFiles) -> None:
  """Registers files as a corpus, several corpora as a mixture; or as rows, whose form depends on the name's end."""
  members = member_files(task, files)
  for name, own in members.items():
    if own:
      register_corpus(name, own)
  if members:
    mixtures.register_mixture(task, list(members), "equal")
  else:
    end = next((end for end in _FORMS if task.endswith(end)), "")
    try:
      _FORMS.get(end, register_corpus)(task, files)
    except registry.NameTaken as taken:
      raise UserError(
        f"{task!r} is a task of its own, which the files cannot replace", try_=f"another name for the files: mine{end}"
      ) from taken


def find(settings: CacheSettings) -> seqio.Task | seqio.Mixture:
  """Returns the task or mixture, after registering its files."""
  if settings.files:
    register_files(settings.task, settings.files)
  return registry.find_task_or_mixture(settings.task, settings.task_modules)


def is_description_of(written: Mapping[str, Any], description: Mapping[str, Any]) -> bool:
  """Returns whether a cache's description is that of a task as it is now."""
  # Older caches do not record which other code the task uses, or the values that its objects hold.
  now = {name: value for name, value in description.items() if name in written or name not in ("uses", "values")}
  sources = [each.get("source_files") or [] for each in (written, now)]
  return written == now | {"source_files": written.get("source_files")} and same_identities(*sources)


Distribute = Callable[[CacheSettings, str, CacheJob], None]  # settings, the task's name, its job


def build_token_cache(
  settings: CacheSettings, report: Callable[[str], object] = print, distribute: Distribute | None = None
) -> Path:
  """Builds missing and stale caches. Returns the folder of the task.

  Args:
    settings: what to build.
    report: called with messages.
    distribute: builds a job elsewhere, such as beam_building.build_with_beam; None: processes of this machine.
  """
  found = find(settings)
  builder = TaskCacheBuilder(settings, report, distribute)
  return builder.build_mixture(found) if mixtures.is_mixture(found) else builder.build_task(found)


class TaskCacheBuilder:
  """Builds the caches of a task, or of the tasks of a mixture."""

  def __init__(
    self, settings: CacheSettings, report: Callable[[str], object] = print, distribute: Distribute | None = None
  ):
    self._settings, self._report, self._distribute = settings, report, distribute
    self._vocabulary = load_vocabulary(settings.vocabulary)

  def build_mixture(self, mixture: seqio.Mixture) -> Path:
    shares = [share for share in mixtures.shares(mixture, self._settings.split) if share.rate > 0]
    members = [registry.find_task(share.task) for share in shares]
    for task in members:
      self.build_task(task)
    folder = self._folder(mixture.name)
    rates = {share.task: share.rate for share in shares}
    if are_several(self._settings.files):
      rates = {name: float(read_manifest(self._folder(name), "")[0]["tokens"]) for name in rates}
    data.write_mixture(folder, rates)
    self._record(members, "mixture").write(folder)
    self._report(f"mixture of {len(shares)} tasks: {folder}")
    return folder

  def build_task(self, task: seqio.Task) -> Path:
    with explain_data_errors(task):
      registry.check_split(task, self._settings.split)
      kind = cache_kind(task, self._settings.split)
      if kind.name != "text":
        finished_tokens.check_features(task.name, task.output_features)
      record = self._record([task], kind.name, kind.why)
      if kind.name == "stream" and not self._settings.evaluation:
        self._report(f"task {task.name!r} must be streamed, nothing is cached: {kind.why}")
      else:
        self._build(task, self.job(task))
    record.write(self._folder(task.name))
    return self._folder(task.name)

  def job(self, task: seqio.Task) -> CacheJob:
    """Returns what the cache of a task is built from."""
    kind, folder = cache_kind(task, self._settings.split), self._folder(task.name)
    if kind.name == "text":
      return self._text_job(task, folder, {} if kind.appends_eos_after_trim else {"closing": dict(kind.closing)})
    if not self._settings.lengths:
      raise UserError(
        f"the token cache of task {task.name!r} depends on the lengths of rows",
        because=kind.why,
        try_="--lengths=inputs=512,targets=114",
      )
    return self._tokens_job(task, folder, kind.why)

  def _folder(self, name: str) -> Path:
    settings, files = self._settings, self._settings.files
    if are_several(files) and name != settings.task:
      files = self._members[name]
    plain = data.cache_folder(settings.root, name, settings.split, settings.vocabulary, self._vocabulary.fingerprint)
    return cache_folders.of_files(plain, name, files) if files else plain

  @functools.cached_property
  def _members(self) -> dict[str, dict[str, str]]:
    """The files of each task in a mixture of several corpora."""
    return member_files(self._settings.task, self._settings.files)

  def _record(self, tasks: Sequence[seqio.Task], kind: str, why: str = "") -> data.TaskRecord:
    code: dict[str, str] = {}
    libraries: dict[str, str] = {}
    for task in tasks:
      code |= text_pipeline.module_hashes(task, self._settings.task_modules)
      libraries |= text_pipeline.library_versions(task)
    scoring = {} if kind == "mixture" else text_pipeline.scoring(tasks[0])
    return data.TaskRecord(kind, why, code, libraries, scoring)

  def _text_job(self, task: seqio.Task, folder: Path, more: Mapping[str, Any]) -> CacheJob:
    split, form = self._settings.split, (label_form(task) or {}).get("name")
    features, encoder = text_pipeline.text_features(task, split), None
    if form in data.LABEL_FEATURES:
      features, encoder = data.LABEL_FEATURES[form], data.LabelEncoder(form, self._vocabulary)
      more = {**more, "form": form}
    if step := source_shards.why_whole(task, split):  # caches that were built in parts have other examples
      more, parts = {**more, "whole": step}, [task]
    else:
      parts = source_shards.split_by_shards(task, split)
    description = text_pipeline.describe(task, split) | dict(more)
    return CacheJob(
      folder,
      self._plan(task, features, self._vocabulary.vocab_size, description, more),
      [functools.partial(text_pipeline.text_examples, part, split) for part in parts],
      self._vocabulary.encode_batch,
      encoder,
      functools.partial(count_origins, task.source, split),
    )

  def _tokens_job(self, task: seqio.Task, folder: Path, why: str) -> CacheJob:
    """Returns the job of finished tokens, with the source as a single part, as preprocessors may join examples."""
    split, lengths = self._settings.split, self._settings.lengths
    adapted = finished_tokens.for_model(task, self._vocabulary)
    size = finished_tokens.id_limit(adapted, self._vocabulary)
    targets = finished_tokens.targets_vocabulary(adapted, self._vocabulary)
    described = text_pipeline.describe_tokens(adapted, split, lengths)
    more = {
      "finished": True,
      "why": why,
      "answers": finished_tokens.answer_kind(adapted),
      "targets_vocabulary": targets,
    }
    return CacheJob(
      data.finished_folder(folder, lengths),
      self._plan(
        task,
        finished_tokens.features(adapted, split, lengths),
        size,
        described | ({"targets_vocabulary": targets} if targets else {}),
        more,
      ),
      [functools.partial(finished_tokens.token_examples, adapted, split, lengths, size)],
    )

  def _plan(
    self,
    task: seqio.Task,
    features: Sequence[str],
    vocab_size: int,
    description: Mapping[str, Any],
    more: Mapping[str, Any],
  ) -> dict[str, Any]:
    name, fingerprint = self._settings.vocabulary, self._vocabulary.fingerprint
    vocabulary = {"name": name, "size": vocab_size, "fingerprint": fingerprint}
    return plan_cache(features, vocabulary, description, text_pipeline.scoring(task), more)

  def _build(self, task: seqio.Task, job: CacheJob) -> None:
    settings, folder, description = self._settings, job.folder, job.plan["description"]

    def waiting(holder: str) -> None:
      self._report(f"waiting for {holder}, which is building this cache ...")

    if self._is_current(folder, description):
      return
    with data.sole_builder(folder, waiting):
      if self._is_current(folder, description):  # another process has built it in the meantime
        return
      if self._settings.force:  # what an earlier attempt has read may have changed since
        data.forget_attempt(folder)
      if self._distribute:
        self._distribute(settings, task.name, job)
      else:
        workers = usable_cpus() if settings.workers is None else settings.workers
        with BuildProgress(task.num_input_examples(settings.split)) as progress:
          build_cache(
            folder,
            job.plan,
            job.parts,
            job.encode,
            workers=0 if job.encode is None else workers,
            progress=progress,
            encode_examples=job.encode_examples,
            origins=job.origins(),
          )
    self._report(f"token cache written: {folder}")
    self._report((folder / data_card.PAGE).read_text(encoding="utf-8"))

  def _is_current(self, folder: Path, description: Mapping[str, Any]) -> bool:
    """Returns whether there is an up-to-date cache with this description, and reports it."""
    if self._settings.force:
      return False
    try:
      written = data.describe_cache(folder)
    except UserError as error:
      if folder.exists():
        print(f"rebuilding the token cache: {error.what}", file=sys.stderr)
      return False
    current = is_description_of(written, description)
    if current:
      self._report(f"up to date: {folder}")
    return current


def usable_cpus() -> int:
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BuildProgress:
  """Shows examples, tokens, tokens/s and, if the number of examples is known, the time left."""

  def __init__(self, total: int | None):
    self._total = total
    self._started = time.monotonic()
    self._last: CacheProgress | None = None
    self._line = ProgressLine(log_every=_LOG_EVERY, eager=False, first_host_only=False)

  def __call__(self, done: CacheProgress) -> None:
    self._last = done
    self._line.show(self.text(done, time.monotonic() - self._started))

  def __enter__(self) -> BuildProgress:
    return self

  def __exit__(self, kind: type[BaseException] | None, *unused: object) -> None:
    if self._last and kind is None:
      self._line.show(self.text(self._last, time.monotonic() - self._started), final=True)
    self._line.end_line()

  def text(self, done: CacheProgress, seconds: float) -> str:
    total = f" of {self._total:,}" if self._total else ""
    speed = (done.tokens - done.resumed_tokens) / max(seconds, 1e-9)
    parts = [f"{done.examples:,}{total} examples", f"{done.tokens:,} tokens", f"{speed:,.0f} tokens/s"]
    fresh = done.examples - done.resumed_examples
    if self._total and fresh and done.examples < self._total:
      left = duration((self._total - done.examples) * seconds / fresh, spelled=True)
      parts.append(f"about {left} left")
    if done.resumed_tokens:
      parts.append(f"{done.resumed_tokens:,} tokens resumed from an earlier attempt")
    return "  " + ", ".join(parts)
