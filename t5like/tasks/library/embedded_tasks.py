"""Tasks over the data that ships with the package: a corpus and a labeled sample."""

import functools
from pathlib import Path

import seqio

from t5like.tasks import metrics, postprocessors, preprocessors
from t5like.tasks.library.corpora import register_corpus
from t5like.tasks.registry import default_features, register_task
from t5like.tasks.sources import JsonLinesSource

_FOLDER = Path(__file__).parents[1] / "embedded"


def _files(name: str) -> dict[str, Path]:
  return {split: _FOLDER / f"{name}.{split}.jsonl.gz" for split in ("train", "validation")}


# Six novels, about 0.6 M tokens of the tiny vocabulary.
register_corpus("novels", _files("novels"), sizes={"train": 537, "validation": 23})

# Does the premise entail the hypothesis? (Bowman et al. 2015; a sample)
SNLI = JsonLinesSource(_files("snli"), ["premise", "hypothesis", "label"], sizes={"train": 30_000, "validation": 2_000})
register_task(
  "snli",
  source=SNLI,
  preprocessors=[
    functools.partial(preprocessors.labeled_text, name="snli", keys=("hypothesis", "premise"), label_key="label"),
    seqio.preprocessors.tokenize,
    seqio.preprocessors.append_eos_after_trim,
  ],
  output_features=default_features(),
  postprocess_fn=postprocessors.strip_text,
  metric_fns=[metrics.accuracy],
)
