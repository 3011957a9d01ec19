"""Translation in T5's text-to-text form: the three language pairs of the T5 paper from TFDS, and custom ones."""

from __future__ import annotations

import functools

import seqio
import tensorflow as tf

from t5like.errors import UserError
from t5like.tasks import metrics, preprocessors
from t5like.tasks.registry import default_features, register_task

# English names of the languages of the WMT news tasks, as used in prompts.
LANGUAGES = {
  "cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "et": "Estonian", "fi": "Finnish", "fr": "French",
  "gu": "Gujarati", "hi": "Hindi", "hu": "Hungarian", "is": "Icelandic", "it": "Italian", "ja": "Japanese",
  "kk": "Kazakh", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch", "pl": "Polish",
  "ps": "Pashto", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "ta": "Tamil", "tr": "Turkish",
  "uk": "Ukrainian", "zh": "Chinese",
}  # fmt: skip


@seqio.map_over_dataset
def translate(
  example: dict[str, tf.Tensor], source: str, target: str, source_name: str, target_name: str
) -> dict[str, tf.Tensor]:
  """`translate English to German: ` and the text of field `source`; field `target` is the target."""
  asked = f"translate {source_name} to {target_name}: "
  return {"inputs": tf.strings.join([asked, example[source]]), "targets": example[target]}


def register_translation(
  name: str, data: seqio.DataSource, source: str, target: str, names: dict[str, str] | None = None
) -> seqio.Task:
  """Registers a translation task over `data`, whose rows have one field per language code.

  `names` maps codes that are not in `LANGUAGES` to English names.
  """
  known = {**LANGUAGES, **(names or {})}
  for code in (source, target):
    # A code with a region, such as zh-cn, uses the name of the language.
    if code.split("-")[0] not in known and code not in known:
      raise UserError(
        f"unknown language {code!r}",
        known=", ".join(sorted(known)),
        try_=f"names={{{code!r}: 'its English name'}}",
      )
  step = functools.partial(
    translate,
    source=source,
    target=target,
    source_name=known.get(source) or known[source.split("-")[0]],
    target_name=known.get(target) or known[target.split("-")[0]],
  )
  return register_task(
    name,
    source=data,
    preprocessors=preprocessors.text_to_text(step),
    output_features=default_features(),
    metric_fns=[metrics.bleu],
  )


# The sets of the T5 paper (appendix A); TFDS names a pair with English last.
for _target, _tfds_name in (
  ("de", "wmt_t2t_translate/de-en:1.0.0"),
  ("fr", "wmt15_translate/fr-en:1.0.0"),
  ("ro", "wmt16_translate/ro-en:1.0.0"),
):
  register_translation(
    f"wmt_en_{_target}",
    seqio.TfdsDataSource(_tfds_name, splits=("train", "validation", "test")),
    source="en",
    target=_target,
  )
