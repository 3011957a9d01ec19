"""Tokenizer files of an exported folder: `tokenizers`, used by AutoTokenizer, gives our ids for any vocabulary.

tests/interop/test_live_transformers.py loads such folders with transformers itself.
"""

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer

import t5like
from t5like.errors import UserError
from t5like.interop.hf_tokenizers import TextSpecialTokens, padding_token, save_tokenizer, token_ids
from t5like.vocabularies import load_vocabulary, vocabulary_in

TEXTS = [
  "Hello world, this is a test.", "  leading and   double  spaces ", "Ünïcödé – “quotes” ½ ﬁne 中文", "",
  "a <extra_id_0> b <extra_id_1>.", "new\nlines\tand tabs", "don't you'll we've 12,345.67", "emoji 😀",
  "the [MASK] sat",
]  # fmt: skip
LLAMA = Path(__file__).parents[1] / "data" / "golden" / "decoder_tokenizers" / "llama2_fast"
EMBEDDED = ["t5", "tiny", "t5:extra_ids=7", "bert_uncased", "bert_cased", "gpt2", "roberta"]


def tokenizer_of(folder: Path) -> Tokenizer:
  return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EMBEDDED)
def test_ids_are_ours_and_the_folder_is_read_back(name, tmp_path):
  vocabulary = load_vocabulary(name)
  save_tokenizer(tmp_path, vocabulary, TextSpecialTokens())
  theirs = tokenizer_of(tmp_path)
  assert [theirs.encode(text, add_special_tokens=False).ids for text in TEXTS] == vocabulary.encode_batch(TEXTS)
  again = load_vocabulary(str(vocabulary_in(tmp_path)))
  assert again.fingerprint == vocabulary.fingerprint


# SentencePiece training settings other than T5's.
KINDS = {
  "bpe": dict(model_type="bpe"),
  "bytes for unknown characters": dict(byte_fallback=True),
  "bpe with bytes": dict(model_type="bpe", byte_fallback=True),
  "spaces as they are": dict(normalization_rule_name="identity", remove_extra_whitespaces=False),
  "pieces of several words": dict(split_by_whitespace=False),
  "no word mark at the beginning": dict(add_dummy_prefix=False),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_sentencepiece_models_of_any_kind(kind, tmp_path):
  novels = Path(load_vocabulary("tiny").path).parents[2] / "tasks/embedded/novels.validation.jsonl.gz"
  lines = [line for text in read_texts(novels) for line in text.split("\n")][:3000]
  (tmp_path / "text.txt").write_text("\n".join(lines))
  sentencepiece.SentencePieceTrainer.train(
    input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "trained"), vocab_size=600, pad_id=0, eos_id=1,
    unk_id=2, bos_id=-1, minloglevel=3, character_coverage=0.999, **KINDS[kind],
  )  # fmt: skip
  vocabulary = load_vocabulary(str(tmp_path / "trained.model"))
  save_tokenizer(tmp_path / "out", vocabulary, TextSpecialTokens())
  texts = [*lines, *(" " + line for line in lines[:50]), *(text for text in TEXTS if "extra_id" not in text)]
  theirs = tokenizer_of(tmp_path / "out")
  found = [encoding.ids for encoding in theirs.encode_batch(texts, add_special_tokens=False)]
  assert found == vocabulary.encode_batch(texts)


def read_texts(path: Path) -> list[str]:
  import gzip

  with gzip.open(path, "rt") as file:
    return [json.loads(line)["text"] for line in file]


def test_word_models_have_no_hugging_face_tokenizer(tmp_path):
  (tmp_path / "text.txt").write_text("a b c d e f g h\n" * 20)
  sentencepiece.SentencePieceTrainer.train(
    input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "words"), model_type="word", vocab_size=10, pad_id=0,
    eos_id=1, unk_id=2, bos_id=-1, minloglevel=3,
  )  # fmt: skip
  with pytest.raises(UserError, match="no tokenizer for word or character"):
    save_tokenizer(tmp_path, load_vocabulary(str(tmp_path / "words.model")), TextSpecialTokens())


