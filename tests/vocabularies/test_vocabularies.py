"""Properties of every vocabulary's ids, and finding vocabularies by name, file, folder and search path."""

import dataclasses
import functools
import json
import pickle
import shutil
import types

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from t5like.errors import UserError
from t5like.experiments.compatibility import check_vocabulary
from t5like.experiments.languages import special_tokens
from t5like.models import TransformerConfig
from t5like.objectives import SpecialTokens
from t5like.objectives.segments import PairForm
from t5like.vocabularies import load_vocabulary, vocabulary_in, vocabulary_path
from t5like.vocabularies.catalogue import EMBEDDED, EMBEDDED_FOLDER, SEARCH_VARIABLE

NAMES = ["t5", "tiny", "byte", "byte:extra_ids=0", "bert_uncased", "bert_cased", "gpt2", "roberta"]
BERT = {"pad": 0, "eos": 102, "unk": 100, "bos": None, "cls": 101, "sep": 102, "mask": 103}
# Sizes and ids of the published models.
PUBLISHED = {
  "t5": (32_100, {"pad": 0, "eos": 1, "unk": 2, "bos": None, "cls": None, "sep": None, "mask": None}),
  "byte": (384, {"pad": 0, "eos": 1, "unk": 2, "bos": None, "cls": None, "sep": None, "mask": None}),
  "bert_uncased": (30_522, BERT),
  "bert_cased": (28_996, BERT),
  "gpt2": (50_257, {"pad": None, "eos": 50256, "unk": None, "bos": 50256, "cls": None, "sep": None, "mask": None}),
  "roberta": (50_265, {"pad": 1, "eos": 2, "unk": 3, "bos": 0, "cls": 0, "sep": 2, "mask": 50264}),
}


@pytest.fixture(scope="module", params=NAMES)
def vocabulary(request):
  return load_vocabulary(request.param)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_and_special_ids(name):
  vocabulary, (size, ids) = load_vocabulary(name), PUBLISHED[name]
  assert vocabulary.vocab_size == size
  assert {kind: getattr(vocabulary, f"{kind}_id") for kind in ids} == ids
  assert {token for token in ids.values() if token is not None} - {ids["unk"]} <= vocabulary.special_ids
  assert ids["unk"] not in vocabulary.special_ids


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PUBLISHED)
def test_an_embedding_must_have_a_row_for_every_id(name):
  size = PUBLISHED[name][0]
  for rows in (size, size + 28):
    check_vocabulary(types.SimpleNamespace(vocab_size=rows, num_decoder_layers=0), name, _loaded(name))
  with pytest.raises(UserError, match=f"has {size} ids, but the model's embedding {size - 1} rows"):
    check_vocabulary(types.SimpleNamespace(vocab_size=size - 1, num_decoder_layers=0), name, _loaded(name))


def test_only_a_decoder_may_lack_the_mask_and_then_it_has_none():
  vocabulary, size = _loaded("roberta"), PUBLISHED["roberta"][0]
  bart = TransformerConfig(vocab_size=size - 1, embed_dim=1, mlp_dim=1, num_heads=1, num_decoder_layers=1)
  check_vocabulary(bart, "roberta", vocabulary)
  assert special_tokens(bart, vocabulary, {}).mask is None
  whole = dataclasses.replace(bart, vocab_size=size)
  assert special_tokens(whole, vocabulary, {}).mask == size - 1
  with pytest.raises(UserError, match="ids, but the model's embedding"):
    check_vocabulary(dataclasses.replace(bart, vocab_size=size - 2), "roberta", vocabulary)


def test_sentinels():
  assert load_vocabulary("t5").sentinel_ids == tuple(range(32_099, 31_999, -1))
  assert load_vocabulary("byte").sentinel_ids == tuple(range(383, 258, -1))
  assert load_vocabulary("byte").decode([*range(259, 384), 100]) == "a"
  # ByT5 was pre-trained with 259 ids; its sentinels are the last ones, descending: bytes that UTF-8 never uses.
  plain = load_vocabulary("byte", extra_ids=0)
  assert plain.vocab_size == 259 and plain.sentinel_ids == tuple(range(258, 247, -1))
  assert not set(plain.sentinel_ids) & {
    t for c in ("\x00", "\x7f", "߿", "\uffff", "\U0010ffff") for t in plain.encode(c)
  }
  assert load_vocabulary("bert_uncased").sentinel_ids == load_vocabulary("gpt2").sentinel_ids == ()


@pytest.mark.parametrize(
  "name, extra, size", [("t5:extra_ids=7", None, 32_007), ("tiny", 12, 4_012), ("t5", 0, 32_000)]
)
def test_the_number_of_sentinels_can_be_set(name, extra, size):
  vocabulary = load_vocabulary(name, extra)
  assert vocabulary.vocab_size == size
  assert vocabulary.sentinel_ids == tuple(range(size - 1, size - 1 - vocabulary.extra_ids, -1))


