"""Named entity recognition as text: CoNLL-2003, WNUT-17 and custom CoNLL files.

`ner_text` describes the format and parses it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.tasks import metrics, preprocessors
from t5like.tasks.library import ner_text
from t5like.tasks.preparation import conll
from t5like.tasks.registry import default_features, register_task

# Tags in the order of class numbers, as in TFDS and Hugging Face.
TAGS = {
  "conll2003": ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"),
  "wnut_17": conll.WNUT_17_TAGS,
}
# A pre-trained model knows these words better than the abbreviations.
TYPE_NAMES = {"PER": "person", "ORG": "organization", "LOC": "location", "MISC": "miscellaneous"}


@seqio.map_over_dataset
def tagged_text(
  example: dict[str, tf.Tensor],
  tags_key: str = "tags",
  tag_names: Sequence[str] | None = None,
  type_names: Mapping[str, str] | None = None,
) -> dict[str, tf.Tensor]:
  """Formats the tokens as `ner: ...`; in the target, entities are in brackets with their type.

  Tags are strings, or indices into `tag_names`, in IOB1, IOB2 or IOBES. `type_names` maps entity types
  to the words used in the text.
  """
  tags = example[tags_key]  # [tokens]
  if tag_names:
    tags = tf.gather(list(tag_names), tags)
  kinds = tf.strings.regex_replace(tags, "^(?:[BIESLU]-|O$)", "")  # '' outside
  inside = tf.not_equal(kinds, "")
  continues = inside & tf.equal(kinds, tf.concat([[""], kinds[:-1]], 0))
  continues &= ~tf.strings.regex_full_match(tags, "[BSU]-.*")
  ends = inside & ~tf.concat([continues[1:], [False]], 0)

  for kind, name in (type_names or {}).items():
    kinds = tf.where(tf.equal(kinds, kind), name, kinds)
  words = _as_words(example["tokens"])
  before = tf.where(inside & ~continues, f"{ner_text.OPEN} ", "")
  after = tf.where(ends, tf.strings.join([f" {ner_text.BAR} ", kinds, f" {ner_text.CLOSE}"]), "")
  marked = tf.strings.join([before, words, after])
  return {
    "inputs": tf.strings.join(["ner: ", tf.strings.reduce_join(words, separator=" ")]),
    "targets": tf.strings.reduce_join(marked, separator=" "),
    "tokens": example["tokens"],
  }


def _as_words(tokens: tf.Tensor) -> tf.Tensor:
  words = tf.strings.regex_replace(tokens, ner_text.NOT_IN_A_WORD, ner_text.FILLER)
  for mark, written in ner_text.WRITTEN_AS.items():
    words = tf.strings.regex_replace(words, re.escape(mark), written)
  return words


def read_conll(
  path: str | Path, token_column: int = 0, tag_column: int = -1, comment: str | None = None, encoding: str = "utf-8"
) -> Iterator[tuple[list[str], list[str]]]:
  """Yields tokens and tags of every sentence: one token per line, columns separated by tabs or else spaces.

  Sentences are separated by blank lines. `-DOCSTART-` lines and those that start with `comment` are skipped.
  """
  tokens: list[str] = []
  tags: list[str] = []
  try:
    lines = Path(path).read_text(encoding=encoding).split("\n")
  except UnicodeDecodeError as error:
    raise UserError(f"{path} is not {encoding}", because=error, try_='encoding="latin-1"') from None
  for number, line in enumerate(lines, 1):
    line = line.rstrip(" \t\r").removeprefix("\ufeff")
    if comment and line.startswith(comment):
      continue
    if not line.strip() or line.startswith("-DOCSTART-"):
      if tokens:
        yield tokens, tags
      tokens, tags = [], []
      continue
    # Not split(): it would split a token at any Unicode space.
    columns = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
    try:
      token, tag = columns[token_column], columns[tag_column]
    except IndexError:
      token = tag = ""
    if not tag or len(columns) < 2:
      raise UserError(
        "a line has no tag",
        file=f"{path}:{number}",
        found=line,
        expected=f"a token in column {token_column} and its tag in column {tag_column}, counted from 0",
      )
    tokens.append(token)
    tags.append(tag.strip())
  if tokens:
    yield tokens, tags


class ConllSource(seqio.FunctionDataSource):
  """Sentences of CoNLL files as `tokens` and `tags`.

  `files` maps a split to its file; `reading` is passed to `read_conll`.
  """

  def __init__(self, files: Mapping[str, str | Path], **reading: Any):
    self.files = {split: str(path) for split, path in files.items()}
    self.fields = reading
    super().__init__(self._dataset, splits=list(files))

  def _dataset(self, split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    del shuffle_files, seed  # a split is one file
    path = self.files[split]
    if not Path(path).is_file():
      raise UserError(f"the file of split {split!r} is missing", file=path)
    # Read eagerly, so that a bad line raises UserError and not TensorFlow's; such files are small.
    sentences = list(read_conll(path, **self.fields))
    if not sentences:
      raise UserError(f"the file of split {split!r} has no sentences", file=path)
    tokens, tags = zip(*sentences, strict=True)
    lengths = [len(sentence) for sentence in tokens]
    columns = {"tokens": tokens, "tags": tags}
    return tf.data.Dataset.from_tensor_slices(
      {
        name: tf.RaggedTensor.from_row_lengths([word for sentence in column for word in sentence], lengths)
        for name, column in columns.items()
      }
    )


def register_ner(
  name: str,
  files: Mapping[str, str | Path],
  token_column: int = 0,
  tag_column: int = -1,
  comment: str | None = None,
  encoding: str = "utf-8",
  type_names: Mapping[str, str] | None = None,
) -> seqio.Task:
  """Registers named entity recognition over CoNLL files: `files` maps a split to its file."""
  source = ConllSource(files, token_column=token_column, tag_column=tag_column, comment=comment, encoding=encoding)
  return _register(name, source, tagged_text, type_names)


def _register(name: str, source: seqio.DataSource, to_text, type_names: Mapping[str, str] | None) -> seqio.Task:
  return register_task(
    name,
    source=source,
    preprocessors=preprocessors.text_to_text(functools.partial(to_text, type_names=type_names)),
    output_features=default_features(),
    postprocess_fn=functools.partial(ner_text.tags_of_text, type_names=type_names),
    metric_fns=[metrics.entity_f1],
  )


# Reuters news (Tjong Kim Sang and De Meulder 2003). TFDS calls its validation split `dev`.
_register(
  "conll2003",
  seqio.TfdsDataSource("conll2003:1.0.0", splits={"train": "train", "validation": "dev", "test": "test"}),
  functools.partial(tagged_text, tags_key="ner", tag_names=TAGS["conll2003"]),
  TYPE_NAMES,
)
# Unusual and emerging entities (Derczynski et al. 2017). It is not in TFDS: use `t5like tasks prepare`.
_register(
  "wnut_17",
  seqio.TfdsDataSource("wnut_17:1.0.0", splits=("train", "validation", "test")),
  functools.partial(tagged_text, tags_key="ner", tag_names=TAGS["wnut_17"]),
  None,
)
