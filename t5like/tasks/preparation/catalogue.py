"""Resolves a name to data sets, and a data set to the reader of its files."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import seqio
import tensorflow_datasets as tfds

from t5like.errors import UserError, nearest
from t5like.tasks.preparation import (
  conll,
  glue,
  imdb,
  members,
  nli,
  pronouns,
  similarity,
  squad,
  super_glue,
  swag,
  translation,
  trec,
)
from t5like.tasks.preparation.datasets import Dataset, SourceSplit
from t5like.tasks.preparation.files import Folder

# TFDS names that refer to all of their configurations.
GROUPS = ("glue", "super_glue", "squad")
# File formats of data sets that are not in TFDS.
CUSTOM_FORMATS = ("conll", "text")

_READERS: dict[str, Callable[[Dataset, Folder], list[SourceSplit]]] = {
  "glue": glue.find_splits,
  "super_glue": super_glue.find_splits,
  "squad": squad.find_splits,
  "definite_pronoun_resolution": pronouns.find_splits,
  "conll2003": conll.find_conll2003,
  "wnut_17": conll.find_splits,
  "imdb_reviews": imdb.find_splits,
  "trec": trec.find_splits,
  "swag": swag.find_splits,
  "sick": similarity.find_sick,
  "sts": similarity.find_sts,
  "all_nli": nli.find_splits,
}

# Features of data sets that are not in TFDS, by configuration. Names and classes of wnut_17 are those of its public
# mirror.
NOT_IN_TFDS: dict[str, dict[str | None, Callable[[], tfds.features.FeaturesDict]]] = {
  "wnut_17": {None: functools.partial(conll.features, conll.WNUT_17_TAGS)},
  "swag": {None: swag.features},
  "sick": {None: similarity.sick_features},
  "sts": dict.fromkeys(similarity.YEARS, similarity.sts_features),
  "all_nli": {config: functools.partial(nli.features, config) for config in ("pairs", "triplets")},
}


def find_datasets(
  name: str, folder: Folder, custom_format: str | None = None, task_modules: Sequence[str] = ()
) -> list[Dataset]:
  """Returns the data sets of a TFDS name, a group, or a registered task that reads from TFDS."""
  title, _, version = name.partition(":")
  dataset_name, _, config = title.partition("/")
  if custom_format is not None:
    return [_custom(title, version or "1.0.0", custom_format, folder)]
  if dataset_name in NOT_IN_TFDS:
    configs = NOT_IN_TFDS[dataset_name]
    if config and config not in configs:
      raise _unknown_config(dataset_name, config, list(filter(None, configs)))
    wanted = [config] if config else list(configs)
    return [Dataset(dataset_name, each, version or "1.0.0", configs[each]()) for each in wanted]
  if dataset_name not in tfds.list_builders(with_community_datasets=False):
    return find_datasets(_tfds_name_of_task(name, task_modules), folder)
  builder_class = tfds.builder_cls(dataset_name)
  configs = list(builder_class.builder_configs)
  if dataset_name in GROUPS and not config:
    return [_official(dataset_name, each, version) for each in configs]
  if config and config not in configs:
    raise _unknown_config(dataset_name, config, configs)
  if len(configs) > 1 and not config:
    raise UserError(
      f"{dataset_name} has {len(configs)} configurations",
      known=", ".join(configs[:40]),
      try_=f"{dataset_name}/{configs[0]}",
    )
  return [_official(dataset_name, config or (configs[0] if configs else None), version)]


def find_splits(
  dataset: Dataset, folder: Folder, documents: str = "line", source_language: str | None = None
) -> list[SourceSplit]:
  """Returns the splits of a data set, including those whose files are missing."""
  if reader := _READERS.get(dataset.name):
    return reader(dataset, folder)
  if isinstance(dataset.features, tfds.features.Translation):
    return translation.find_splits(dataset, folder, source_language, documents)
  if "ner" in dataset.features and dataset.builder is None:
    return conll.find_splits(dataset, folder)
  return members.find_splits(dataset, folder, documents)


def _unknown_config(name: str, config: str, known: Sequence[str]) -> UserError:
  return UserError(
    f"{name} has no configuration {config!r}", nearest=nearest(config, known), known=", ".join(known[:40])
  )


@functools.lru_cache
def _official(name: str, config: str | None, version: str) -> Dataset:
  # A nonexistent folder, so that an already prepared data set does not determine the features.
  builder = tfds.builder_cls(name)(config=config, data_dir="/nonexistent")
  info = builder.info
  return Dataset(
    name,
    config,
    version or str(builder.version),
    info.features,
    builder,
    description=info.description,
    homepage=info.homepage,
    citation=info.citation,
  )


def _custom(name: str, version: str, custom_format: str, folder: Folder) -> Dataset:
  if custom_format not in CUSTOM_FORMATS:
    known = ", ".join(CUSTOM_FORMATS)
    raise UserError(f"no format {custom_format!r}", nearest=nearest(custom_format, CUSTOM_FORMATS), known=known)
  if not re.fullmatch("[a-z][a-z0-9_]*", name):
    raise UserError(f"invalid name of a TFDS data set: {name!r}", expected="lower-case letters, digits and _")
  if custom_format == "text":
    return Dataset(name, None, version, tfds.features.FeaturesDict({"text": tfds.features.Text()}))
  return Dataset(name, None, version, conll.features(conll.tags_of(conll.find_files(folder))))


def _tfds_name_of_task(name: str, task_modules: Sequence[str]) -> str:
  from t5like.tasks import registry

  known = registry.task_names(task_modules)
  if name not in known:
    candidates = [*known, *tfds.list_builders(with_community_datasets=False), *NOT_IN_TFDS]
    raise UserError(
      f"no data set or task {name!r}",
      nearest=nearest(name, candidates),
      try_=f"a TFDS name such as glue/sst2, a task from `t5like tasks list`, or --format={'|'.join(CUSTOM_FORMATS)} "
      "for your own files",
    )
  source = registry.find_task(name, task_modules).source
  if not isinstance(source, seqio.TfdsDataSource):
    raise UserError(
      f"task {name!r} does not read from TFDS", source=type(source).__name__, try_="it needs no preparation"
    )
  return source.tfds_dataset.name
