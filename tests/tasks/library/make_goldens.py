"""Writes tests/data/tasks/t5_library.json: the examples of the original t5 library for the rows in rows.json.

A script, not a test. Run it with `t5` 0.9.4 installed, from the repository root:

    PYTHONPATH=. python tests/tasks/library/make_goldens.py

Stores texts, token ids and the fields for evaluation; the tests in tests/tasks/library compare ours with them.
"""

import functools
import json

import seqio
import t5.data.tasks  # noqa: F401, registers the tasks
from golden_rows import FOLDER, examples, raw_dataset, rows
from t5.data import preprocessors

GLUE = "cola sst2 mrpc qqp stsb mnli mnli_matched mnli_mismatched qnli rte wnli ax".split()
SUPER_GLUE = "boolq cb copa multirc record rte wic axb axg".split()

# Our task name -> TFDS data set and task name of the t5 library.
TASKS = {
  **{f"glue_{name}": (f"glue/{name}", f"glue_{name}_v002") for name in GLUE},
  **{f"super_glue_{name}": (f"super_glue/{name}", f"super_glue_{name}_v102") for name in SUPER_GLUE},
  "super_glue_wsc": ("super_glue/wsc.fixed", "super_glue_wsc_v102_simple_eval"),
  "dpr": ("definite_pronoun_resolution", "dpr_v001_simple"),
  "squad": ("squad/v1.1", "squad_v010_allanswers"),
  "squad_context_free": ("squad/v1.1", "squad_v010_context_free"),
  "squad_span": ("squad/v1.1", "squad_v010_allanswers_span"),
  "cnn_dailymail": ("cnn_dailymail", "cnn_dailymail_v002"),
  "xsum": ("xsum", "xsum"),
  "wmt_en_de": ("wmt_t2t_translate/de-en", "wmt_t2t_ende_v003"),
  "wmt_en_fr": ("wmt15_translate/fr-en", "wmt15_enfr_v003"),
  "wmt_en_ro": ("wmt16_translate/ro-en", "wmt16_enro_v003"),
}


def register_xsum() -> None:
  """Registers XSum, which the library lacks, in the form of CNN/DailyMail."""
  like = seqio.TaskRegistry.get("cnn_dailymail_v002")
  summarize = functools.partial(preprocessors.summarize, article_key="document", summary_key="summary")
  seqio.TaskRegistry.add(
    "xsum",
    source=like.source,
    preprocessors=[summarize, *like.preprocessors[1:]],
    output_features=like.output_features,
  )


def main() -> None:
  register_xsum()
  found = {
    ours: examples(seqio.TaskRegistry.get(theirs), raw_dataset(tfds_name, rows()[tfds_name]), "t5")
    for ours, (tfds_name, theirs) in TASKS.items()
  }
  lines = []
  for name, task_examples in found.items():
    body = ",\n".join(f"  {json.dumps(example, ensure_ascii=False)}" for example in task_examples)
    lines.append(f"{json.dumps(name)}: [\n{body}\n]")
  (FOLDER / "t5_library.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
  main()