def test_special_tokens_around_texts(tmp_path):
  """T5: A </s>; BERT: [CLS] A [SEP] B [SEP] with token types; RoBERTa: <s> A </s></s> B </s>; GPT-2: none."""

  def encoded(name, around, *texts):
    save_tokenizer(tmp_path / name, load_vocabulary(name), around)
    found = tokenizer_of(tmp_path / name).encode(*texts)
    return found.tokens, found.type_ids

  assert encoded("t5", TextSpecialTokens(end=1), "cat") == (["▁cat", "</s>"], [0, 0])
  bert = TextSpecialTokens(start=101, end=102)
  assert encoded("bert_uncased", bert, "cat")[0] == ["[CLS]", "cat", "[SEP]"]
  pair = (["[CLS]", "cat", "[SEP]", "dog", "[SEP]"], [0, 0, 0, 1, 1])
  assert encoded("bert_uncased", bert, "cat", "dog") == pair
  roberta = ["<s>", "cat", "</s>", "</s>", "dog", "</s>"]
  assert encoded("roberta", TextSpecialTokens(start=0, end=2), "cat", "dog") == (roberta, [0] * 6)
  assert encoded("gpt2", TextSpecialTokens(), "cat")[0] == ["cat"]


def test_a_pair_of_llama_has_one_separator(tmp_path):
  """Rows are as in training, <s> first </s> second </s>: its first token is called <s> as RoBERTa's is."""
  vocabulary = load_vocabulary(str(LLAMA))
  start, end = vocabulary.bos_id, vocabulary.eos_id
  save_tokenizer(tmp_path, vocabulary, TextSpecialTokens(start, end), keep_template=False)
  first, second = vocabulary.encode_batch(["hello", "world"])
  assert tokenizer_of(tmp_path).encode("hello", "world").ids == [start, *first, end, *second, end]