def test_sentinels_in_a_model_are_not_added_again(tmp_path):
  """As in mT5's file, whose pieces include its 100 sentinels."""
  sentinels = [f"▁<extra_id_{k}>" for k in (2, 1, 0)]
  with open(tmp_path / "m.model", "wb") as out:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(["some words to learn pieces from", "and some more words"] * 9), model_writer=out,
      vocab_size=40, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=sentinels,
    )  # fmt: skip
  vocabulary = load_vocabulary(str(tmp_path / "m.model"))
  assert vocabulary.extra_ids == 0 and vocabulary.sentinel_ids == (5, 4, 3)
  assert 5 in vocabulary.encode("words <extra_id_0> more")
  with pytest.raises(UserError, match="already has sentinels"):
    load_vocabulary(str(tmp_path / "m.model"), extra_ids=100)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "name, starts, continues, ends",
  [
    ("t5", ["▁the", "▁", "▁<extra_id_0>", "</s>"], ["s", "ing", "."], [".", "!", "?", "..."]),
    ("bert_uncased", ["the", ".", "[MASK]"], ["##s", "##ing"], [".", "!", "?"]),
    ("gpt2", ["Ġthe", "Ġ", "Ċ", "<|endoftext|>"], ["s", "ing", "."], [".", "!", "?", "Ġ?", "..."]),
    ("byte", [" ", "</s>", "<extra_id_3>"], ["t", ".", "<0xC3>"], [".", "!", "?"]),
  ],
)
def test_word_starts_and_sentence_ends(name, starts, continues, ends):
  vocabulary = load_vocabulary(name)
  token = {vocabulary.piece(i): i for i in range(vocabulary.vocab_size)}
  assert vocabulary.word_starts.shape == (vocabulary.vocab_size,) and vocabulary.word_starts.dtype == bool
  assert all(vocabulary.word_starts[token[piece]] for piece in starts)
  assert not any(vocabulary.word_starts[token[piece]] for piece in continues)
  assert {token[piece] for piece in ends} <= vocabulary.sentence_end_ids
  assert not {token[piece] for piece in starts + continues if piece != "."} & vocabulary.sentence_end_ids


def test_a_sentence_is_split_into_words():
  text = "Unbelievable tokenization works everywhere"
  for name in ("t5", "bert_cased", "gpt2", "byte"):
    vocabulary = load_vocabulary(name)
    ids = np.array(vocabulary.encode(text))
    words = np.split(ids, np.flatnonzero(vocabulary.word_starts[ids]))
    assert [w for w in (vocabulary.decode(word).strip() for word in words) if w] == text.split()


def test_special_ids_of_bert_are_its_marks_and_unused_pieces():
  vocabulary = load_vocabulary("bert_uncased")
  pieces = {vocabulary.piece(token) for token in vocabulary.special_ids}
  assert pieces == {"[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{i}]" for i in range(994))}


@settings(deadline=None, max_examples=60)
@given(st.text(), st.text(st.characters(codec="utf-8"), max_size=5))
def test_any_text_has_the_same_ids_alone_in_batches_and_with_offsets(text, other):
  for name in NAMES:
    vocabulary = _loaded(name)
    ids, spans = vocabulary.encode_with_offsets(text)
    assert vocabulary.encode(text) == ids == vocabulary.encode_batch([other, text] * 4, threads=2)[1]
    assert len(ids) == len(spans) and all(0 <= token < vocabulary.vocab_size for token in ids)
    assert isinstance(vocabulary.decode(ids), str)


SPACES = " \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u180e\u2003\u2028\u3000\u200b"


@settings(deadline=None, max_examples=200)
@given(
  st.lists(
    st.sampled_from(
      [*SPACES, " ", "  ", "\n", "a", "Is", "'s", "é", "\u0301", "1", "!", "漢", "🙂", "<mask>", "[MASK]"]
    )
  )
)
def test_cached_chunks_do_not_change_ids(parts):
  text = "".join(parts)
  for name in ("bert_uncased", "bert_cased", "gpt2", "roberta"):
    vocabulary = _loaded(name)
    at_once = vocabulary._tokenizer.encode(text, add_special_tokens=False).ids
    assert vocabulary.encode(text) == at_once == vocabulary.encode_batch([text, text])[1]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00")))
def test_byte_level_vocabularies_are_lossless(text):
  for name in ("byte", "gpt2", "roberta"):
    vocabulary = _loaded(name)
    if not any(mark in text for mark in ("<", "\ufffd")):
      assert vocabulary.decode(vocabulary.encode(text)) == text


