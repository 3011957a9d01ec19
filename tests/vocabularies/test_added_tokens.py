"""Folders of fine-tuned models whose tokenizer has tokens that are not in the original vocabulary file.

The expected ids are from transformers 5.22.
"""

import json
import shutil

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from t5like.errors import UserError
from t5like.vocabularies import load_vocabulary, vocabulary_in
from t5like.vocabularies.catalogue import EMBEDDED, EMBEDDED_FOLDER

ADDED = {"<|im_end|>": 50257, "<|pad|>": 50258, "hello_world": 50259}
TEXT = "say hello_world to<|im_end|> me"


@pytest.fixture
def chat_folder(tmp_path):
  """GPT-2's files with a chat model's tokens, as transformers 4 saves them."""
  shutil.copy(EMBEDDED["gpt2"], tmp_path / "vocab.json")
  shutil.copy(EMBEDDED_FOLDER / "gpt2.merges.txt", tmp_path / "merges.txt")
  tokenizer = Tokenizer(models.BPE.from_file(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_tokens([AddedToken(name, special=name != "hello_world", normalized=False) for name in ADDED])
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "added_tokens.json").write_text(json.dumps(ADDED))
  (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}')
  return tmp_path


def test_added_tokens_are_read_from_tokenizer_json(chat_folder):
  vocabulary = load_vocabulary(str(chat_folder))
  assert vocabulary.path.name == "tokenizer.json" and vocabulary.vocab_size == 50260
  assert (vocabulary.eos_id, vocabulary.pad_id) == (50257, 50258)
  assert vocabulary.encode(TEXT) == [16706, 220, 50259, 284, 50257, 502]


def test_marks_of_turns_are_not_in_decoded_texts(chat_folder):
  """As with transformers' skip_special_tokens; a token that is not special is text."""
  (chat_folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
  vocabulary = load_vocabulary(str(chat_folder))
  assert (
    vocabulary.decode([*vocabulary.encode(TEXT), vocabulary.eos_id, *vocabulary.encode(TEXT)])
    == "say hello_world to me"
  )


def test_a_special_token_that_is_not_text_is_as_if_it_were_not_given(chat_folder):
  """It was a TypeError."""
  (chat_folder / "tokenizer_config.json").write_text('{"eos_token": 50256, "pad_token": ["<|pad|>"]}')
  vocabulary = load_vocabulary(str(chat_folder))
  assert vocabulary.eos_id == 50256 and vocabulary.pad_id is None


@pytest.mark.parametrize("written_as", ["added_tokens.json", "added_tokens_decoder"])
def test_added_tokens_without_tokenizer_json_are_refused(chat_folder, written_as):
  (chat_folder / "tokenizer.json").unlink()
  if written_as == "added_tokens_decoder":  # since transformers 4.34
    (chat_folder / "added_tokens.json").unlink()
    decoder = {str(token): {"content": name} for name, token in ADDED.items()}
    (chat_folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
  with pytest.raises(UserError, match="adds 3 tokens") as error:
    load_vocabulary(str(chat_folder))
  assert "<|im_end|>" in str(error.value) and "save_pretrained" in str(error.value)
  assert load_vocabulary(str(chat_folder / "vocab.json")).vocab_size == 50257, "a file that is requested explicitly"


def saved(folder, change=lambda tokenizer: None, name="bert_cased"):
  """Writes a vocabulary file and the tokenizer.json that transformers 5 writes next to it, which has no other list."""
  vocabulary = load_vocabulary(name)
  tokenizer = Tokenizer.from_str(vocabulary.tokenizer.to_str())
  change(tokenizer)
  tokenizer.save(str(folder / "tokenizer.json"))
  for file, content in vocabulary.original_files().items():
    (folder / file).write_bytes(content)
  return vocabulary_in(folder).name


def unmarked(tokenizer):
  tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])


def opened(tokenizer):
  tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])


def lower_cased(tokenizer):
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)


def digit_by_digit(tokenizer):
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), tokenizer.pre_tokenizer])


@pytest.mark.parametrize(
  ("change", "name", "same"),
  [
    (lambda tokenizer: None, "bert_cased", True), (lambda tokenizer: None, "gpt2", True),
    (lambda tokenizer: tokenizer.add_tokens(["NEW_A"]), "bert_cased", False),
    (lambda tokenizer: tokenizer.add_special_tokens(["[unused1]"]), "bert_cased", False),
    (lambda tokenizer: tokenizer.add_tokens(["NEW_A"]), "gpt2", False),
    (unmarked, "bert_cased", False), (lower_cased, "bert_cased", False), (opened, "roberta", False),
    (digit_by_digit, "gpt2", False),
  ],
)  # fmt: skip
def test_a_tokenizer_json_that_encodes_otherwise_is_preferred(change, name, same, tmp_path):
  assert (saved(tmp_path, change, name) != "tokenizer.json") == same


