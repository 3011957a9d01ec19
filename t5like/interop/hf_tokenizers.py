"""Exports a vocabulary as the tokenizer files of a Hugging Face folder, so that `AutoTokenizer` gives our ids.

`tokenizer.json` is complete, for fast tokenizers; the vocabulary's original files are written next to it, for the
original classes. Bytes have no files: tokenizer_config.json selects ByT5's tokenizer.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from t5like.errors import UserError
from t5like.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary
from t5like.vocabularies.sentencepiece import WORD_MARK

_FILE = "tokenizer.json"
_UNIGRAM, _BPE = 1, 2  # SentencePiece model types
_PADDING = "<|pad|>"
_NAMES = ("pad", "eos", "unk", "bos", "cls", "sep", "mask")


@dataclasses.dataclass(frozen=True)
class TextSpecialTokens:
  """The special tokens before and after a text, as in training."""

  start: int | None = None
  end: int | None = None


def save_tokenizer(
  folder: Path,
  vocabulary: Vocabulary,
  around: TextSpecialTokens,
  max_length: int | None = None,
  token_types: bool = False,
  padding: tuple[str, int] | None = None,
  keep_template: bool = True,
) -> None:
  """Writes tokenizer.json (except for bytes), tokenizer_config.json and the vocabulary's original files.

  Args:
    folder: the Hugging Face folder.
    vocabulary: the model's vocabulary.
    around: the special tokens around a text.
    max_length: the model's number of positions.
    token_types: whether the model has token types for pairs of texts.
    padding: a padding token to add, with its id: see `padding_token`.
    keep_template: keep the special tokens that an original tokenizer.json adds, instead of those of `around`.
  """
  settings: dict[str, Any] = {
    **{f"{kind}_token": _piece(vocabulary, getattr(vocabulary, f"{kind}_id")) for kind in _NAMES},
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
    "model_max_length": max_length or 1_000_000,
    "model_input_names": ["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"],
  }
  files = vocabulary.original_files()
  if isinstance(vocabulary, ByteVocabulary):
    settings |= {"tokenizer_class": "ByT5Tokenizer", "extra_ids": vocabulary.extra_ids}
  elif isinstance(vocabulary, SentencePieceVocabulary):
    settings["extra_ids"] = vocabulary.extra_ids
    files[_FILE] = _with_template(_from_sentencepiece(vocabulary), vocabulary, around)
  elif _FILE not in files or vocabulary.tokenizer.post_processor is None or not keep_template:
    files[_FILE] = _with_template(Tokenizer.from_str(vocabulary.tokenizer.to_str()), vocabulary, around)
  if padding is not None and _FILE in files:
    settings["pad_token"] = padding[0]
    files[_FILE] = _with_token(files[_FILE], *padding)
  if vocabulary.sentinel_ids and _FILE in files:
    settings["additional_special_tokens"] = [_piece(vocabulary, token) for token in vocabulary.sentinel_ids]
  settings = {name: value for name, value in settings.items() if value is not None} | vocabulary.settings
  files["tokenizer_config.json"] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
  folder.mkdir(parents=True, exist_ok=True)
  for name, content in files.items():
    (folder / name).write_bytes(content)


def padding_token(vocabulary: Vocabulary, rows: int, closed: bool = True) -> tuple[str, int] | None:
  """Returns a padding token for a vocabulary without one, and its id.

  A classifier of Hugging Face reads the state of the last token that is not padding. The end-of-sequence pads texts
  unless they are `closed` by it; then the first row of the embedding that is not used does.
  None: the vocabulary has a padding token, or no row is left.
  """
  if vocabulary.pad_id is not None:
    return None
  if not closed and vocabulary.eos_id is not None:
    return _piece(vocabulary, vocabulary.eos_id), vocabulary.eos_id
  return (_PADDING, vocabulary.vocab_size) if rows > vocabulary.vocab_size else None


def token_ids(vocabulary: Vocabulary, batch_layout: str, start: int | None = None) -> dict[str, int]:
  """Returns the special token ids for config.json; `start`: the model's own decoder start token."""
  ids = {"eos_token_id": vocabulary.eos_id, "pad_token_id": vocabulary.pad_id}
  if start is None:  # as in objectives.SpecialTokens
    start = 0 if vocabulary.pad_id == 0 else vocabulary.eos_id
  if batch_layout == "encoder_decoder":
    ids["decoder_start_token_id"] = start
  elif batch_layout != "encoder":
    ids["bos_token_id"] = start if vocabulary.bos_id is None else vocabulary.bos_id
  return {name: token for name, token in ids.items() if token is not None}


def _piece(vocabulary: Vocabulary, token: int | None) -> str | None:
  return None if token is None else vocabulary.piece(token).removeprefix(WORD_MARK)