@functools.cache
def _loaded(name):
  return load_vocabulary(name)


def test_decoding_stops_at_the_end_and_accepts_ids_beyond_the_vocabulary(vocabulary):
  ids = vocabulary.encode("some words")
  assert vocabulary.decode([*ids, vocabulary.eos_id, *ids]) == vocabulary.decode(ids)
  assert vocabulary.decode([]) == ""
  assert isinstance(vocabulary.decode(np.array([vocabulary.vocab_size + 20, *ids])), str)


def test_pickled_vocabularies_are_equal(vocabulary):
  copy = pickle.loads(pickle.dumps(vocabulary))
  assert copy == vocabulary and hash(copy) == hash(vocabulary)
  assert copy.encode("some <extra_id_0> words") == vocabulary.encode("some <extra_id_0> words")


def test_different_vocabularies_have_different_fingerprints():
  prints = [load_vocabulary(name).fingerprint for name in (*NAMES, "t5:extra_ids=50")]
  assert len(set(prints)) == len(prints)
  assert load_vocabulary("t5").fingerprint == load_vocabulary(str(vocabulary_path("t5"))).fingerprint


def test_lone_surrogates_are_replaced_one_for_one(vocabulary):
  ids, spans = vocabulary.encode_with_offsets("ab \ud800 cd")
  assert ids == vocabulary.encode("ab \ufffd cd") == vocabulary.encode_batch(["ab \ud800 cd"])[0]
  assert max(end for _, end in spans) == len("ab x cd")


def _folder(tmp_path, files):
  for source, name in files.items():
    shutil.copy(EMBEDDED_FOLDER / source, tmp_path / name)
  return tmp_path


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  "name, files",
  [
    ("t5", {"t5.model": "spiece.model"}),
    ("tiny", {"tiny.model": "sentencepiece.model"}),
    ("bert_uncased", {"bert_uncased.txt": "vocab.txt"}),
    ("bert_cased", {"bert_cased.txt": "vocab.txt"}),
    ("gpt2", {"gpt2.json": "vocab.json", "gpt2.merges.txt": "merges.txt"}),
    ("roberta", {"roberta.json": "vocab.json", "gpt2.merges.txt": "merges.txt"}),
  ],
)
def test_vocabularies_are_found_in_a_folder_and_on_the_search_path(name, files, tmp_path, monkeypatch):
  (tmp_path / "mine").mkdir()
  folder = _folder(tmp_path / "mine", files)
  assert load_vocabulary(str(folder)) == load_vocabulary(name)
  assert vocabulary_in(folder).name in files.values() and vocabulary_in(tmp_path) is None
  monkeypatch.setenv(SEARCH_VARIABLE, f"/nowhere:{tmp_path}")
  monkeypatch.chdir("/")
  assert load_vocabulary("mine") == load_vocabulary(name)


