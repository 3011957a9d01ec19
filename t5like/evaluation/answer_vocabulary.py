"""The vocabulary of a task's targets, which may differ from the model's."""

from __future__ import annotations

from collections.abc import Mapping

from t5like import data
from t5like.errors import UserError
from t5like.files import storage
from t5like.vocabularies import Vocabulary, load_vocabulary


def answer_vocabulary(cache: data.TokenCache, vocabulary: Vocabulary) -> Vocabulary:
  """Returns the vocabulary of a task's targets; `vocabulary`, the model's, if they share it.

  Raises UserError if it cannot be loaded or has another EOS id than the model's.
  """
  kept = cache.manifest.get("targets_vocabulary")
  if not kept:
    return vocabulary
  what = f"the targets of task {cache.manifest['description']['task']!r} have their own vocabulary"
  name = str(kept.get("name", "")) if isinstance(kept, Mapping) else ""
  if not name or storage.is_remote(name):  # a token cache is not trusted: nothing is downloaded for it
    why = kept.get("why", name) if isinstance(kept, Mapping) else kept
    raise UserError(f"{what}, which cannot be loaded: {why}", expected="a SentencePiece model on disk, or bytes")
  try:
    own = load_vocabulary(name)
  except UserError as error:
    raise UserError(f"{what}, which cannot be loaded: {error.what}", vocabulary=name) from None
  if own.fingerprint != kept.get("fingerprint"):
    raise UserError(f"{what}, which has changed since the token cache was built", vocabulary=name)
  if own.eos_id != vocabulary.eos_id:
    raise UserError(
      f"{what} with EOS id {own.eos_id}, the model's is {vocabulary.eos_id}",
      vocabulary=name,
      expected="the same EOS id in both",
    )
  return own
