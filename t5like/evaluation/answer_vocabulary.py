"""The vocabulary that the answers of a task are written in, where it is not the model's."""

from __future__ import annotations

from collections.abc import Mapping

from t5like import data
from t5like.errors import UserError
from t5like.files import storage
from t5like.vocabularies import Vocabulary, load_vocabulary


def answer_vocabulary(cache: data.TokenCache, vocabulary: Vocabulary) -> Vocabulary:
  """That of the task's targets, as seqio decodes with it; `vocabulary`, the model's, where they share it.

  Raises UserError where it cannot be loaded, or ends answers with another id than the model does.
  """
  kept = cache.manifest.get("targets_vocabulary")
  if not kept:
    return vocabulary
  what = f"the answers of task {cache.manifest['description']['task']!r} are written in a vocabulary of their own"
  name = str(kept.get("name", "")) if isinstance(kept, Mapping) else ""
  if not name or storage.is_remote(name):  # a token cache is data: no address in it is followed
    why = kept.get("why", name) if isinstance(kept, Mapping) else kept
    raise UserError(f"{what}, which cannot be loaded: {why}", expected="a SentencePiece model on disk, or bytes")
  try:
    own = load_vocabulary(name)
  except UserError as error:
    raise UserError(f"{what}, which cannot be loaded: {error.what}", vocabulary=name) from None
  if own.fingerprint != kept.get("fingerprint"):
    raise UserError(f"{what}, which has changed since its token cache was written", vocabulary=name)
  if own.eos_id != vocabulary.eos_id:
    raise UserError(
      f"{what}, which ends a text with the id {own.eos_id}, and the model's with {vocabulary.eos_id}",
      vocabulary=name,
      expected="the same id of end-of-sequence in both",
    )
  return own