def test_lower_casing_follows_the_settings_next_to_a_vocabulary(tmp_path):
  folder = _folder(tmp_path, {"bert_cased.txt": "vocab.txt"})
  (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
  assert load_vocabulary(str(folder)).encode("Hello") == load_vocabulary("bert_cased").encode("hello")
  (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
  assert load_vocabulary(str(folder)) == load_vocabulary("bert_cased")


def test_tokenizer_json_gives_the_same_ids(tmp_path):
  for name in ("bert_uncased", "roberta"):
    ours = load_vocabulary(name)
    ours._tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert isinstance(Tokenizer.from_file(str(tmp_path / "tokenizer.json")), Tokenizer)
    theirs = load_vocabulary(str(tmp_path))
    text = "Words, and [MASK] or <mask>."
    assert theirs.encode(text) == ours.encode(text) and theirs.special_ids == ours.special_ids
    assert (theirs.eos_id, theirs.mask_id, theirs.pad_id) == (ours.eos_id, ours.mask_id, ours.pad_id)
    np.testing.assert_array_equal(theirs.word_starts[:50_000], ours.word_starts[:50_000])


def test_files_of_the_first_gpt(tmp_path):
  """A small file in its format: with these merges, 'hello' is one piece and 'lo' two."""
  pieces = ["<unk>", "h", "e", "l", "o", "o</w>", "he", "ll", "hell", "hello</w>", ".</w>", "\n</w>"]
  (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
  (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\nl l\nhe ll\nhell o</w>\n")
  vocabulary = load_vocabulary(str(tmp_path))
  assert vocabulary.encode("Hello lo.") == [9, 3, 5, 10]
  assert vocabulary.decode([9, 3, 5, 10, 11, 9]) == "hello lo ."
  assert vocabulary.eos_id == 11 and vocabulary.unk_id == 0


@pytest.mark.parametrize(
  "name, words",
  [
    ("bert", ["vocabulary not found: 'bert'", "nearest", "bert_cased", "searched", "T5LIKE_VOCABULARIES"]),
    ("mt5", ["'mt5'", "spiece.model", "vocabularies"]),
    ("gpt1", ["'gpt1'", "merges.txt"]),
    ("t5:extra_ids=many", ["invalid extra_ids"]),
    ("bert_cased:extra_ids=3", ["does not support extra_ids"]),
  ],
)
def test_vocabularies_that_cannot_be_found_are_reported(name, words, tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  with pytest.raises(UserError) as error:
    load_vocabulary(name)
  assert all(word in str(error.value) for word in words), str(error.value)


# With these, the library panics.
TOKENIZER = {
  "version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
}  # fmt: skip
PANIC = json.dumps(TOKENIZER | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": True}})
_TEXT, _UNKNOWN = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}
_TEMPLATE = {"type": "TemplateProcessing", "single": [_TEXT, _UNKNOWN], "pair": [_TEXT], "special_tokens": {}}
PANIC_OF_ENCODE = json.dumps(TOKENIZER | {"post_processor": _TEMPLATE})


@pytest.mark.parametrize(
  "file, content, words",
  [
    ("vocab.txt", "[PAD]\nthe\n", ["not a BERT vocabulary", "[UNK]"]),
    ("vocab.json", "[1, 2]", ["not a vocab.json"]),
    ("vocab.json", "{", ["not a vocab.json", "line 1"]),
    ("vocab.json", "[" * 100_000, ["not a vocab.json", "nested too deeply"]),
    ("vocab.json", '{"a": 0, "b": 1}', ["merges"]),
    ("tokenizer.json", "{}", ["not a tokenizer.json"]),
    ("tokenizer.json", PANIC, ["not a tokenizer.json"]),
    ("tokenizer.json", PANIC_OF_ENCODE, ["not a tokenizer.json"]),
    ("spiece.model", "text", ["not a SentencePiece model"]),
    ("spiece.model", "", ["spiece.model is not a SentencePiece model", "the file is empty"]),
  ],
)
def test_broken_files_are_reported(file, content, words, tmp_path):
  (tmp_path / file).write_text(content)
  with pytest.raises(UserError) as error:
    load_vocabulary(str(tmp_path))
  assert all(word in str(error.value) for word in words), str(error.value)


def test_an_embedded_vocabulary_is_loaded_once_and_a_file_whenever_it_is_asked_for(tmp_path):
  assert load_vocabulary("tiny") is load_vocabulary("tiny") is not load_vocabulary("tiny:extra_ids=7")
  shutil.copy(EMBEDDED["tiny"], tmp_path / "own.model")
  before = load_vocabulary(str(tmp_path / "own.model"))
  shutil.copy(EMBEDDED["t5"], tmp_path / "own.model")
  assert before.vocab_size < load_vocabulary(str(tmp_path / "own.model")).vocab_size == 32_100


def test_every_embedded_file_exists():
  assert all(path.is_file() for path in EMBEDDED.values())


def test_roberta_style_tokenizers_need_no_settings(tmp_path):
  """XLM-R's tokenizer.json has <s> and </s> around a text, and no file that calls them [CLS] and [SEP]."""
  from tokenizers import Tokenizer, models

  pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁a", -1.0), ("<mask>", 0.0)]
  tokenizer = Tokenizer(models.Unigram(pieces, 3))
  tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<mask>"])
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  found = load_vocabulary(str(tmp_path / "tokenizer.json"))
  assert (found.cls_id, found.pad_id, found.sep_id, found.eos_id, found.mask_id) == (0, 1, 2, 2, 5)
  form = PairForm.of(SpecialTokens.of(found))
  assert (form.cls, form.sep, form.separators, form.typed) == (0, 2, 2, False)


def test_a_start_token_that_is_cls_does_not_double_the_separators(tmp_path):
  """ALBERT's and DeBERTa's settings call [CLS] the beginning of a sequence; pairs are BERT's, not RoBERTa's."""
  pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "b", "[MASK]"]
  (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
  (tmp_path / "merges.txt").write_text("#version: 0.2\n")
  bpe = load_vocabulary(str(tmp_path / "vocab.json"))  # DeBERTa's first version
  bpe.tokenizer.save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "[CLS]", "eos_token": "[SEP]"}')
  for found in (bpe, load_vocabulary(str(tmp_path / "tokenizer.json"))):
    assert (found.pad_id, found.cls_id, found.sep_id, found.mask_id, found.bos_id) == (0, 1, 2, 6, None)
    form = PairForm.of(SpecialTokens.of(found))
    assert (form.separators, form.typed) == (1, True) and found.encode("ab[MASK]") == [4, 5, 6]
