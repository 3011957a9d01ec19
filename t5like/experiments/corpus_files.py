"""The files of one corpus by split, or of several named corpora, which are a mixture.

{"train": "diary/*.jsonl"}                                            one corpus
{"books": {"train": "books/*.jsonl"}, "wikipedia": {}}                several; {}: a registered corpus
{"{language}": {"train": "mc4/c4-{language}.tfrecord-*.json.gz"}}     one for each language that is found
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5like.errors import UserError
from t5like.files import storage

CorpusFiles = Mapping[str, str] | Mapping[str, Mapping[str, str]]
# Ends of the names of tasks whose files are labeled rows; those of others are a corpus.
ROW_FORMS = ("_embedding", "_text_to_text", "_classification", "_tagging", "_spans")
EXPECTED = "files by split, such as {'train': 'news/*.jsonl.gz'}, or a dict of those by name for several corpora"
_VARIABLE = re.compile(r"\{(\w+)\}")


def are_corpus_files(given: Any) -> bool:
  """Returns whether a value has the form of the files of one corpus, or of several."""
  if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
    return False
  values = given.values()
  return all(isinstance(v, str) and v.strip() for v in values) or all(
    isinstance(v, Mapping) and are_corpus_files(v) and not are_several(v) for v in values
  )


def are_several(files: CorpusFiles) -> bool:
  return any(isinstance(value, Mapping) for value in files.values())


def member_files(task: str, files: CorpusFiles) -> dict[str, dict[str, str]]:
  """Returns the files of each task in a mixture of several corpora; {} for a registered one."""
  if not are_several(files):
    return {}
  expanded = {name: own for given, splits in files.items() for name, own in _expanded(given, splits)}
  return {f"{task}.{name}" if own else name: own for name, own in expanded.items()}


def as_options(files: CorpusFiles) -> list[str]:
  """Returns the options of `t5like cache` for files."""
  options = []
  for name, value in files.items():
    if isinstance(value, Mapping):
      options += [f"--files={name}/{split}={pattern}" for split, pattern in value.items()] or [f"--files={name}/="]
    else:
      options.append(f"--files={name}={value}")
  return options


def from_options(given: Sequence[str]) -> dict[str, Any]:
  """Returns files from the values of `as_options`."""
  files: dict[str, Any] = {}
  for item in given:
    name, equals, pattern = item.partition("=")
    corpus, slash, split = name.rpartition("/")
    if not equals or not name or (not pattern and split):
      raise UserError(f"invalid --files: {item}", expected="SPLIT=FILES, or CORPUS/SPLIT=FILES for several corpora")
    if slash:
      files.setdefault(corpus, {}).update({split: pattern} if split else {})
    else:
      files[name] = pattern
  if not are_corpus_files(files):
    raise UserError("invalid --files: some name a corpus, others do not", given=" ".join(given))
  return files


def _expanded(name: str, files: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
  """Yields names and files, one for each value of the variable in them, if there is one."""
  variables = {*_VARIABLE.findall(name), *(v for pattern in files.values() for v in _VARIABLE.findall(pattern))}
  if not variables:
    yield name, dict(files)
    return
  if len(variables) > 1 or not all(map(_VARIABLE.search, [name, *files.values()])):
    raise UserError(f"invalid CORPUS_FILES: {name!r} (expected one variable, in the name and in all files)")
  (variable,) = variables
  patterns = {split: str(storage.as_path(pattern)) for split, pattern in files.items()}
  found: dict[str, dict[str, str]] = {}
  for split, pattern in patterns.items():
    # c4-af-validation.json matches c4-{language}.json and c4-{language}-validation.json: the longer one is meant.
    longer = [_regex(other) for other in patterns.values() if len(other) > len(pattern)]
    for path in storage.matching(_VARIABLE.sub("*", pattern)):
      match = _regex(pattern).fullmatch(path)
      if match and not any(other.fullmatch(path) for other in longer):
        found.setdefault(match[variable], {})[split] = pattern.replace(f"{{{variable}}}", match[variable])
  if not found:
    raise UserError("no files found for CORPUS_FILES", looked_for=", ".join(patterns.values()))
  yield from ((name.replace(f"{{{variable}}}", value), found[value]) for value in sorted(found))


def _regex(pattern: str) -> re.Pattern:
  """Returns a pattern of files as a regular expression; the variable is what its first place has."""
  text, known = "", set()
  for part in re.split(r"(\*|\?|\{\w+\})", pattern):
    if part in ("*", "?"):
      text += "[^/]" + part.replace("?", "")
    elif match := _VARIABLE.fullmatch(part):
      text += f"(?P={match[1]})" if match[1] in known else f"(?P<{match[1]}>[^/]+?)"
      known.add(match[1])
    else:
      text += re.escape(part)
  return re.compile(text)