def _with_token(content: bytes, name: str, token: int) -> bytes:
  """Adds a special token to tokenizer.json; the vocabulary's ids end before it."""
  tokenizer = Tokenizer.from_str(content.decode())
  tokenizer.add_special_tokens([name])
  if tokenizer.token_to_id(name) != token:
    raise UserError(f"the tokenizer gives {name} the id {tokenizer.token_to_id(name)}, not {token}")
  return tokenizer.to_str(pretty=True).encode()


def _with_template(tokenizer: Tokenizer, vocabulary: Vocabulary, around: TextSpecialTokens) -> bytes:
  """Serializes a tokenizer with a template for one text and for a pair; the second text has token type 1."""
  if vocabulary.cls_last:
    sep, cls = (_piece(vocabulary, token) for token in (vocabulary.sep_id, vocabulary.cls_id))
    tokenizer.post_processor = processors.TemplateProcessing(
      single=["$A:0", f"{sep}:0", f"{cls}:2"],
      pair=["$A:0", f"{sep}:0", "$B:1", f"{sep}:1", f"{cls}:2"],
      special_tokens=[(sep, vocabulary.sep_id), (cls, vocabulary.cls_id)],
    )
    return tokenizer.to_str(pretty=True).encode()
  start, end = ([_piece(vocabulary, token)] if token is not None else [] for token in (around.start, around.end))
  is_roberta = start == ["<s>"] and vocabulary.cls_id is not None  # Llama's <s> is not a [CLS]
  between = [*end, *end] if is_roberta else end
  second = "0" if is_roberta else "1"
  pair = [*start, "$A:0", *between, f"$B:{second}", *(f"{name}:{second}" for name in end)]
  known = {_piece(vocabulary, token): token for token in (around.start, around.end) if token is not None}
  tokenizer.post_processor = processors.TemplateProcessing(
    single=[*start, "$A", *end], pair=pair, special_tokens=list(known.items())
  )
  return tokenizer.to_str(pretty=True).encode()


def _from_sentencepiece(vocabulary: SentencePieceVocabulary) -> Tokenizer:
  """Converts a SentencePiece model, with the same scores; sentinels are matched anywhere in text, as in T5's."""
  from sentencepiece import sentencepiece_model_pb2

  proto = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.model_bytes)
  pieces = [(piece.piece, piece.score) for piece in proto.pieces]
  pieces += [(_piece(vocabulary, token), 0.0) for token in range(len(pieces), vocabulary.vocab_size)]
  trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
  if trainer.model_type == _UNIGRAM:
    model = models.Unigram(pieces, vocabulary.unk_id, trainer.byte_fallback)
  elif trainer.model_type == _BPE:
    ids = {piece: token for token, (piece, _) in enumerate(pieces)}
    model = models.BPE(
      ids, _merges(pieces), unk_token=pieces[vocabulary.unk_id][0], fuse_unk=True, byte_fallback=trainer.byte_fallback
    )
  else:
    raise UserError(
      f"{vocabulary.path}: Hugging Face has no tokenizer for word or character SentencePiece models",
      expected="a unigram or BPE model",
    )
  tokenizer = Tokenizer(model)
  steps = [normalizers.Precompiled(normalizer.precompiled_charsmap)] if normalizer.precompiled_charsmap else []
  if normalizer.remove_extra_whitespaces:
    # A leading space becomes the word mark that starts every text, or is removed.
    steps += [normalizers.Strip(left=not normalizer.add_dummy_prefix), normalizers.Replace(Regex(" {2,}"), " ")]
  elif normalizer.add_dummy_prefix:
    steps += [normalizers.Prepend(" ")]  # even before a space
  tokenizer.normalizer = normalizers.Sequence(steps)
  scheme = "first" if normalizer.add_dummy_prefix else "never"
  space = dict(replacement=WORD_MARK, prepend_scheme=scheme, split=trainer.split_by_whitespace)
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(**space)
  tokenizer.decoder = decoders.Metaspace(**space)
  if trainer.byte_fallback:
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(**space), decoders.Fuse()])
  special = {getattr(vocabulary, f"{kind}_id") for kind in _NAMES} - {None} | set(vocabulary.sentinel_ids)
  tokenizer.add_special_tokens(
    # A sentinel is a word and includes the space before it.
    [AddedToken(pieces[t][0].removeprefix(WORD_MARK), lstrip=t in vocabulary.sentinel_ids) for t in sorted(special)]
  )
  return tokenizer


def _merges(pieces: list[tuple[str, float]]) -> list[tuple[str, str]]:
  """Returns all merges of two pieces into a third, in SentencePiece's order of preference."""
  known = {piece: (score, token) for token, (piece, score) in enumerate(pieces)}
  found = []
  for merged, (score, _) in known.items():
    for cut in range(1, len(merged)):
      left, right = merged[:cut], merged[cut:]
      if left in known and right in known:
        found.append((-score, known[left][1], known[right][1], left, right))
  return [(left, right) for *_, left, right in sorted(found)]