def test_settings_have_the_special_tokens_and_sizes(tmp_path):
  save_tokenizer(
    tmp_path, load_vocabulary("bert_uncased"), TextSpecialTokens(101, 102), max_length=512, token_types=True
  )
  settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
  names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
  assert {kind: settings[f"{kind}_token"] for kind in names} == names
  assert settings["model_max_length"] == 512 and settings["do_lower_case"] is True
  assert settings["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
  save_tokenizer(tmp_path / "bytes", load_vocabulary("byte"), TextSpecialTokens(end=1))
  assert [path.name for path in (tmp_path / "bytes").iterdir()] == ["tokenizer_config.json"]
  assert json.loads((tmp_path / "bytes/tokenizer_config.json").read_text())["tokenizer_class"] == "ByT5Tokenizer"


def test_an_original_tokenizer_json_is_kept(tmp_path):
  save_tokenizer(tmp_path / "a", load_vocabulary("bert_uncased"), TextSpecialTokens(101, 102))
  (tmp_path / "a/vocab.txt").unlink()
  save_tokenizer(tmp_path / "b", load_vocabulary(str(tmp_path / "a")), TextSpecialTokens())
  assert (tmp_path / "a/tokenizer.json").read_bytes() == (tmp_path / "b/tokenizer.json").read_bytes()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("original", [False, True])
def test_a_classifier_on_gpt2_gets_a_padding_token(original, tmp_path):
  """It reads the last token that is not padding: texts end with <|endoftext|>, which therefore cannot pad them."""
  vocabulary = load_vocabulary("gpt2")
  if original:  # GPT-2's own tokenizer.json adds no end-of-sequence
    save_tokenizer(tmp_path / "old", vocabulary, TextSpecialTokens())
    for name in ("vocab.json", "merges.txt"):
      (tmp_path / "old" / name).unlink()
    vocabulary = load_vocabulary(str(tmp_path / "old" / "tokenizer.json"))
  assert padding_token(vocabulary, vocabulary.vocab_size) is None
  assert padding_token(vocabulary, 50304, closed=False) == ("<|endoftext|>", 50256)
  assert padding_token(load_vocabulary("t5"), 40_000) is None
  padding = padding_token(vocabulary, 50304)
  assert padding == ("<|pad|>", 50257)
  around = TextSpecialTokens(None, vocabulary.eos_id)
  save_tokenizer(tmp_path / "new", vocabulary, around, padding=padding, keep_template=False)
  theirs = tokenizer_of(tmp_path / "new")
  assert theirs.token_to_id("<|pad|>") == 50257
  assert [theirs.encode(text).ids for text in TEXTS] == [[*ids, 50256] for ids in vocabulary.encode_batch(TEXTS)]
  pair = theirs.encode("one", "two").ids
  assert pair == [*vocabulary.encode("one"), 50256, *vocabulary.encode("two"), 50256]
  assert json.loads((tmp_path / "new" / "tokenizer_config.json").read_text())["pad_token"] == "<|pad|>"
  if not original:
    assert load_vocabulary(str(vocabulary_in(tmp_path / "new"))).fingerprint == vocabulary.fingerprint


def test_ids_in_a_models_configuration():
  assert token_ids(load_vocabulary("t5"), "encoder_decoder") == {
    "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0
  }  # fmt: skip
  assert token_ids(load_vocabulary("gpt2"), "decoder") == {"eos_token_id": 50256, "bos_token_id": 50256}
  assert token_ids(load_vocabulary("roberta"), "encoder") == {"eos_token_id": 2, "pad_token_id": 1}


@pytest.mark.slow
def test_an_exported_run_has_its_tokenizer(t5like, old_directories):
  t5like("convert", "to_hf", "finetuned", "exported")
  assert tokenizer_of(old_directories / "exported").encode("the cat").ids[-1] == 1  # with EOS, as in training
  config = json.loads((old_directories / "exported/config.json").read_text())
  assert (config["pad_token_id"], config["eos_token_id"], config["decoder_start_token_id"]) == (0, 1, 0)
  # And back again, from the folder alone.
  t5like("convert", "from_hf", "exported", "again")
  (old_directories / "rows.jsonl").write_text('{"inputs": "the cat purrs", "targets": "cat"}\n')
  scores = []
  for model in ("finetuned", "exported", "again"):
    out = t5like("infer", f"--model={model}", "--input=rows.jsonl", "--score").stdout
    scores.append(json.loads(out)["score"])
  assert scores == pytest.approx([scores[0]] * 3, abs=1e-5)


def test_a_converted_directory_can_be_moved(t5like, old_directories):
  """Its vocabulary is inside: neither the source folder nor the old location is needed."""
  t5like("convert", "to_hf", "finetuned", "exported")
  t5like("convert", "from_hf", "exported", "converted_again")
  shutil.rmtree(old_directories / "exported")
  (old_directories / "converted_again").rename(old_directories / "moved")
  (old_directories / "rows.jsonl").write_text('{"inputs": "the cat purrs", "targets": "cat"}\n')
  assert '"score"' in t5like("infer", "--model=moved", "--input=rows.jsonl", "--score").stdout


def test_without_a_vocabulary_only_the_weights_are_exported(t5like, old_directories):
  done = t5like("convert", "to_hf", "converted", "exported")
  assert "no tokenizer written" in done.stdout and not (old_directories / "exported/tokenizer.json").exists()
  t5like("convert", "to_hf", "converted", "exported_2", "--vocabulary=tiny")
  assert (old_directories / "exported_2/tokenizer.json").is_file()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("original", [False, True])
def test_an_exported_decoder_reads_prompts_as_in_training(original, run_children_here, tmp_path, one_device):
  vocabulary = load_vocabulary("gpt2")
  if original:  # GPT-2's own tokenizer.json adds no end-of-sequence
    save_tokenizer(tmp_path / "old", vocabulary, TextSpecialTokens())
    for name in ("vocab.json", "merges.txt"):
      (tmp_path / "old" / name).unlink()
  rows = [{"inputs": "one plus one", "targets": "two"}] * 8
  trained = t5like.train(
    t5like.read_experiment(
      ["models/gpt2/small.gin", "runs/finetune.gin"], TASK="sums_text_to_text", EVAL_SPLIT="", INIT_FROM=None,
      CORPUS_FILES={"train": t5like.save_examples(rows, str(tmp_path / "rows"))}, CACHE_DIR=str(tmp_path / "caches"),
      LENGTHS={"inputs": 8, "targets": 4}, BATCH_SIZE=8, TRAIN_STEPS=1, MODEL_DIR=str(tmp_path / "run"),
      EMBED_DIM=64, NUM_HEADS=1, MLP_DIM=8, NUM_DECODER_LAYERS=1, COMPUTE_DTYPE="float32",
      VOCABULARY=str(tmp_path / "old/tokenizer.json") if original else "gpt2",
    )
  )  # fmt: skip
  run = t5like.load(trained.model_dir)
  exported = t5like.load(run.save_hf(tmp_path / "exported"))
  assert run.prompt_form == exported.prompt_form and run.prompt_form.end == 50256
  theirs = tokenizer_of(tmp_path / "exported").encode("one plus one").ids
  assert theirs == [50256, *vocabulary.encode("one plus one"), 50256]
  assert exported.score("one plus one", "two") == pytest.approx(run.score("one plus one", "two"), abs=1e-4)