def test_a_damaged_tokenizer_json_is_not_needed(tmp_path):
  name = saved(tmp_path)
  (tmp_path / "tokenizer.json").write_text("{")
  assert vocabulary_in(tmp_path).name == name == "vocab.txt"


@pytest.mark.parametrize(
  ("name", "file", "settings", "before", "after"),
  [
    ("bert_uncased", "vocab.txt", {"tokenizer_class": "BertTokenizer"}, (101,), (102,)),
    ("gpt2", "vocab.json", {"add_bos_token": True}, (50256,), ()),
    ("gpt2", "vocab.json", {}, None, None),
    ("tiny", "spiece.model", {"tokenizer_class": "T5Tokenizer"}, (), (1,)),
    ("tiny", "spiece.model", {}, None, None),
    ("tiny", "tokenizer.model", {"add_eos_token": True}, (), (1,)),
  ],
)
def test_what_settings_put_around_a_text(name, file, settings, before, after, tmp_path):
  """Of folders without tokenizer.json; GPT-2 with BERT's tokenizer is uer/gpt2-chinese, with T5's rinna's."""
  for original, content in load_vocabulary(name).original_files().items():
    (tmp_path / (file if original in ("spiece.model", file) else original)).write_bytes(content)
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
  vocabulary = load_vocabulary(str(tmp_path))
  assert vocabulary.template == (None if before is None else (before, after))
  assert vocabulary.opens_texts == (settings == {"add_bos_token": True})


def test_no_sentinels_are_added_where_the_settings_say_so(tmp_path):
  shutil.copy(EMBEDDED["tiny"], tmp_path / "spiece.model")
  (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 0}')
  assert load_vocabulary(str(tmp_path)).extra_ids == 0


def test_words_of_mecab_are_refused(tmp_path):
  shutil.copy(EMBEDDED["bert_cased"], tmp_path / "vocab.txt")
  (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
  with pytest.raises(UserError, match="MeCab"):
    load_vocabulary(str(tmp_path))


def test_added_tokens_that_are_in_the_file_are_accepted(tmp_path):
  """BERT's marks and T5's sentinels are listed as added, too."""
  shutil.copy(EMBEDDED["bert_cased"], tmp_path / "vocab.txt")
  (tmp_path / "added_tokens.json").write_text('{"[CLS]": 101, "[MASK]": 103}')
  assert vocabulary_in(tmp_path).name == "vocab.txt"
  (tmp_path / "vocab.txt").unlink()
  shutil.copy(EMBEDDED["t5"], tmp_path / "spiece.model")
  (tmp_path / "added_tokens.json").write_text('{"<extra_id_0>": 32099, "<extra_id_99>": 32000}')
  assert vocabulary_in(tmp_path).name == "spiece.model"


def test_the_number_of_sentinels_comes_from_the_settings(tmp_path):
  """UMT5 has 300."""
  shutil.copy(EMBEDDED["tiny"], tmp_path / "spiece.model")
  (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 300}')
  vocabulary = load_vocabulary(str(tmp_path))
  assert vocabulary.extra_ids == len(vocabulary.sentinel_ids) == 300
  (tmp_path / "tokenizer_config.json").write_text("{ broken")
  assert load_vocabulary(str(tmp_path)).extra_ids == 100
  (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 10**30}))
  with pytest.raises(UserError, match="too many sentinels"):
    load_vocabulary(str(tmp_path))


def test_a_space_is_put_before_texts_if_the_settings_say_so(tmp_path):
  """Ids of transformers' GPT2Tokenizer(add_prefix_space=True)."""
  shutil.copy(EMBEDDED_FOLDER / "gpt2.json", tmp_path / "vocab.json")
  shutil.copy(EMBEDDED_FOLDER / "gpt2.merges.txt", tmp_path / "merges.txt")
  plain = load_vocabulary(str(tmp_path / "vocab.json"))
  (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
  spaced = load_vocabulary(str(tmp_path / "vocab.json"))
  assert plain.encode("Hello world\nand more") == [15496, 995, 198, 392, 517]
  assert spaced.encode("Hello world\nand more") == [18435, 995, 198, 392, 517]
  assert spaced.encode(" Hello") == [18435] and spaced.encode("\nand") == [220, 198, 392]
  assert spaced.fingerprint != plain.fingerprint and spaced.settings == {"add_prefix_space": True}
